"""Attention under a constant mask: a loop over the stack around tiles of queries."""

from math import prod

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.attention.frame import AttentionStack
from sparsejit.asm_templates.attention.kernel import emit_masked_attention
from sparsejit.asm_templates.attention.tables import AttentionTiles, Pitches
from sparsejit.ir.graph import Node, Value
from sparsejit.ir.ops.attention import MaskedAttention
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.lowering.storage import View
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import r8, rcx, rdi, rdx, rsi

BoolArray = npt.NDArray[np.bool_]

_FLOAT = 4
# Cycles of a tile and of each of its keys beside products, of which two start in a cycle.
_TILE_CYCLES, _KEY_CYCLES = 600, 12


def lower_masked_attention(low: Lowering, node: Node) -> None:
    """All attentions of the stack; operands are copied only where rows are not contiguous."""
    assert isinstance(node.op, MaskedAttention)
    query, key, value, mask = node.inputs
    operands = [_rows(low, operand) for operand in (query, key, value)]
    result = low.result(node.output, _has_rows)
    views = (*operands, result)
    masks = low.constant(mask).reshape(-1, *mask.shape[-2:])
    tiles = AttentionTiles.of(masks, Pitches(*(view.strides[-2] for view in views)), low.target)
    sizes = query.shape[-1], value.shape[-1], node.op.scale
    stack = AttentionStack(*sizes, _axes(node.output.shape[:-2], views))

    def emit(asm: Assembler, at: Locations) -> None:
        for register, location in zip((rdi, rsi, rdx, rcx), (*at.reads, *at.writes), strict=True):
            location.point(asm, register)
        at.scratch.point(asm, r8)
        emit_masked_attention(asm, stack, tiles)

    facts = _facts(stack, tiles, masks, low.target)
    scratch = stack.scratch_bytes(tiles, low.target)
    origin, reads = node.output.origin, tuple(operands)
    low.add(Step("masked attention", origin, reads, (result,), emit, facts, scratch))


def _rows(low: Lowering, value: Value) -> View:
    view = low.view(value)
    return view if _has_rows(view) else low.contiguous(value)


def _has_rows(view: View) -> bool:
    """Whether the last axis is contiguous."""
    return view.shape[-1] == 1 or view.strides[-1] == _FLOAT


def _axes(
    stack: tuple[int, ...], views: tuple[View, ...]
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    strides = [view.expanded((*stack, *view.shape[-2:])).strides[:-2] for view in views]
    axes = zip(stack, *strides, strict=True)
    return tuple((length, tuple(moves)) for length, *moves in axes if length > 1)


def _facts(stack: AttentionStack, tiles: AttentionTiles, masks: BoolArray, target: Target) -> Facts:
    count = prod(length for length, _ in stack.axes)
    once = count // tiles.masks
    products = once * tiles.all_keys * (stack.depth + stack.values)
    other = _KEY_CYCLES * tiles.all_keys + _TILE_CYCLES * (tiles.tiles + tiles.added) * tiles.masks
    cycles = products / 2 + once * other
    queries, keys = masks.shape[1:]
    looked = tiles.all_keys * target.lanes / masks.size
    reason = (
        f"{count} attentions of {queries} queries to {keys} keys, of which the mask allows "
        f"{masks.mean():.1%} and tiles of {target.lanes} queries look at {looked:.1%}"
    )
    effective = 2 * count * queries * keys * (stack.depth + stack.values)
    flops = 2 * products * target.lanes
    return Facts(
        reason,
        cycles / target.core.rates.cycles_per_ns,
        effective_flops=effective,
        flops=flops,
        bound="execution",
    )
