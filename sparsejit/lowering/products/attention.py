"""Attention: one kernel, a loop over the stack and tiles of queries; or products and a softmax.

The kernel multiplies float32, or pairs of bfloat16 where the whole model is in bfloat16. Attention
to a cache has a kernel of its own.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.attention.cached_queries import CachedQueries, emit_cached_queries
from sparsejit.asm_templates.attention.frame import AttentionStack, packed_pitch, paired_pitch
from sparsejit.asm_templates.attention.query_tiles import emit_attention, readings
from sparsejit.asm_templates.attention.tables import AttentionTiles, Pitches, tile_width
from sparsejit.ir.operator import Node
from sparsejit.ir.ops import row_chains
from sparsejit.ir.ops.products import Attention, Bmm, CachedAttention
from sparsejit.ir.ops.views import Permute
from sparsejit.ir.values import Origin, TensorType, Value, float_type
from sparsejit.lowering.context import Lowering, lowers
from sparsejit.lowering.feature_major import ColumnAttention
from sparsejit.lowering.memory.storage import (
    ConstantBuffer,
    ShapePart,
    StridedShape,
    View,
    ways_to_cut,
)
from sparsejit.lowering.products.stacked_products import lower_bmm, product_of_views
from sparsejit.lowering.step import CodeKey, Facts, Locations, Step
from sparsejit.machine.target import Target
from sparsejit.planner.attention_plan import (
    ATTENTION,
    ONE_KERNEL,
    PAIRS,
    SEVERAL_STEPS,
    AttentionForms,
    attention_cost,
    cached_attention_cost,
    plan_attention,
)
from sparsejit.planner.cheapest_row import record
from sparsejit.planner.kernels import kernel_name
from sparsejit.whole_numbers import round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import r8, r10, rcx, rdi, rdx, rsi

BoolArray = npt.NDArray[np.bool_]

_FLOAT = 4
# Values that are read at least this often are copied, so that their rows lie side by side.
_TO_PACK = 4


@dataclass(frozen=True, eq=False)
class _StackMasks:
    """The masks of an attention, (masks, queries, keys), and the axis of the stack they vary on."""

    arrays: BoolArray
    axis: int = -1

    @cached_property
    def _key(self) -> Hashable:
        return self.axis, self.arrays.shape, self.arrays.tobytes()

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _StackMasks) and self._key == other._key

    @cached_property
    def share(self) -> float:
        """Share of the scores that the masks allow."""
        return float(self.arrays.mean())

    @classmethod
    def of(cls, low: Lowering, node: Node) -> "_StackMasks":
        query, key, _, *masks = node.inputs
        if not masks:
            return _no_masks(query.shape[-2], key.shape[-2])
        own = masks[0].shape[:-2]
        along = [axis - len(own) for axis, length in enumerate(own) if length > 1]
        arrays = low.constant(masks[0]).reshape(-1, *masks[0].shape[-2:])
        return cls(arrays, *along)


@lru_cache(maxsize=8)  # layers are alike
def _no_masks(queries: int, keys: int) -> _StackMasks:
    return _StackMasks(np.ones((1, queries, keys), bool))


@lowers(CachedAttention)
def lower_cached_attention(low: Lowering, node: Node) -> None:
    """Append the kernel of a few queries to a cache."""
    assert isinstance(node.op, CachedAttention)
    query, key, value, _ = node.inputs
    stack, queries, (keys, depth) = prod(query.shape[:-2]), query.shape[-2], key.shape[-2:]
    sizes = stack, queries, keys, depth, value.shape[-1]
    spec = CachedQueries(*sizes, node.op.scale, node.op.is_safe)
    into = low.dense_result(node.output)

    def emit(asm: Assembler, at: Locations) -> None:
        places = zip((rdi, rsi, rdx, r10, rcx), (*at.reads, *at.writes), strict=True)
        for register, place in places:
            place.point(asm, register)
        at.scratch.point(asm, r8)
        emit_cached_queries(asm, spec)

    flops = 2 * stack * queries * keys * (depth + spec.values)
    reason = f"{stack} x {queries} queries to the filled part of {keys} keys"
    ns = cached_attention_cost(spec, low.target).ns
    facts = Facts(reason, predicted_ns=ns, effective_flops=flops, flops=flops)
    reads, code_key = tuple(map(low.contiguous, node.inputs)), CodeKey("cached attention", spec)
    sides, scratch = (reads, (into,)), spec.scratch_bytes
    name, origin = kernel_name("cached attention", low.target), node.output.origin
    low.add(Step(name, origin, *sides, emit, facts, scratch, code_key=code_key))


class _Operands(NamedTuple):
    """Views that an attention reads and writes; the first axes are the stack."""

    query: View
    key: View
    value: View
    result: View


@lowers(Attention)
def lower_attention(low: Lowering, node: Node) -> None:
    """Append one kernel for all attentions of the stack, or three steps if these are faster."""
    if node in low.feature_major.attentions:
        _lower_by_column(low, low.feature_major.attentions[node])
        return
    _write_permuted(low, node)
    key = _case(low, node)
    known = low.attention_forms.get(key)
    if known is not None:  # layers are alike
        record(known, ATTENTION)
        _WAYS[known.name](low, node)
        return
    trials: dict[str, Lowering] = {}

    def ns_of(form: str) -> float:
        trials[form] = low.trial(node.inputs[:3])
        _WAYS[form](trials[form], node)
        return sum(step.ns for step in trials[form].steps)

    made = plan_attention(AttentionForms(ns_of, low.target, low.options.multiplies_pairs))
    low.attention_forms[key] = made.record()
    if made.name in trials:
        low.adopt(trials[made.name])
    else:
        _WAYS[made.name](low, node)


def _case(low: Lowering, node: Node) -> Hashable:
    """Key with everything that the steps of an attention and their costs depend on."""
    views = [low.view(value) for value in node.inputs[:3]]
    wanted = low.wanted.get(node.output)
    places = [None if view is None else (view.type, view.strides) for view in (*views, wanted)]
    return node.op, *places, node.output.type, *node.inputs[3:]


def _write_permuted(low: Lowering, node: Node) -> None:
    """Let the kernel write results in the order into which their only reader permutes them."""
    readers = low.readers[node.output]
    is_seen = node.output in (*low.wanted, *low.graph.outputs)
    if is_seen or len(readers) != 1 or not isinstance(readers[0].op, Permute):
        return
    place = low.temporary(readers[0].output.type)
    low.wanted[node.output] = place.permuted_back(readers[0].op.axes)


def _lower_together(low: Lowering, node: Node, pairs: bool = False) -> None:
    """Append the one kernel; operands are copied only where rows are not contiguous."""
    assert isinstance(node.op, Attention)
    masks = _StackMasks.of(low, node)
    query, key, value = (_rows(low, operand) for operand in node.inputs[:3])
    result = low.result(node.output, _has_rows)
    kernel = "masked attention" if len(node.inputs) > 3 else "attention"
    form = _KernelForm("attention-pairs" if pairs else kernel, node.op.scale, low.target, pairs)
    low.add(_step(form, node.output.origin, _Operands(query, key, value, result), masks))


def _lower_paired(low: Lowering, node: Node) -> None:
    """Append the one kernel, which multiplies pairs of bfloat16."""
    _lower_together(low, node, pairs=True)


class _KernelForm(NamedTuple):
    """The kernel of an attention, its scale, and whether it multiplies pairs of bfloat16."""

    kernel: str
    scale: float
    target: Target
    pairs: bool


def _step(form: _KernelForm, origin: Origin, views: _Operands, masks: _StackMasks) -> Step:
    places = tuple(view.place for view in views)
    stack, tiles, facts, scratch, key = _planned(places, masks, form)

    def emit(asm: Assembler, at: Locations) -> None:
        for register, location in zip((rdi, rsi, rdx, rcx), (*at.reads, *at.writes), strict=True):
            location.point(asm, register)
        at.scratch.point(asm, r8)
        emit_attention(asm, stack, tiles)

    def divide(threads: int) -> list[list[Step]]:
        ways = ways_to_cut(views.result.shape, threads, uncut=1)
        return [[*map(some, parts)] for parts in ways if not _cuts_masks(parts[0], masks)]

    def some(part: ShapePart) -> Step:
        """The step for a part of the stack, or for a part of all queries."""
        parts, own = _Operands(*map(part.of, views)), masks
        if part.axis == len(part.whole) - 2:
            parts = views._replace(query=part.of(views.query), result=part.of(views.result))
            own = replace(masks, arrays=masks.arrays[:, part.first : part.end])
        return replace(_step(form, origin, parts, own), share=part.share)

    sides = views[:3], views[3:]
    return Step(form.kernel, origin, *sides, emit, facts, scratch, divide=divide, code_key=key)


@lru_cache(maxsize=8)  # layers are alike
def _planned(
    places: tuple[StridedShape, ...], masks: _StackMasks, form: _KernelForm
) -> tuple[AttentionStack, AttentionTiles, Facts, int, CodeKey]:
    """The stack, its tiles, its facts, its bytes of scratch memory and its code key."""
    query, key, value, result = places
    target, packed = form.target, packed_pitch(value.shape[-1], form.target)
    copied = {"paired_key": paired_pitch(query.shape[-1]), "paired_value": packed}
    pitches = Pitches(*(place.strides[-2] for place in places), **copied)
    often = _readings(masks, value.shape[-1], target) >= _TO_PACK
    copies = often and pitches.value != packed and not form.pairs
    packed_from = pitches.value if copies else 0
    sizes = key.shape[-2], query.shape[-1], value.shape[-1], form.scale
    axes = _axes(result.shape[:-2], places, masks.axis)
    stack = AttentionStack(*sizes, axes, packed_from, form.pairs)
    pitches = replace(pitches, value=packed) if packed_from else pitches
    tiles = AttentionTiles.of(masks.arrays, pitches, target, form.pairs)
    facts = _facts(stack, tiles, masks, target)
    code_key = CodeKey("attention", stack, tiles.numbers.tobytes())
    return stack, tiles, facts, stack.scratch_bytes(tiles, target), code_key


def _cuts_masks(part: ShapePart, masks: _StackMasks) -> bool:
    """Whether a part of the stack has only some of an attention's several masks."""
    return len(masks.arrays) > 1 and part.axis == len(part.whole) - 2 + masks.axis


