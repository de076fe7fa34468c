"""Choice between the attention kernels and separate steps, and the kernels' predicted cost."""

from collections.abc import Callable
from math import prod
from typing import NamedTuple

from sparsejit.asm_templates.attention.cached_queries import CachedQueries
from sparsejit.asm_templates.attention.frame import AttentionStack, packed_pitch
from sparsejit.asm_templates.attention.tables import AttentionTiles
from sparsejit.machine.target import Target
from sparsejit.planner.cheapest_row import Chosen, TableRow, choose
from sparsejit.planner.cost import Cost
from sparsejit.whole_numbers import ceil_div

ATTENTION = "attention"
ONE_KERNEL, SEVERAL_STEPS = "one kernel", "several steps"
PAIRS = "pairs of bfloat16"


class AttentionForms(NamedTuple):
    """A choice between forms of an attention: one kernel, or separate steps.

    `ns_of(form)` returns the predicted nanoseconds of all steps of that form. `pairs`: whether
    operands may be rounded to bfloat16.
    """

    ns_of: Callable[[str], float]
    target: Target
    pairs: bool = False


def _several_ns(work: AttentionForms) -> float:
    return work.ns_of(SEVERAL_STEPS) * work.target.core.attention[work.target.isa].apart


# Time of float32 over pairs from which rounding is worth it.
_WORTH_ROUNDING = 1.1

# All attentions of a stack in one kernel, in float32 or in pairs; or two products and a softmax.
FORMS: tuple[TableRow[AttentionForms, float], ...] = (
    TableRow(ONE_KERNEL, lambda work: work.ns_of(ONE_KERNEL)),
    TableRow(
        PAIRS,
        lambda work: work.ns_of(PAIRS),
        lambda work: work.pairs,
        margin=_WORTH_ROUNDING,
    ),
    TableRow(SEVERAL_STEPS, _several_ns),
)


def plan_attention(work: AttentionForms) -> Chosen[AttentionForms, float]:
    """Choose the form of an attention: one kernel, or separate steps, by predicted time."""
    return choose(ATTENTION, FORMS, work)


def gains_by_pairs(target: Target) -> bool:
    """Whether long attentions take less time in pairs of bfloat16 than in float32."""
    prices = target.core.attention
    pairs, floats = (prices[key].wide_score + prices[key].value for key in ("pairs", "avx512"))
    return is_worth_rounding(pairs, 2 * floats)


def is_worth_rounding(pairs: float, floats: float) -> bool:
    """Whether a time in pairs of bfloat16 is enough below the time in float32."""
    return _WORTH_ROUNDING * pairs < floats


def attention_cost(stack: AttentionStack, tiles: AttentionTiles, target: Target) -> Cost:
    """Predicted cost of the whole stack; its steps are vectors multiplied and added."""
    ns = attention_cycles(stack, tiles, target) / target.core.rates.cycles_per_ns
    return Cost(sum(attention_products(stack, tiles)), 0, 0, ns, "execution")


def attention_products(stack: AttentionStack, tiles: AttentionTiles) -> tuple[int, int]:
    """Numbers of vectors multiplied and added in the whole stack: for scores, and for results."""
    times, rows = _times(stack, tiles), tiles.all_keys * tiles.rows
    vectors = ceil_div(stack.values, tiles.lanes)
    return times * rows * stack.steps // tiles.lanes, times * rows * vectors // stack.together


def attention_cycles(stack: AttentionStack, tiles: AttentionTiles, target: Target) -> float:
    """Predicted cycles of the whole stack."""
    prices = target.core.attention["pairs" if stack.pairs else target.isa]
    scores, results = attention_products(stack, tiles)
    times, count = _times(stack, tiles), tiles.masks * (tiles.tiles + tiles.added)
    squares = tiles.width * ceil_div(stack.steps, tiles.lanes)
    result_vectors = tiles.rows * ceil_div(stack.values, tiles.lanes)
    each = squares * prices.square + result_vectors * prices.result
    copied = 0
    if stack.packed_from or stack.pairs:
        rows = ceil_div(stack.keys, stack.together)
        copied = rows * packed_pitch(stack.values, target) // target.vector_bytes
    if stack.pairs:
        copied += stack.keys * ceil_div(stack.steps, tiles.lanes)
    cycles = scores * (prices.wide_score if tiles.width > 1 else prices.score)
    cycles += results * prices.value + times * tiles.all_keys * tiles.width * prices.power
    return cycles + times * (count * each + tiles.masks * copied * prices.copy)


def cached_attention_cost(spec: CachedQueries, target: Target) -> Cost:
    """Predicted cost where the mask allows all keys; its steps are vectors multiplied and added."""
    prices, lanes = target.core.attention[target.isa], target.vector_bytes // 4
    rows = spec.stack * spec.queries * spec.keys
    scores, results = rows * ceil_div(spec.depth, lanes), rows * ceil_div(spec.values, lanes)
    cycles = scores * prices.score + results * prices.value + rows / lanes * prices.power
    ns = cycles / target.core.rates.cycles_per_ns
    return Cost(scores + results, 0, 0, ns, "execution")


def _times(stack: AttentionStack, tiles: AttentionTiles) -> int:
    """Number of times that the kernel goes through all its tiles of queries, in the whole stack."""
    return prod(length for length, _ in stack.axes) // tiles.masks
