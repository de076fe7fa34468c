"""Predicted costs of kernels from counts alone, and the least time of any kernel.

    price         a kernel with these counts; `_data_rate`: loads from L1, L2, L3 or memory
    vector_cost   loops over vectors, such as float64 columns
    chain_cost    chains; also `gates_ns` for gates, `dense_product_ns` for dense products
    limit_ns      the least time that a processor could take, whatever the kernel

A kernel is a sequence of equal steps (`lowered.Counts`), with micro-operations and bytes, whose
prices are data of the target's core. The time is the longest of execution, the transfer of code and
the transfer of data, which overlap.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from sparsejit.asm_templates.dense_product.pairs import paired_lines
from sparsejit.asm_templates.dense_product.tiling import tiling
from sparsejit.asm_templates.families import STEP_KINDS
from sparsejit.asm_templates.lowered import Counts, Work
from sparsejit.asm_templates.pointwise.row_chain import LoweredChain
from sparsejit.asm_templates.pointwise.row_chain.plan import ChainPlan
from sparsejit.asm_templates.pointwise.row_chain.row_passes import COSTS
from sparsejit.asm_templates.pointwise.row_chain.transposed import TransposedCopy
from sparsejit.asm_templates.shared.padding import DENSE, stride_padding
from sparsejit.ir.ops.pointwise import ROW_REDUCTIONS
from sparsejit.ir.ops.recurrent import RecurrentCell
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DenseProduct, DType
from sparsejit.machine.core import Core
from sparsejit.machine.price_records import StepPrice
from sparsejit.machine.target import Target


@dataclass(frozen=True)
class Cost:
    """Predicted cost of one call, x and weights warm.

    steps: units of the family's work.
    code_bytes: bytes of code that run.
    data_bytes: bytes of weights, x and y.
    ns: predicted nanoseconds.
    bound: the resource that sets the time: "execution", or "code from L2" and the like.
    """

    steps: int
    code_bytes: int
    data_bytes: int
    ns: float
    bound: str

    @property
    def all_bytes(self) -> int:
        """Bytes of code and data."""
        return self.code_bytes + self.data_bytes


def price(counts: Counts) -> Cost:
    """Return the predicted cost of a kernel with these counts."""
    target, core = counts.target, counts.target.core
    steps = [(work, _cycles(counts, work)) for work in counts.work]
    code_bytes = int(sum(_code_bytes(counts, work) for work in counts.work))
    data_bytes = counts.pool_bytes + counts.vector_bytes
    execution = sum(cycles for _, cycles in steps)
    # Code that runs several times arrives during the first run.
    later = sum(cycles * (1 - 1 / work.runs) for work, cycles in steps)
    code_rate = core.code_rates.get(counts.work[0].kind, 1.0)
    code = {
        level: share * code_bytes / (code_rate * core.rates.code[level])
        for level, share in cache_shares(code_bytes, data_bytes, target, target.l1i_bytes).items()
    }
    data = {
        level: share * data_bytes / _data_rate(counts, level)
        for level, share in cache_shares(data_bytes, code_bytes, target, target.l1d_bytes).items()
    }
    added = sum(
        (core.shared_way if level == "L2" else core.shared_far) * min(code[level], data[level])
        for level in code.keys() & data.keys() - {"L1"}
    )
    code_name, data_name = f"code from {_main(code)}", f"data from {_main(data)}"
    transfers = {code_name: sum(code.values()) + added, data_name: sum(data.values()) + added}
    far = {name: cycles for name, cycles in transfers.items() if not name.endswith("L1")}
    transfers[code_name] += later
    resources = {"execution": execution, **transfers}
    bound = max(resources, key=lambda name: resources[name])
    far["execution"] = execution
    lesser = sum(cycles for name, cycles in far.items() if name != bound)
    ns = (resources[bound] + core.unhidden * lesser) / core.rates.cycles_per_ns
    return Cost(counts.steps, code_bytes, data_bytes, ns, bound)


def _cycles(counts: Counts, work: Work) -> float:
    target = counts.target
    return work.steps * step_cycles(target, work.kind, counts.stored)


def all_steps(core: Core) -> dict[tuple[str, str, str], StepPrice]:
    """Prices of all steps: the core's own, else the assumed ones of the table of kernels."""
    rows = {
        (kind, isa, stored.value): StepPrice(
            core.step_cycles((kind, isa, stored.value), step.cycles.get(isa, 1.0)), "assumed"
        )
        for kind, step in STEP_KINDS.items()
        for isa, stored in step.code_bytes
    }
    return {**rows, **core.steps}


