"""Predicted cost of convolutions that read the image in place, from their counts."""

from dataclasses import dataclass

from sparsejit.asm_templates.batch.panels import shared_window_loads
from sparsejit.asm_templates.convolution.quad_stream import ROW, QuadForm
from sparsejit.asm_templates.convolution.sparse_windows import WindowCounts
from sparsejit.asm_templates.convolution.window_loop import DirectCounts
from sparsejit.machine.target import Target
from sparsejit.planner.cost import Cost, cache_level


@dataclass(frozen=True)
class QuadCounts:
    """Work of one call: vectors of positions, rows of each vector, and quads of weights.

    shifted: the share of inputs whose vectors cross cache lines.
    met_bytes: bytes of x under the windows of one vector of positions.
    """

    form: QuadForm
    vectors: int
    rows: int
    quads: int
    shifted: float
    met_bytes: int
    adds: bool
    moved_bytes: int


def price_direct(counts: DirectCounts, target: Target) -> Cost:
    """Cost of windows by channel: the longest of products, loads, and transfers beyond L1."""
    core = target.core
    cycles = {
        "execution": max(
            counts.products / core.multipliers,
            counts.loads * core.loops.across_lines[target.isa] / core.batch.loads,
        )
        + counts.stores * core.batch.store_cycles
    }
    level = cache_level(counts.moved_bytes, 0, target, target.l1d_bytes)
    cycles[f"data from {level}"] = counts.moved_bytes / core.rates.data[level]
    bound = max(cycles, key=lambda resource: cycles[resource])
    ns = cycles[bound] / core.rates.cycles_per_ns
    return Cost(counts.products, 0, counts.moved_bytes, ns, bound)


def price_sparse_windows(counts: WindowCounts, target: Target) -> Cost:
    """Cost of windows with weights as code.

    Code is fetched once a call: a part of it stays in L1 while it runs over all positions.
    """
    core, prices = target.core, target.core.batch
    share = shared_window_loads(target, counts.panels)
    inputs = counts.inputs * core.loops.across_lines[target.isa]
    loading = (counts.nnz * (1 - 0.75 * share) + inputs) / prices.loads
    products = counts.nnz * (1 + share * prices.spreading[target.isa]) / prices.products
    stores = counts.outputs * prices.store_cycles
    computing = counts.panels * (prices.windows * max(loading, products) + stores)
    level = cache_level(counts.code_bytes, counts.moved_bytes, target, target.l1i_bytes)
    fetching = 0.0 if level in ("L1", "L2") else counts.code_bytes / core.rates.code[level]
    bound = "execution" if computing >= fetching else f"code from {level}"
    ns = (computing + fetching) / core.rates.cycles_per_ns
    products_in_all = counts.panels * counts.nnz
    return Cost(products_in_all, counts.code_bytes, counts.moved_bytes, ns, bound)


def price_dense_windows(
    cycles: float, weight_bytes: int, moved_bytes: int, target: Target, passes: int = 1
) -> Cost:
    """Cost of windows with all weights, loaded `passes` times.

    Loads from L2 overlap with execution, loads from beyond L2 in part.
    """
    core = target.core
    level = cache_level(weight_bytes, moved_bytes, target, 0)
    fetching = passes * weight_bytes / core.rates.data[level]
    exposed = 0.0 if level == "L2" else core.batch.dense_fetch * fetching
    bound = "execution" if cycles >= exposed else f"data from {level}"
    ns = (cycles + exposed) / core.rates.cycles_per_ns
    return Cost(int(cycles), 0, weight_bytes + moved_bytes, ns, bound)


def price_quads(counts: QuadCounts, target: Target) -> Cost:
    """Cost of products of quads; weights are fetched in order, in parallel with the products."""
    prices, rates, form = target.core.quads, target.core.rates, counts.form
    in_line, across = prices.fours if form.fours else (prices.quad, prices.shifted)
    number = form.together - 1
    far = prices.far if counts.met_bytes > target.l1d_bytes and not form.fours else 0.0
    quad = in_line[number] + counts.shifted * (across[number] + far - in_line[number])
    row = prices.row + (prices.added if counts.adds else 0.0)
    computing = counts.vectors * (counts.quads * quad + counts.rows * row)
    stream_bytes = form.dtype.itemsize * counts.quads + ROW.itemsize * counts.rows
    level = cache_level(stream_bytes, counts.moved_bytes, target, 0)
    fetching = stream_bytes / rates.data[level]
    bound = "execution" if computing >= fetching else f"data from {level}"
    ns = max(computing, fetching) / rates.cycles_per_ns
    return Cost(counts.vectors * counts.quads, 0, stream_bytes + counts.moved_bytes, ns, bound)


def price_fours(lines: int, moved_bytes: int, target: Target) -> Cost:
    """Cost of bringing four channels side by side, `lines` times for 64 positions."""
    ns = lines * target.core.quads.making / target.core.rates.cycles_per_ns
    return Cost(lines, 0, moved_bytes, ns, "execution")


def price_copy(moved_bytes: int, target: Target) -> Cost:
    """Cost of reading and writing `moved_bytes` in all, in order."""
    level = cache_level(moved_bytes, 0, target, target.l1d_bytes)
    ns = moved_bytes / target.core.rates.data[level] / target.core.rates.cycles_per_ns
    return Cost(0, 0, moved_bytes, ns, f"data from {level}")


def price_gathering(elements: int, is_strided: bool, target: Target) -> Cost:
    """Cost of gathering columns of `elements` floats, which are read again if they leave L2."""
    moved, core = price_copy(8 * elements, target), target.core
    copying = elements * core.loops.gathered[is_strided] / core.rates.cycles_per_ns
    again = 0.0 if moved.bound.endswith(("L1", "L2")) else moved.ns / 2
    return Cost(elements, 0, 8 * elements, max(copying, moved.ns) + again, moved.bound)