def _lower_apart(low: Lowering, node: Node) -> None:
    """Append the product for scores, their softmax, and the product of weights and values."""
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
    """Append the three steps with scores (keys, queries): queries and their padding are lanes."""
    query, key, value = (found.operand(n, low.by_feature(v)) for n, v in enumerate(found.roots))
    result, origin = found.result(low.result_by_feature(found.sink)), found.sink.origin
    assert query and key and value and result and isinstance(found.node.op, Attention)
    low.bind(found.node.output, result)
    (*stack, tokens, _), keys, lanes = result.shape, key.shape[-2], low.target.lanes
    columns = round_up(tokens, lanes) if found.is_one_sample else tokens
    kind = TensorType((*stack, keys, columns))
    scores, weights = low.temporary(kind), low.temporary(kind)
    ends = origin, low.target
    queries, results = _of_tokens(query, columns), _of_tokens(result, columns)
    low.add(product_of_views(key, queries.turned(), scores, False, found.node.op.scale, *ends))
    softmax = row_chains.softmax((*stack, columns, keys))
    low.add_chain(softmax, [scores.turned()], [None], [weights.turned()], origin)
    low.add(product_of_views(value.turned(), weights, results.turned(), False, 1.0, *ends))


def _of_tokens(view: View, tokens: int) -> View:
    """The view (..., tokens, features) made longer, to `tokens` tokens in the memory behind it."""
    shape = (*view.shape[:-2], tokens, view.shape[-1])
    return replace(view, type=replace(view.type, shape=shape))


