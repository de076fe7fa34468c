"""What is known of a chain of elementwise functions before it runs."""

from math import prod

from sparsejit.asm_templates.pointwise.chain import LoweredChain
from sparsejit.lowering.step import Facts
from sparsejit.machine.target import Target
from sparsejit.planner.vector_cost import chain_cost


def chain_facts(lowered: LoweredChain, target: Target) -> Facts:
    """As priced, and what it computes."""
    chain, cost = lowered.chain, chain_cost(lowered, target)
    fused = "fused: " if "+" in chain.title else ""
    what = f"{fused}{chain.title.replace('+', ', ')} of {list(chain.shape)}"
    if cost is None:
        return Facts(what)
    moved, bound = cost.data_bytes, cost.bound
    functions = sum(2 if step.kind == "fma" else 1 for step in chain.steps)
    flops = prod(chain.shape) * functions
    reason = (
        f"{what}: {len(chain.steps)} functions, {moved:,} bytes read and written, bound by {bound}"
    )
    return Facts(
        reason, cost.ns, effective_flops=flops, flops=flops, bound=bound, moved_bytes=moved
    )
