"""Choice of the kernel of a batch: panels, a repeated kernel, both, a CSR loop, or dense code.

    price_tiles   predicted cost of an int8 batch by the tiles of AMX, from its counts
    price_csr     predicted cost of a loop over compressed rows, from `csr_shape.CsrCounts`
    plan_batch    the choice
    price_batch   predicted cost of any of the kernels

`price_csr`:

    a pass = weights * (a weight + vectors * a product) + segments * vectors * a sum's way
             + inputs * vectors * into the panel + outputs * vectors * to y

Weights from beyond L2 are prefetched: all but a share of their transfer overlaps with this. Prices
are data of the processor (`machine.price_records.CsrPrices`).

A panel costs the same however few of its columns are used; a repeated matrix-vector kernel costs by
the column, dense code by the weight, zeros included. The CSR loop goes over compressed sparse rows.
docs/kernels/batch.md and dense.md say where the prices come from.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache

from sparsejit.asm_templates.batch.amx_layout import ROW_BYTES, ROWS, TILE_BYTES, TileCounts
from sparsejit.asm_templates.batch.csr_core import quad_bytes
from sparsejit.asm_templates.batch.csr_shape import Arithmetic, CsrCounts, Pass
from sparsejit.asm_templates.batch.lowered_batch import (
    BatchCounts,
    chunk_columns,
    whole_vectors,
    writes_to_y,
)
from sparsejit.asm_templates.batch.panels import asks_ahead, shared_loads
from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES, PANEL_BYTES
from sparsejit.asm_templates.dense_product.layer import DenseCounts, has_room
from sparsejit.asm_templates.families import Template
from sparsejit.asm_templates.lowered import Counts
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, Layout, MatMul
from sparsejit.machine.price_records import CsrPrices
from sparsejit.machine.target import Target
from sparsejit.planner.cheapest_row import cheapest, priced
from sparsejit.planner.cost import Cost, cache_level, cache_shares, price
from sparsejit.planner.kernel_choice import AUTO, HARDLY_MORE, Job, Plan, choose_template
from sparsejit.whole_numbers import ceil_div, round_up


def price_tiles(counts: TileCounts) -> Cost:
    """Cost of an int8 batch by tiles of AMX; products overlap with loads and expansion of weights.

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
    load = _tile_cycles(counts, "load")
    if not near:
        load = max(load, TILE_BYTES / target.core.rates.data["L2"])
    loads = counts.weight_tiles * times + counts.steps * columns
    multiplying = max(_tile_cycles(counts, "product") * rows * products, load * loads)
    expanding = 0.0
    if counts.compressed:
        expanding = _tile_cycles(counts, "expand") * ROWS * counts.weight_tiles * counts.chunks
    data_bytes = counts.stored_bytes + 4 * spec.batch * (spec.in_features + spec.out_features)
    level = cache_level(counts.stored_bytes, data_bytes - counts.stored_bytes, target, 0)
    fetching = counts.chunks * counts.stored_bytes / target.core.rates.data[level]
    # Weights are expanded with the first two tiles of columns of each chunk.
    first = multiplying * min(1.0, counts.chunks / times)
    cycles = max(multiplying - first + max(first, expanding), fetching)
    ends = _vectors(spec, spec.in_features) * _tile_cycles(counts, "quantise")
    ends += _vectors(spec, spec.out_features) * _tile_cycles(counts, "finish")
    bound = f"data from {level}" if cycles == fetching else "execution"
    clock = target.core.rates.cycles_per_ns
    return Cost(products, 0, data_bytes, (cycles + ends) / clock, bound)


def _vectors(spec: MatMul, features: int) -> int:
    """Number of vectors of a matrix with `features` features, in the layout of x."""
    if spec.layout is Layout.FEATURE_MAJOR:
        return features * ceil_div(spec.batch, ROWS)
    return spec.batch * ceil_div(features, ROWS)


def _tile_cycles(counts: TileCounts, what: str) -> float:
    core, spec = counts.target.core, counts.spec
    return core.steps[f"tile-{what}", counts.target.isa, spec.dtype.value].cycles