def step_cycles(target: Target, kind: str, stored: DType) -> float:
    """Cycles of a step of that kind: the core's own, else the assumed ones of its row."""
    default = STEP_KINDS[kind].cycles.get(target.isa, 1.0)
    return target.core.step_cycles((kind, target.isa, stored.value), default)


def _code_bytes(counts: Counts, work: Work) -> float:
    """Bytes of the code that runs these steps; code that runs several times is counted once."""
    each = STEP_KINDS[work.kind].code_bytes[counts.target.isa, counts.stored]
    return work.steps * each / work.runs


def _main(cycles: Mapping[str, float]) -> str:
    """The cache from which the transfer takes longest."""
    return max(cycles, key=lambda level: cycles[level])


def _data_rate(counts: Counts, level: str) -> float:
    """Bytes of the pool that a cache delivers per cycle."""
    rates, target = counts.target.core.rates.data, counts.target
    if level != "L2":
        return rates[level]
    has_padding = counts.padded and stride_padding(counts.pool_bytes, target) != DENSE
    kind_rate = target.core.data_rates.get(counts.work[0].kind, 1.0)
    return kind_rate * rates["padded L2" if has_padding else "L2"]


def lane_use(family: str, matrix: SparseMatrix, steps: int, target: Target) -> float:
    """Share of lanes in use: nonzeros over the weights that `steps` steps have room for."""
    places = max(steps, 1) * target.lanes * STEP_KINDS[family].weights_a_lane
    return matrix.nnz / places


def cache_level(own_bytes: int, other_bytes: int, target: Target, level_one: int) -> str:
    """Nearest cache that holds `own_bytes` of code or data.

    L1 must hold them alone, a further cache together with `other_bytes`.
    """
    if own_bytes + target.between_bytes <= level_one:
        return "L1"
    all_bytes = own_bytes + other_bytes + target.between_bytes
    for name, size in (("L2", target.l2_bytes), ("L3", target.core.l3_share * target.l3_bytes)):
        if all_bytes <= size:
            return name
    return "memory"


def cache_shares(
    own_bytes: int, other_bytes: int, target: Target, level_one: int
) -> dict[str, float]:
    """Share of code or data that comes from each cache.

    All comes from the `cache_level`, except where L2 keeps some lines and L3 delivers the others.
    """
    level = cache_level(own_bytes, other_bytes, target, level_one)
    all_bytes = own_bytes + other_bytes + target.between_bytes
    missed = missed_share(all_bytes / target.l2_bytes, target.core.l2_ways)
    if level not in ("L2", "L3") or not 0.0 < missed < 1.0:
        return {level: 1.0}
    return {"L2": 1.0 - missed, "L3": missed}


def missed_share(fill: float, ways: int) -> float:
    """Share of lines, read over and over, that a cache misses; `fill`: their bytes over its size.

    Pages lie at random, so that the number of lines in a set is Poisson distributed about `ways *
    fill`. Lines evict each other in sets that get more than `ways` lines. Without ways a cache
    misses nothing until it is full, and then everything.
    """
    if not ways:
        return float(fill > 1)
    mean, term, others = ways * fill, 1.0, 0.0
    for count in range(ways):  # a line stays beside fewer than `ways` others
        others += term
        term *= mean / (count + 1)
    return max(0.0, 1.0 - math.exp(-mean) * others)


