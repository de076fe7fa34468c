"""Predicted cost of loops over vectors: chains, copies, gates, dense products, float64 columns."""

from math import prod

from sparsejit.asm_templates.dense_product.tiling import tiling
from sparsejit.asm_templates.pointwise.chain import LoweredChain
from sparsejit.asm_templates.pointwise.chain.passes import COSTS
from sparsejit.asm_templates.pointwise.chain.plan import ChainPlan
from sparsejit.asm_templates.pointwise.chain.transposed import TransposedCopy
from sparsejit.ir.dense_product import DenseProduct
from sparsejit.ir.ops.pointwise import ROW_REDUCTIONS
from sparsejit.ir.ops.recurrent import RecurrentCell
from sparsejit.machine.target import Target
from sparsejit.planner.cost import Cost, cache_level


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
    """Nanoseconds to quantise a row by its own range, and to scale its product."""
    instructions = (10 * inputs + 5 * outputs) / target.lanes
    return vector_cost(instructions, 4 * (3 * inputs + 3 * outputs), target).ns


def dense_product_ns(product: DenseProduct, target: Target) -> float:
    """Nanoseconds of a product of two matrices that the model computes."""
    return tiling(product, target).cycles / target.core.rates.cycles_per_ns


def _work(
    lowered: LoweredChain, plan: ChainPlan, moved: int, target: Target
) -> tuple[float, int, Target, float]:
    walks, kinds = plan.space.walks, [plan.values[number] for number in plan.passes.needed]
    costs = [COSTS.get(value.kind, 1) for value in kinds if not value.per_row]
    reductions = 0 if plan.across else sum(value.kind in ROW_REDUCTIONS for value in kinds)
    arrays = len(lowered.operands) + len(lowered.results)
    instructions = walks * plan.vectors * (sum(costs) + arrays)
    return instructions, moved, target, walks * reductions * target.core.reduction_cycles