def price_csr(counts: CsrCounts) -> Cost:
    """Cost of a batch by a loop over compressed rows: its passes, or the transfer of weights.

    The longer of the two is taken.
    """
    spec, target, shape = counts.spec, counts.target, counts.shape
    core = target.core
    stream_bytes = quad_bytes(shape.arithmetic) * counts.quads + 4 * counts.segments
    vector_bytes = 4 * spec.batch * (spec.in_features + spec.out_features)
    level = cache_level(stream_bytes, shape.workspace_bytes, target, 0)
    again = cache_level(stream_bytes, shape.workspace_bytes, target.alone, 0)
    cycles_a_byte = 1 / core.rates.data[level] + (shape.pass_count - 1) / core.rates.data[again]
    fetching = stream_bytes * cycles_a_byte
    computing = core.loops.csr_call + sum(
        part.times * _cycles(counts, part) for part in shape.passes
    )
    exposed = 0.0 if level == "L2" else _prices(counts).fetch * fetching
    cycles = max(fetching, computing + exposed)
    return Cost(
        sum(part.times * part.vectors for part in shape.passes) * counts.weights,
        0,
        stream_bytes + vector_bytes,
        cycles / core.rates.cycles_per_ns,
        "execution" if computing + exposed > fetching else f"data from {level}",
    )


def _prices(counts: CsrCounts) -> CsrPrices:
    return counts.target.core.csr[counts.target.isa, counts.shape.arithmetic.value]


def _cycles(counts: CsrCounts, part: Pass) -> float:
    """Cycles of one pass of the CSR loop over all weights, for `part.vectors` of columns."""
    spec, shape, prices, target = counts.spec, counts.shape, _prices(counts), counts.target
    layout = int(spec.layout is Layout.BATCH_MAJOR)
    row_blocks = ceil_div(spec.out_features, shape.blocks.rows)
    exceeds = shape.panel_bytes > target.core.loops.csr_near * target.l1d_bytes
    product = prices.product + (prices.far_product if exceeds else 0)
    moved = spec.in_features * row_blocks * prices.into_panel[layout]
    moved += spec.out_features * prices.to_y[layout]
    if spec.added_pitch is not None:
        moved += spec.out_features / target.core.batch.loads
    computed = part.vectors
    if shape.arithmetic is Arithmetic.HALVES:  # two at a time
        computed = round_up(computed, 2)
    by_vector = counts.weights * product + counts.segments * prices.sums
    fixed = counts.weights * prices.weight + counts.groups * prices.group
    return fixed + computed * by_vector + part.vectors * moved


# From these numbers of columns on, kernels repeated by the column do not win for matrices with at
# least this number of rows, or of weights.
_COLUMNS_OF_MANY_ROWS, _MANY_ROWS = 64, 64
_COLUMNS_OF_MANY_WEIGHTS, _MANY_WEIGHTS = 9, 1 << 14
_FEW_FOR_DENSE = 0.2  # up to this density, dense code does not win for many columns and weights
_FOR_ANY_LENGTH = frozenset({"csr"})  # families whose weights are data, ordered alike for any batch
_TOGETHER = {"dense-pairs": 2, "int8-dense": 4}  # elements that one instruction multiplies
_OWN_WORKSPACE = ("csr", "quads", "halves", "dense", "int8-tiles")
_ADDING = ("panels", "csr", "dense")  # families that add an operand to y


@cache
def batch_strategies() -> tuple[str, ...]:
    """The names that `strategy=` accepts for a batch."""
    return (AUTO, *dict.fromkeys(template.family for template in MATMUL_TEMPLATES))


def plan_batch(
    spec: MatMul,
    matrix: SparseMatrix,
    target: Target,
    strategy: str = AUTO,
    exact: bool = False,
    alike: bool = False,
    any_length: bool = False,
    rounds_x: bool = False,
) -> Plan:
    """Choose a template for a batch; if `exact`, one that changes no weight.

    If `alike`, choose one that sums every column in the same order, so that a column's bits do not
    depend on its place in the batch; `mixed` does not. If `any_length`, prefer one whose weights
    are data that batches of all lengths read. With `rounds_x` it may round x to the dtype of
    the weights, and float16 sums too.

    Raises InvalidInput for a strategy that does not exist, or not for this dtype and target.
    """
    possible = _possible(spec, matrix, target, strategy, alike, rounds_x)
    job = Job(spec, matrix, target, price_batch)
    preferred = _FOR_ANY_LENGTH if any_length else frozenset()
    return choose_template(job, possible, strategy, batch_strategies(), exact, preferred)


def expected_batch_ns(
    spec: MatMul,
    matrix: SparseMatrix,
    target: Target,
    exact: bool,
    alike: bool,
    rounds_x: bool = False,
) -> float:
    """Predicted nanoseconds of the best kernel, from the zeros alone; nothing is lowered."""
    possible = _possible(spec, matrix, target, AUTO, alike, rounds_x)
    candidates = Job(spec, matrix, target, price_batch).candidates(possible, exact)
    return min((one.cost.ns for one in candidates), default=math.inf)


