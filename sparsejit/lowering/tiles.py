"""Choose the tiles of a free batch: the number of samples that run at a time.

    batch_tiles    tiles that a model may have, by its graph
    paying         forms of the model, one for each tile, that are worth their code
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.columns import Distances
from sparsejit.ir.ops.convolution import Convolution, Pooling
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.recurrent import Recurrence
from sparsejit.lowering.model_schedule import ModelSchedule
from sparsejit.planner.cheapest_row import recording
from sparsejit.planner.sample_plan import tiles_that_pay
from sparsejit.whole_numbers import ceil_div

MOST_SAMPLES = 64
# Rows of x beyond which a product gains nothing by more rows: a vector's lanes.
ENOUGH_ROWS = 16
# Bytes of a tile's distances to known rows, which stay in L2, and the least samples of such a tile.
_NEAR_BYTES, _LEAST_NEAR = 1 << 17, 4
# Tiles that a model of narrow layers may have; the ones that pay are kept (`paying`).
_TILES = (1, ENOUGH_ROWS, MOST_SAMPLES)
# Models with at most this number of weights get code for every tile; larger ones have two tiles.
_MOST_WEIGHTS = 4_000_000


class BatchTiles(NamedTuple):
    """The tiles, in samples, and whether threads take turns with tiles.

    `samples` are the tiles that a model may have, the one for the example's batch first. Where
    threads do not take turns they share each tile's kernels.
    """

    samples: tuple[int, ...]
    shared: bool


def batch_tiles(single: Graph, batch: int, threads: int, one_tile: bool) -> BatchTiles:
    """Tiles of a model, given as its graph for one sample, and of the batch of its example.

    Threads take turns with tiles where a tile of each thread has enough work. On several threads,
    or with `one_tile`, a sample has the same bits in any batch.
    """
    each = samples_a_tile(single, ceil_div(batch, threads))
    if threads > 1 and batch >= threads and (each >= ENOUGH_ROWS or _is_wide(single)):
        return BatchTiles((each,), shared=True)
    if one_tile or threads > 1 or _is_wide(single):
        return BatchTiles((samples_a_tile(single, batch),), shared=False)
    main = max(tile for tile in _TILES if tile <= batch)
    tiles = (1, max(main, ENOUGH_ROWS)) if _is_large(single) else _TILES
    return BatchTiles((main, *(tile for tile in tiles if tile != main)), shared=False)


def samples_a_tile(single: Graph, batch: int) -> int:
    """The tile of a model, given as its graph for one sample, that is fastest for a batch.

    The tile is one sample if that has enough work to fill vectors, since its data then stay in near
    caches; otherwise tiles are equal and have at most MOST_SAMPLES, fewer where a sample has
    distances to many rows.
    """
    if batch == 1 or _is_wide(single):
        return 1
    near = [node.output.type.bytes for node in single.nodes if isinstance(node.op, Distances)]
    most = min(MOST_SAMPLES, max(_LEAST_NEAR, _NEAR_BYTES // max(near, default=1)))
    return ceil_div(batch, ceil_div(batch, most))


def share_tiles(first: Graph, other: Graph) -> bool:
    """Whether a model that is given at two lengths should have the same tiles at both.

    A large model should: each further tile of a narrow model has all weights once more.
    """
    return _is_wide(first) == _is_wide(other) or _is_large(first)


def _is_large(single: Graph) -> bool:
    return sum(value.type.size for value in single.constants) > _MOST_WEIGHTS


def _is_wide(single: Graph) -> bool:
    """Whether one sample has enough rows for every product, or is an image of many positions."""
    ops = [node.op for node in single.nodes]
    windows = [node for node in single.nodes if isinstance(node.op, Convolution | Pooling)]
    if any(prod(node.output.shape[2:]) >= ENOUGH_ROWS for node in windows):
        return True
    if windows or any(isinstance(op, Recurrence) for op in ops):
        return False
    rows = [prod(n.output.shape[:-1]) for n in single.nodes if isinstance(n.op, Linear)]
    return bool(rows) and min(rows) >= ENOUGH_ROWS


def paying(forms: Sequence[ModelSchedule]) -> list[ModelSchedule]:
    """The forms that are worth their code, the largest tile first."""
    by_tile = {form.tile: form for form in forms}
    with recording() as record:
        kept = tiles_that_pay(form.time for form in forms)
    return [by_tile[tile].with_decisions(record.decisions) for tile, _ in kept[::-1]]
