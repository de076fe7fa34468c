"""Predicted cycles of the attention kernel."""

from math import prod

from sparsejit.asm_templates.attention.frame import AttentionStack, packed_pitch
from sparsejit.asm_templates.attention.tables import AttentionTiles
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div


def attention_products(stack: AttentionStack, tiles: AttentionTiles) -> tuple[int, int]:
    """Vectors multiplied and added for scores, and for results, in the whole stack."""
    times, rows = _times(stack, tiles), tiles.all_keys * tiles.rows
    vectors = ceil_div(stack.values, tiles.lanes)
    return times * rows * stack.depth // tiles.lanes, times * rows * vectors


def attention_cycles(stack: AttentionStack, tiles: AttentionTiles, target: Target) -> float:
    """Predicted cycles of the whole stack."""
    prices = target.core.attention[target.isa]
    scores, results = attention_products(stack, tiles)
    times, count = _times(stack, tiles), tiles.masks * (tiles.tiles + tiles.added)
    squares = tiles.width * ceil_div(stack.depth, tiles.lanes)
    result_vectors = tiles.rows * ceil_div(stack.values, tiles.lanes)
    each = squares * prices.square + result_vectors * prices.result
    copied = 0
    if stack.packed_from:
        copied = stack.keys * packed_pitch(stack.values, target) // target.vector_bytes
    cycles = scores * (prices.wide_score if tiles.width > 1 else prices.score)
    cycles += results * prices.value + times * tiles.all_keys * tiles.width * prices.power
    return cycles + times * (count * each + tiles.masks * copied * prices.copy)


def _times(stack: AttentionStack, tiles: AttentionTiles) -> int:
    """Number of times that all tiles run."""
    return prod(length for length, _ in stack.axes) // tiles.masks