def _possible(
    spec: MatMul,
    matrix: SparseMatrix,
    target: Target,
    strategy: str,
    alike: bool,
    rounds_x: bool = False,
) -> Iterator[Template]:
    left_out = {"mixed"} if alike else set()
    if strategy == AUTO and spec.dtype is not DType.INT8:
        left_out |= _losing(spec, matrix)
    for row in _made_for(target.alone, spec.dtype):
        may_round = rounds_x or strategy == row.family or not row.rounding
        if may_round and row.family not in left_out and _is_possible(row, spec, target):
            yield row


@lru_cache(maxsize=64)
def _made_for(target: Target, dtype: DType) -> tuple[Template, ...]:
    return tuple(
        row for row in MATMUL_TEMPLATES if row.dtype is dtype and row.made_for(target)
    )


def _losing(spec: MatMul, matrix: SparseMatrix) -> set[str]:
    """Families of float kernels that cannot win for this layer, and so are not priced.

    With many rows no kernel repeated by the column won in 252 layers (planner.jsonl). With many
    weights none is predicted to gain more than 7 % in 30 layers on any processor, and dense code
    takes 1.24 times the least at its best. Counting the work of a repeated kernel takes longer than
    the rest of a plan.
    """
    many_weights = spec.batch >= _COLUMNS_OF_MANY_WEIGHTS and matrix.nnz >= _MANY_WEIGHTS
    many_rows = spec.batch >= _COLUMNS_OF_MANY_ROWS and spec.out_features >= _MANY_ROWS
    losing = {"rows"} if many_weights or many_rows else set()
    few = many_weights and matrix.density <= _FEW_FOR_DENSE
    return losing | {"dense", "dense-pairs"} if few else losing


def prefers_panels(
    spec: MatMul, matrix: SparseMatrix, target: Target, exact: bool, any_length: bool = False
) -> bool:
    """Whether panels (a vector of samples at a time) are expected to be clearly cheapest.

    Only the layer's zeros are looked at. If `any_length`, panels must gain more: the weights of
    other families serve all lengths.
    """
    job = Job(spec, matrix, target, price_batch)
    costs: dict[bool, list[float]] = {True: [], False: []}
    for candidate in job.candidates(_possible(spec, matrix, target, AUTO, True), exact):
        costs[candidate.template.family == "panels"].append(candidate.cost.ns)
    most = min(target.core.loops.panels_from, 1 / HARDLY_MORE if any_length else 1.0)
    rows = [priced("others", min(costs[False], default=math.inf), margin=most)]
    if costs[True]:
        rows.append(priced("panels", min(costs[True])))
    return cheapest(rows, None).name == "panels"


def _is_possible(template: Template, spec: MatMul, target: Target) -> bool:
    """Whether a template can compute the batch: workspace, layouts and an added operand.

    The workspace must suffice, only full panels convert one layout to another, and not all families
    add an operand. `mixed` must differ from both panels and rows.
    """
    if spec.added_pitch is not None and not can_add(template, spec, target):
        return False
    if spec.layout is not spec.y_layout:
        full = whole_vectors(spec, target) % target.lanes == 0
        return template.family == "panels" and full and chunk_columns(spec, target.lanes) > 0
    if template.family in _TOGETHER:
        return has_room(spec, target, _TOGETHER[template.family])
    needs_no_workspace = template.family == "rows" and spec.layout is Layout.BATCH_MAJOR
    if needs_no_workspace or template.family in _OWN_WORKSPACE:
        return True
    both = spec.batch > target.lanes and spec.batch % target.lanes != 0
    return chunk_columns(spec, target.lanes) > 0 and (both or template.family != "mixed")


def can_add(template: Template, spec: MatMul, target: Target) -> bool:
    """Whether a template adds an operand to y as it writes it."""
    in_order = spec.layout is spec.y_layout is Layout.FEATURE_MAJOR
    adding = template.family in _ADDING and spec.dtype is not DType.INT8
    return in_order and adding and (template.family != "panels" or writes_to_y(spec, target))


def adds_in_place(template: Template, spec: MatMul, target: Target) -> bool:
    """Whether the added operand may be y itself: no element is read after it was written."""
    overlap = spec.batch > target.lanes and whole_vectors(spec, target) % target.lanes != 0
    return template.family != "panels" or not overlap


