"""Choice between the attention kernel and separate steps, and the predicted cost of the kernel."""

from collections.abc import Mapping

from sparsejit.asm_templates.attention.frame import AttentionStack
from sparsejit.asm_templates.attention.tables import AttentionTiles
from sparsejit.machine.target import Target
from sparsejit.planner.attention_price import attention_cycles, attention_products
from sparsejit.planner.cost import Cost

# All attentions of a stack in one kernel, or two products around a softmax.
FORMS = ONE_KERNEL, SEVERAL_STEPS = "one kernel", "several steps"


def attention_cost(stack: AttentionStack, tiles: AttentionTiles, target: Target) -> Cost:
    """Predicted cost of the whole stack; its steps are vectors multiplied and added."""
    ns = attention_cycles(stack, tiles, target) / target.core.rates.cycles_per_ns
    return Cost(sum(attention_products(stack, tiles)), 0, 0, ns, "execution")


def plan_attention(ns: Mapping[str, float], target: Target) -> str:
    """Return the form with the least predicted time; `ns` has the time of each form's steps."""
    together, apart = ns[ONE_KERNEL], ns[SEVERAL_STEPS]
    is_least = together <= apart * target.core.attention[target.isa].apart
    return ONE_KERNEL if is_least else SEVERAL_STEPS
