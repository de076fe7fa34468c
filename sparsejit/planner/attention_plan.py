"""Whether an attention takes its own kernel, and what that should take."""

from sparsejit.asm_templates.attention.frame import AttentionStack
from sparsejit.asm_templates.attention.tables import AttentionTiles
from sparsejit.machine.target import Target
from sparsejit.planner.attention_price import attention_cycles, attention_products
from sparsejit.planner.cost import Cost


def attention_cost(stack: AttentionStack, tiles: AttentionTiles, target: Target) -> Cost:
    """Of all the stack; its steps are vectors multiplied and added."""
    ns = attention_cycles(stack, tiles, target) / target.core.rates.cycles_per_ns
    return Cost(sum(attention_products(stack, tiles)), 0, 0, ns, "execution")


def several_steps_ns(ns: float, target: Target) -> float:
    """Of two products around a softmax, by what their steps are predicted to take."""
    return ns * target.core.attention[target.isa].apart