def price_batch(counts: BatchCounts | CsrCounts | DenseCounts | TileCounts) -> Cost:
    """Predicted cost of a batch: panels, repeated kernels and transpositions, or a loop."""
    if isinstance(counts, TileCounts):
        return price_tiles(counts)
    if isinstance(counts, DenseCounts):
        return _dense(counts)
    if isinstance(counts, CsrCounts):
        return price_csr(counts)
    core = counts.target.core
    parts: list[tuple[float, Cost]] = []
    waiting = _transposing(counts)
    if counts.in_panels:
        parts.append((1, _panels(counts)))
    if counts.each is not None and counts.repeats:
        each, first_ns = _prices_of_each(counts.each)
        waiting += (first_ns - each.ns) * core.rates.cycles_per_ns
        parts.append((core.batch.repeated * counts.repeats, each))
        if counts.in_panels:  # they ran before, so that the kernel's code comes from L2
            waiting += each.code_bytes / (core.rates.code["L2"] * core.batch.l2_code)
    _, dearest = max(parts, key=lambda part: part[0] * part[1].ns)
    return Cost(
        sum(int(times * cost.steps) for times, cost in parts),
        sum(cost.code_bytes for _, cost in parts),
        sum(cost.data_bytes for _, cost in parts),
        sum(times * cost.ns for times, cost in parts) + waiting / core.rates.cycles_per_ns,
        dearest.bound,
    )


@lru_cache(maxsize=1 << 12)  # for any number of columns
def _prices_of_each(counts: Counts) -> tuple[Cost, float]:
    """Cost of a column that follows another one, and nanoseconds of the first column."""
    return price(replace(counts, target=counts.target.alone)), price(counts).ns


def _dense(counts: DenseCounts) -> Cost:
    spec = counts.spec
    vector_bytes = 4 * spec.batch * (spec.in_features + spec.out_features)
    own = counts.target, counts.products, counts.cycles, counts.pool_bytes
    return _dense_cost(*own, vector_bytes)


@lru_cache(maxsize=256)  # many layers are equal
def _dense_cost(
    target: Target, products: int, computing: float, pool_bytes: int, vector_bytes: int
) -> Cost:
    """Cost of a dense product, whose weights are loaded once.

    Loads from L2 overlap with the multiplications, loads from beyond L2 in part.
    """
    core = target.core
    level = cache_level(pool_bytes, vector_bytes, target, 0)
    fetching = pool_bytes / core.rates.data[level]
    exposed = 0.0 if level == "L2" else core.batch.dense_fetch * fetching
    cycles = max(fetching, computing + exposed)
    bound = "execution" if computing > fetching else f"data from {level}"
    ns = cycles / core.rates.cycles_per_ns
    return Cost(products, 0, pool_bytes + vector_bytes, ns, bound)


def _transposing(counts: BatchCounts) -> float:
    """Cycles to transpose x and y where the kernel needs the other layout."""
    spec = counts.spec
    ends = ((spec.layout, spec.in_features), (spec.y_layout, spec.out_features))
    lanes = counts.target.lanes
    return sum(_squares(counts, layout) * ceil_div(size, lanes) for layout, size in ends)


def _squares(counts: BatchCounts, layout: Layout) -> float:
    """Cycles to transpose `lanes` features, for all columns whose kernel needs the other layout."""
    target, spec = counts.target, counts.spec
    feature_major = layout is Layout.FEATURE_MAJOR
    columns = counts.repeats if feature_major else counts.in_panels
    if not columns:
        return 0.0
    at_once = min(spec.batch, chunk_columns(spec, target.lanes) or target.lanes)
    both_bytes = 2 * 4 * at_once * (spec.in_features + spec.out_features)
    is_near = both_bytes <= target.l1d_bytes
    return _square_cycles(target.alone, feature_major, columns, is_near)


@lru_cache(maxsize=256)  # many layers are equal
def _square_cycles(target: Target, feature_major: bool, columns: int, is_near: bool) -> float:
    """Cycles to transpose `lanes` features of `columns` columns, in squares of lanes x lanes.

    `is_near`: L1 holds both layouts.
    """
    lanes, prices = target.lanes, target.core.batch
    square = (prices.feature_major_square if feature_major else prices.square)[target.isa]
    whole, rest = divmod(columns, lanes)
    return sum(
        times * (square[0] + square[1] * width + (0.0 if is_near else _line_cycles(target, width)))
        for times, width in ((whole, lanes), (rest > 0, rest))
    )


def _line_cycles(target: Target, width: int) -> float:
    """Cycles to load the cache lines of a square of lanes x width floats from L2."""
    lines = (target.lanes + width) * target.vector_bytes
    return target.core.batch.late_inputs * lines / target.core.rates.data["L2"]


