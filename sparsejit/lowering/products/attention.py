"""Attention: a loop over the stack around tiles of queries, or two products around a softmax."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.attention.frame import AttentionStack, packed_pitch
from sparsejit.asm_templates.attention.query_tiles import emit_attention
from sparsejit.asm_templates.attention.results import readings
from sparsejit.asm_templates.attention.tables import AttentionTiles, Pitches, tile_width
from sparsejit.ir.graph import Node, Origin, TensorType, Value
from sparsejit.ir.ops import row_chains
from sparsejit.ir.ops.attention import Attention
from sparsejit.ir.ops.products import Bmm
from sparsejit.ir.ops.types import float_type
from sparsejit.ir.ops.views import Permute
from sparsejit.lowering.column_attention import ColumnAttention
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.memory.shape_parts import ShapePart, ways_to_cut
from sparsejit.lowering.memory.storage import ConstantBuffer, View
from sparsejit.lowering.products.stacked_products import lower_bmm, product_of_views
from sparsejit.lowering.registry import lowers
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.machine.target import Target
from sparsejit.planner.attention_plan import (
    ONE_KERNEL,
    SEVERAL_STEPS,
    attention_cost,
    plan_attention,
)
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import r8, rcx, rdi, rdx, rsi

BoolArray = npt.NDArray[np.bool_]

_FLOAT = 4
# Values that are read so often are worth a copy in which rows lie side by side.
_TO_PACK = 4


@dataclass(frozen=True, eq=False)
class _StackMasks:
    """The masks of an attention: (masks, queries, keys), and which axis of the stack has them."""

    arrays: BoolArray
    axis: int = -1

    @classmethod
    def of(cls, low: Lowering, node: Node) -> "_StackMasks":
        query, key, _, *masks = node.inputs
        if not masks:
            return cls(np.ones((1, query.shape[-2], key.shape[-2]), bool))
        own = masks[0].shape[:-2]
        along = [axis - len(own) for axis, length in enumerate(own) if length > 1]
        arrays = low.constant(masks[0]).reshape(-1, *masks[0].shape[-2:])
        return cls(arrays, *along)


class _Operands(NamedTuple):
    """Where an attention reads and writes; the first axes are the stack."""

    query: View
    key: View
    value: View
    result: View


@lowers(Attention)
def lower_attention(low: Lowering, node: Node) -> None:
    """One kernel for all attentions of the stack, or three steps where those should take less."""
    if node in low.feature_major.attentions:
        _lower_by_column(low, low.feature_major.attentions[node])
        return
    _write_permuted(low, node)
    trials = {form: low.trial(node.inputs[:3]) for form in _WAYS}
    for form, trial in trials.items():
        _WAYS[form](trial, node)
    ns = {form: sum(step.ns for step in trial.steps) for form, trial in trials.items()}
    low.adopt(trials[plan_attention(ns, low.target)])


def _write_permuted(low: Lowering, node: Node) -> None:
    """Have results written in the order in which their only reader permutes them."""
    readers = [other for other in low.graph.nodes if node.output in other.inputs]
    is_seen = node.output in (*low.wanted, *low.graph.outputs)
    if is_seen or len(readers) != 1 or not isinstance(readers[0].op, Permute):
        return
    back = tuple(int(axis) for axis in np.argsort(readers[0].op.axes))
    low.wanted[node.output] = low.temporary(readers[0].output.type).permuted(back)


def _lower_together(low: Lowering, node: Node) -> None:
    """By the kernel; operands are copied only where rows are not contiguous."""
    assert isinstance(node.op, Attention)
    masks = _StackMasks.of(low, node)
    query, key, value = (_rows(low, operand) for operand in node.inputs[:3])
    result = low.result(node.output, _has_rows)
    kernel = "masked attention" if len(node.inputs) > 3 else "attention"
    views = _Operands(query, key, value, result)
    low.add(_step(kernel, node.output.origin, views, masks, node.op.scale, low.target))


def _step(
    kernel: str, origin: Origin, views: _Operands, masks: _StackMasks, scale: float, target: Target
) -> Step:
    stack, tiles = _stack_and_tiles(views, masks, scale, target)

    def emit(asm: Assembler, at: Locations) -> None:
        for register, location in zip((rdi, rsi, rdx, rcx), (*at.reads, *at.writes), strict=True):
            location.point(asm, register)
        at.scratch.point(asm, r8)
        emit_attention(asm, stack, tiles)

    def divide(threads: int) -> list[list[Step]]:
        ways = ways_to_cut(views.result.shape, threads, uncut=1)
        return [[*map(some, parts)] for parts in ways if not _cuts_masks(parts[0], masks)]

    def some(part: ShapePart) -> Step:
        """Some of the stack, or some queries of all."""
        parts, own = _Operands(*map(part.of, views)), masks
        if part.axis == len(part.whole) - 2:
            parts = views._replace(query=part.of(views.query), result=part.of(views.result))
            own = replace(masks, arrays=masks.arrays[:, part.first : part.end])
        return replace(_step(kernel, origin, parts, own, scale, target), share=part.share)

    facts = _facts(stack, tiles, masks.arrays, target)
    scratch = stack.scratch_bytes(tiles, target)
    key = "attention", stack, tiles.numbers.tobytes()
    sides = views[:3], views[3:]
    return Step(kernel, origin, *sides, emit, facts, scratch, divide=divide, code_key=key)


def _stack_and_tiles(
    views: _Operands, masks: _StackMasks, scale: float, target: Target
) -> tuple[AttentionStack, AttentionTiles]:
    query, key, value, result = views
    pitches = Pitches(*(view.strides[-2] for view in views))
    packed = packed_pitch(value.shape[-1], target)
    often = _readings(masks.arrays, value.shape[-1], target) >= _TO_PACK
    packed_from = pitches.value if often and pitches.value != packed else 0
    sizes = key.shape[-2], query.shape[-1], value.shape[-1], scale
    axes = _axes(result.shape[:-2], views, masks.axis)
    pitches = replace(pitches, value=packed) if packed_from else pitches
    bits = masks.arrays.tobytes()
    tiles = _tiles_of(bits, masks.arrays.shape, pitches, target)
    return AttentionStack(*sizes, axes, packed_from), tiles


@lru_cache(maxsize=8)  # layers are alike
def _tiles_of(
    masks: bytes, shape: tuple[int, ...], pitches: Pitches, target: Target
) -> AttentionTiles:
    return AttentionTiles.of(np.frombuffer(masks, bool).reshape(shape), pitches, target)


def _cuts_masks(part: ShapePart, masks: _StackMasks) -> bool:
    """Whether a part has some of several masks."""
    return len(masks.arrays) > 1 and part.axis == len(part.whole) - 2 + masks.axis


def _lower_apart(low: Lowering, node: Node) -> None:
    """Scores, their softmax, and values by these, one after another."""
    assert isinstance(node.op, Attention)
    query, key, value, *masks = node.inputs
    stack, origin = np.broadcast_shapes(query.shape[:-2], key.shape[:-2]), node.output.origin
    kind = float_type((*stack, query.shape[-2], key.shape[-2]))
    scores, weights = Value(kind, origin), Value(kind, origin)
    lower_bmm(low, Node(Bmm(True, node.op.scale), (query, key), (scores,)))
    chain, reads = row_chains.softmax(kind.shape), [low.view(scores)]
    scalars: list[float | None] = [None]
    if masks:
        chain = row_chains.masked_softmax(kind.shape)
        numbers = [row_chains.LEAST_SCORE, row_chains.LEAST_TOTAL]
        offsets = np.where(low.constant(masks[0]), 0, -np.inf)
        reads += [_constant(offsets), *map(_constant, numbers)]
        scalars += [None, *numbers]
    low.add_chain(chain, reads, scalars, [low.result(weights)], origin)
    lower_bmm(low, Node(Bmm(), (weights, value), (node.output,)))


def _lower_by_column(low: Lowering, found: ColumnAttention) -> None:
    """Scores are keys by queries, which lie in the lanes, those behind the last query too."""
    query, key, value = (found.operand(n, low.by_feature(v)) for n, v in enumerate(found.roots))
    result, origin = found.result(low.result_by_feature(found.sink)), found.sink.origin
    assert query and key and value and result and isinstance(found.node.op, Attention)
    low.bind(found.node.output, result)
    (*stack, tokens, _), keys, lanes = result.shape, key.shape[-2], low.target.lanes
    columns = -(-tokens // lanes) * lanes if found.is_one_sample else tokens
    kind = TensorType((*stack, keys, columns))
    scores, weights = low.temporary(kind), low.temporary(kind)
    ends = origin, low.target
    queries, results = _of_tokens(query, columns), _of_tokens(result, columns)
    low.add(product_of_views(key, queries.turned(), scores, False, found.node.op.scale, *ends))
    softmax = row_chains.softmax((*stack, columns, keys))
    low.add_chain(softmax, [scores.turned()], [None], [weights.turned()], origin)
    low.add(product_of_views(value.turned(), weights, results.turned(), False, 1.0, *ends))


def _of_tokens(view: View, tokens: int) -> View:
    """A view (..., tokens, features) of more tokens, which lie behind its own."""
    shape = (*view.shape[:-2], tokens, view.shape[-1])
    return replace(view, type=replace(view.type, shape=shape))


_WAYS = {ONE_KERNEL: _lower_together, SEVERAL_STEPS: _lower_apart}


def _constant(values: npt.ArrayLike) -> View:
    array = np.asarray(values, np.float32)
    return View.whole(ConstantBuffer.of(array), TensorType(array.shape))


def _readings(masks: BoolArray, values: int, target: Target) -> float:
    """How often a value is read, by all tiles."""
    rows = tile_width(masks, target) * target.lanes
    return float(masks.mean()) * masks.shape[1] / rows * readings(rows, values, target)


def _rows(low: Lowering, value: Value) -> View:
    view = low.view(value)
    return view if _has_rows(view) else low.contiguous(value)


def _has_rows(view: View) -> bool:
    """Whether the last axis is contiguous."""
    return view.shape[-1] == 1 or view.strides[-1] == _FLOAT


def _axes(
    stack: tuple[int, ...], views: tuple[View, ...], last: int
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Lengths, and by how much views move; an axis counted from the end comes last."""
    strides = [view.expanded((*stack, *view.shape[-2:])).strides[:-2] for view in views]
    axes = list(zip(stack, *strides, strict=True))
    if axes:
        axes.append(axes.pop(last))
    return tuple((length, tuple(moves)) for length, *moves in axes if length > 1)


def _facts(stack: AttentionStack, tiles: AttentionTiles, masks: BoolArray, target: Target) -> Facts:
    count = prod(length for length, _ in stack.axes)
    queries, keys = masks.shape[1:]
    reason = f"{count} attentions of {queries} queries to {keys} keys"
    if not masks.all():
        looked = tiles.all_keys * tiles.rows / masks.size
        reason += (
            f", of which the mask allows {masks.mean():.1%} and tiles of {tiles.rows} queries "
            f"look at {looked:.1%}"
        )
    effective = 2 * count * queries * keys * (stack.depth + stack.values)
    cost = attention_cost(stack, tiles, target)
    return Facts(
        reason,
        cost.ns,
        effective_flops=effective,
        flops=2 * target.lanes * cost.steps,
        bound="execution",
    )