_WAYS: dict[str, Callable[[Lowering, Node], None]] = {
    ONE_KERNEL: _lower_together,
    PAIRS: _lower_paired,
    SEVERAL_STEPS: _lower_apart,
}


def _constant(values: npt.ArrayLike) -> View:
    array = np.asarray(values, np.float32)
    return View.whole(ConstantBuffer.of(array), TensorType(array.shape))


def _readings(masks: _StackMasks, values: int, target: Target) -> float:
    """Number of times that each value vector is read, by all tiles of queries together."""
    rows = tile_width(masks.arrays, target) * target.lanes
    return masks.share * masks.arrays.shape[1] / rows * readings(rows, values, target)


def _rows(low: Lowering, value: Value) -> View:
    view = low.view(value)
    return view if _has_rows(view) else low.contiguous(value)


def _has_rows(view: View) -> bool:
    """Whether the last axis is contiguous."""
    return view.shape[-1] == 1 or view.strides[-1] == _FLOAT


def _axes(
    stack: tuple[int, ...], places: tuple[StridedShape, ...], last: int
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Length of each stack axis, and the views' byte strides along it; axis `last` comes last."""
    strides = [place.moves(stack) for place in places]
    axes = list(zip(stack, *strides, strict=True))
    if axes:
        axes.append(axes.pop(last))
    return tuple((length, tuple(moves)) for length, *moves in axes if length > 1)


def _facts(
    stack: AttentionStack, tiles: AttentionTiles, masks: _StackMasks, target: Target
) -> Facts:
    count = prod(length for length, _ in stack.axes)
    queries, keys = masks.arrays.shape[1:]
    reason = f"{count} attentions of {queries} queries to {keys} keys"
    if not masks.arrays.all():
        looked = tiles.all_keys * tiles.rows / masks.arrays.size
        reason += (
            f", the mask allows {masks.share:.1%} of the pairs, and tiles of {tiles.rows} queries "
            f"compute {looked:.1%}"
        )
    effective = 2 * count * queries * keys * (stack.depth + stack.values)
    cost = attention_cost(stack, tiles, target)
    return Facts(
        reason,
        cost.ns,
        effective_flops=effective,
        flops=2 * target.lanes * stack.together * cost.steps,
        bound="execution",
    )