def vector_cost(
    instructions: float, moved_bytes: int, target: Target, waiting: float = 0.0
) -> Cost:
    """Cost of a loop: the longer of its instructions and its transfers from the nearest cache.

    `waiting`: cycles in which no other instruction runs.
    """
    rates = target.core.rates
    level = cache_level(moved_bytes, 0, target, target.l1d_bytes)
    cycles = {
        "execution": instructions / target.core.loops.instructions + waiting,
        f"data from {level}": moved_bytes / rates.data[level],
    }
    bound = max(cycles, key=lambda resource: cycles[resource])
    return Cost(int(instructions), 0, moved_bytes, cycles[bound] / rates.cycles_per_ns, bound)


def chain_cost(lowered: LoweredChain, target: Target) -> Cost | None:
    """The cost of a chain; None for one without code."""
    plan = lowered.plan
    if plan is None:
        return None
    moved = lowered.counts["bytes_read"] + lowered.counts["bytes_written"]
    if isinstance(plan, TransposedCopy):
        vectors = prod(lowered.chain.shape) / target.lanes
        return vector_cost(vectors * target.core.loops.transposed, moved, target)
    return vector_cost(*_work(lowered, plan, moved, target))


def gates_ns(cell: RecurrentCell, units: int, target: Target) -> float:
    """Nanoseconds of the gates of `units` hidden units."""
    core = target.core
    return core.gate_cycles[cell.value, target.isa] * units / core.rates.cycles_per_ns


def own_steps_ns(inputs: int, outputs: int, target: Target) -> float:
    """Nanoseconds to quantise x (inputs,) by its own range, and to scale its product (outputs,)."""
    instructions = (10 * inputs + 5 * outputs) / target.lanes
    return vector_cost(instructions, 4 * (3 * inputs + 3 * outputs), target).ns


def dense_product_ns(product: DenseProduct, target: Target) -> float:
    """Nanoseconds of a product of two matrices that the model computes."""
    cycles = tiling(product, target).cycles
    if product.pairs:
        cycles += target.core.layouts.paired * paired_lines(product)
    return cycles / target.core.rates.cycles_per_ns


def _work(
    lowered: LoweredChain, plan: ChainPlan, moved: int, target: Target
) -> tuple[float, int, Target, float]:
    walks, kinds = plan.space.walks, [plan.values[number] for number in plan.passes.needed]
    costs = [COSTS.get(value.kind, 1) for value in kinds if not value.per_row]
    reductions = 0 if plan.across else sum(value.kind in ROW_REDUCTIONS for value in kinds)
    arrays = len(lowered.operands) + len(lowered.results)
    instructions = walks * plan.vectors * (sum(costs) + arrays)
    return instructions, moved, target, walks * reductions * target.core.reduction_cycles


def limit_ns(flops: int, data_bytes: int, other_bytes: int, target: Target) -> float:
    """Least nanoseconds of `flops` on data that share caches with `other_bytes` of other layers.

    It is the longer of the multipliers' time and the time of the data's transfer.
    """
    core = target.core
    rates = {**core.rates.data, "L2": max(core.rates.data["L2"], core.rates.data["padded L2"])}
    places = nearest_places(data_bytes, other_bytes, target)
    computing = flops / (2 * core.multipliers * target.lanes)
    loading = sum(count / rates[level] for level, count in places.items())
    return max(computing, loading) / core.rates.cycles_per_ns


def nearest_places(data_bytes: int, other_bytes: int, target: Target) -> dict[str, float]:
    """Bytes of the data that come from each cache at best, when they are read over and over.

    No cache keeps more than its size, and each keeps the same share of the data as of the other
    bytes that are read.
    """
    left = data_bytes + other_bytes
    own = data_bytes / max(left, 1)
    places: dict[str, float] = {}
    for level, size in (
        ("L1", target.l1d_bytes),
        ("L2", target.l2_bytes),
        ("L3", target.l3_bytes),
        ("memory", left),
    ):
        kept = min(left, size)
        left -= kept
        if kept or not places:
            places[level] = own * kept
    return places