def _panels(counts: BatchCounts) -> Cost:
    """Cost of all panels: each is as many columns of the batch as a vector has lanes.

    The first panel of a chunk waits for its code, the others for loads or multiplications.
    """
    target, spec, nnz = counts.target, counts.spec, counts.nnz
    core, prices = target.core, target.core.batch
    panels = ceil_div(counts.in_panels, target.lanes)
    at_once = min(panels, chunk_columns(spec, target.lanes) // target.lanes)
    chunks = ceil_div(panels, at_once)
    share, code = shared_loads(target, at_once), PANEL_BYTES[target.isa]
    code_bytes = int(nnz * (code.weight + share * code.by_four) + counts.inputs * code.input)
    added = 0 if spec.added_pitch is None else spec.out_features
    features = spec.in_features + spec.out_features + added
    data_bytes = 4 * nnz + panels * target.vector_bytes * features
    arriving_code = _arrivals(code_bytes, data_bytes, target)
    code_level = max(arriving_code, key=lambda level: arriving_code[level])
    loading = (nnz * (1 - 0.75 * share) + counts.inputs + added) / prices.loads
    products = nnz * (1 + share * prices.spreading[target.isa]) / prices.products
    later = max(loading, products + spec.out_features * prices.store_cycles)
    unhidden = 0.0 if asks_ahead(at_once) else prices.unhidden_code
    again = _arrivals(code_bytes, data_bytes, target.alone)
    first, first_again = (_first(each, later, unhidden) for each in (arriving_code, again))
    computing = first + (chunks - 1) * first_again + (panels - chunks) * later
    arriving = panels * _arriving(counts, at_once, added)
    hidden = core.unhidden * min(computing, arriving)
    cycles = max(computing, arriving) + hidden + panels * _copying(counts)
    if code_level == "memory":
        cycles += prices.from_memory * (code_bytes + 4 * nnz)
    waits = sum(arriving_code.values()) > later and panels < 2 * chunks
    bound = f"code from {code_level}" if waits else "execution"
    return Cost(panels * nnz, code_bytes, data_bytes, cycles / core.rates.cycles_per_ns, bound)


def _arriving(counts: BatchCounts, panels: int, added: int) -> float:
    """Cycles to move x, y and weights of a panel between L1 and L2; 0 if a chunk fits L1.

    A chunk has `panels` panels. `added`: rows of the operand that is added to y, which is moved
    too.
    """
    target, spec, prices = counts.target, counts.spec, counts.target.core.batch
    features = spec.in_features + spec.out_features + added
    if panels * target.vector_bytes * features <= target.l1d_bytes:
        return 0.0
    read = (counts.inputs + added) * target.vector_bytes + 4 * counts.nnz
    written = spec.out_features * target.vector_bytes
    rate = target.core.rates.data["L2"]
    return (prices.late_inputs * read + prices.late_stores * written) / rate


def _arrivals(code_bytes: int, data_bytes: int, target: Target) -> dict[str, float]:
    """Cycles to fetch the code, by cache: each cache delivers a share of it."""
    shares = cache_shares(code_bytes, data_bytes, target, target.l1i_bytes)
    return {
        level: share * code_bytes / _code_rate(code_bytes, level, target)
        for level, share in shares.items()
    }


def _first(arrivals: dict[str, float], later: float, unhidden: float) -> float:
    """Cycles of a chunk's first panel, which waits for its code.

    `arrivals` has the cycles to fetch the code, by cache; each later panel takes `later` cycles.
    The shorter of `later` and the fetches from beyond L2 overlaps with the longer, except for a
    share `unhidden`.
    """
    far = sum(cycles for level, cycles in arrivals.items() if level not in ("L1", "L2"))
    return max(sum(arrivals.values()), later) + unhidden * min(far, later)


def _copying(counts: BatchCounts) -> float:
    """Cycles to copy a panel's x into the panel, or to convert it to integers; 0 if in place."""
    spec, core, isa = counts.spec, counts.target.core, counts.target.isa
    if spec.dtype is DType.INT8:
        into_panel = core.csr[isa, counts.arithmetic.value].into_panel[0]
        return spec.in_features * core.batch.into_integers * into_panel
    is_copied = spec.layout is Layout.FEATURE_MAJOR and not counts.x_stays
    return spec.in_features * core.batch.copy[isa] if is_copied else 0.0


def _code_rate(code_bytes: int, level: str, target: Target) -> float:
    """Bytes of code that a cache level delivers per cycle."""
    prices = target.core.batch
    if code_bytes > prices.near_l3 * target.l3_bytes:
        return prices.far_code
    longer = {"L2": prices.l2_code, "L3": prices.l3_code}
    return target.core.rates.code[level] * longer.get(level, 1.0)
