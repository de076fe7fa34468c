"""What is known of a chain of elementwise functions before it runs."""

from math import prod

from sparsejit.asm_templates.pointwise.chain import LoweredChain
from sparsejit.asm_templates.pointwise.chain.passes import COSTS
from sparsejit.asm_templates.pointwise.chain.plan import ChainPlan
from sparsejit.asm_templates.pointwise.chain.transposed import TransposedCopy
from sparsejit.ir.ops.pointwise import ROW_REDUCTIONS
from sparsejit.lowering.step import Facts
from sparsejit.machine.target import Target
from sparsejit.planner.cost import cache_level

_INSTRUCTIONS_A_CYCLE = 2  # vectors
_TRANSPOSING = 6  # instructions a vector: a load, four exchanges of lanes, a store


def chain_facts(lowered: LoweredChain, target: Target) -> Facts:
    """Priced by the dearer of its instructions and its bytes, which come from the nearest cache."""
    chain, plan = lowered.chain, lowered.plan
    fused = "fused: " if "+" in chain.title else ""
    what = f"{fused}{chain.title.replace('+', ', ')} of {list(chain.shape)}"
    if plan is None:
        return Facts(what)
    rates = target.core.rates
    moved = lowered.counts["bytes_read"] + lowered.counts["bytes_written"]
    level = cache_level(moved, 0, target, target.l1d_bytes)
    cycles = {
        "execution": _execution_cycles(lowered, plan, target),
        f"data from {level}": moved / rates.data[level],
    }
    bound = max(cycles, key=lambda resource: cycles[resource])
    functions = sum(2 if step.kind == "fma" else 1 for step in chain.steps)
    flops = prod(chain.shape) * functions
    reason = (
        f"{what}: {len(chain.steps)} functions, {moved:,} bytes read and written, bound by {bound}"
    )
    return Facts(
        reason,
        cycles[bound] / rates.cycles_per_ns,
        effective_flops=flops,
        flops=flops,
        bound=bound,
        moved_bytes=moved,
    )


def _execution_cycles(
    lowered: LoweredChain, plan: ChainPlan | TransposedCopy, target: Target
) -> float:
    if isinstance(plan, TransposedCopy):
        vectors = prod(lowered.chain.shape) / target.lanes
        return vectors * _TRANSPOSING / _INSTRUCTIONS_A_CYCLE
    rows, kinds = plan.space.rows, [plan.values[number] for number in plan.passes.needed]
    costs = [COSTS.get(value.kind, 1) for value in kinds if not value.per_row]
    reductions = sum(value.kind in ROW_REDUCTIONS for value in kinds)
    arrays = len(lowered.operands) + len(lowered.results)
    instructions = rows * plan.vectors * (sum(costs) + arrays)
    return instructions / _INSTRUCTIONS_A_CYCLE + rows * reductions * target.core.reduction_cycles
