"""Predicted cost of an int8 batch by the tiles of AMX, from its counts."""

from sparsejit.asm_templates.batch.amx_layout import ROW_BYTES, ROWS, TILE_BYTES, TileCounts
from sparsejit.ir.spec import Layout, MatMul
from sparsejit.planner.cost import Cost, cache_level
from sparsejit.whole_numbers import ceil_div, round_up


def price_tiles(counts: TileCounts) -> Cost:
    """Cost of tile products, which overlap with loads of tiles and expansion of weights.

    Two tiles of columns are multiplied at a time. Tiles come from L1 only where the tiles of a
    strip and of x all fit there.
    """
    target, spec = counts.target, counts.spec
    columns = ceil_div(spec.batch, ROWS)
    times = ceil_div(columns, 2)  # loads of each tile of weights
    rows = ROWS if spec.layout is Layout.FEATURE_MAJOR else min(ROWS, spec.batch)
    products = counts.weight_tiles * columns
    x_bytes = counts.chunk_columns * round_up(spec.in_features, ROW_BYTES)
    near = x_bytes + (0 if counts.compressed else counts.stored_bytes) <= target.l1d_bytes
    load = _cycles(counts, "load")
    if not near:
        load = max(load, TILE_BYTES / target.core.rates.data["L2"])
    loads = counts.weight_tiles * times + counts.steps * columns
    multiplying = max(_cycles(counts, "product") * rows * products, load * loads)
    expanding = 0.0
    if counts.compressed:
        expanding = _cycles(counts, "expand") * ROWS * counts.weight_tiles * counts.chunks
    data_bytes = counts.stored_bytes + 4 * spec.batch * (spec.in_features + spec.out_features)
    level = cache_level(counts.stored_bytes, data_bytes - counts.stored_bytes, target, 0)
    fetching = counts.chunks * counts.stored_bytes / target.core.rates.data[level]
    # Weights are expanded with the first two tiles of columns of each chunk.
    first = multiplying * min(1.0, counts.chunks / times)
    cycles = max(multiplying - first + max(first, expanding), fetching)
    ends = _vectors(spec, spec.in_features) * _cycles(counts, "quantise")
    ends += _vectors(spec, spec.out_features) * _cycles(counts, "finish")
    bound = f"data from {level}" if cycles == fetching else "execution"
    clock = target.core.rates.cycles_per_ns
    return Cost(products, 0, data_bytes, (cycles + ends) / clock, bound)


def _vectors(spec: MatMul, features: int) -> int:
    """Number of vectors of a matrix with `features` features, in the layout of x."""
    if spec.layout is Layout.FEATURE_MAJOR:
        return features * ceil_div(spec.batch, ROWS)
    return spec.batch * ceil_div(features, ROWS)


def _cycles(counts: TileCounts, what: str) -> float:
    core, spec = counts.target.core, counts.spec
    return core.steps[f"tile-{what}", counts.target.isa, spec.dtype.value].cycles
