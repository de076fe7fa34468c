"""Products of activations with each other: a loop over the stack around one dense kernel.

Matrices are read in place at any pitch, such as the heads of attention within their tokens. Where
a model is in bfloat16, products before and behind a softmax round them to pairs of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from sparsejit.asm_templates.dense_product.few_rows import has_few_rows
from sparsejit.asm_templates.dense_product.pairs import both_fit_stack
from sparsejit.asm_templates.dense_product.tiled_product import emit_dense_product
from sparsejit.asm_templates.dense_product.tiling import widest_strip
from sparsejit.asm_templates.shared.location import Location
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.pointwise import Chain
from sparsejit.ir.ops.products import Bmm
from sparsejit.ir.spec import DenseProduct
from sparsejit.ir.values import Origin, TensorType, Value
from sparsejit.lowering.context import Lowering, lowers
from sparsejit.lowering.memory.storage import ShapePart, StridedShape, View, ways_to_cut
from sparsejit.lowering.step import CodeKey, Facts, Locations, Step
from sparsejit.machine.target import Target
from sparsejit.planner.attention_plan import is_worth_rounding
from sparsejit.planner.cost import dense_product_ns
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, rax, rcx, rdi, rdx, rsi

_FLOAT, _COUNTER = 4, 8
_OPERANDS = (rdi, rdx, rsi)


@dataclass(frozen=True)
class StackAxis:
    """`length` products along an axis, and the byte strides of A, B and C from one to the next."""

    length: int
    moves: tuple[int, int, int]


@dataclass(frozen=True)
class StackedProduct:
    """One product for every index of a stack, whose axes are in order from the outermost."""

    each: DenseProduct
    axes: tuple[StackAxis, ...]

    @property
    def count(self) -> int:
        return prod(axis.length for axis in self.axes)


@lowers(Bmm)
def lower_bmm(low: Lowering, node: Node) -> None:
    """Append all products of a stack, with copies of operands that the kernel cannot read.

    An operand is copied if neither axis of its matrices is contiguous; the right one also if it is
    stored as (columns, depth) and a strip of it would not fit the machine stack.
    """
    op, (left, right) = node.op, node.inputs
    assert isinstance(op, Bmm)
    view = low.view(left)
    a = view if _is_matrix(view) or _is_matrix(view.turned()) else low.contiguous(left)
    b, transposed = _right(low, right, op.transposed)
    c = low.result(node.output, _is_matrix)
    pairs = _may_round(low, node) and _gains_by_pairs(
        stacked(a, b, c, transposed, op.scale).each, low.target
    )
    ends = node.output.origin, low.target, pairs
    low.add(product_of_views(a, b, c, transposed, op.scale, *ends))


def _may_round(low: Lowering, node: Node) -> bool:
    """Whether a product may round its operands: it makes the scores or the results of attention."""
    before, readers = low.producers.get(node.inputs[0]), low.readers.get(node.output, [])
    chains = [each for each in (before, *readers) if each is not None]
    return low.options.multiplies_pairs and any(map(_is_softmax, chains))


def _is_softmax(node: Node) -> bool:
    if not isinstance(node.op, Chain):
        return False
    kinds = [step.kind for step in node.op.steps]
    return {"row_max", "exp", "row_sum"} <= set(kinds) and "log" not in kinds


def _gains_by_pairs(product: DenseProduct, target: Target) -> bool:
    """Whether a product is worth rounding, and has room on the stack."""
    pairs = replace(product, together=2)
    if product.a_transposed or has_few_rows(product, target) or not both_fit_stack(pairs, target):
        return False
    return is_worth_rounding(*(dense_product_ns(each, target) for each in (pairs, product)))


def product_of_views(
    a: View,
    b: View,
    c: View,
    transposed: bool,
    scale: float,
    origin: Origin,
    target: Target,
    pairs: bool = False,
) -> Step:
    """The step C = scale * A B for every index of a stack; either axis of A may be contiguous.

    With `pairs`, A and B are rounded to bfloat16.
    """
    product = stacked(a, b, c, transposed, scale)
    if pairs:
        product = replace(product, each=replace(product.each, together=2))

    def emit(asm: Assembler, at: Locations) -> None:
        for register, location in zip(_OPERANDS, (*at.reads, *at.writes), strict=True):
            location.point(asm, register)
        _emit_axes(asm, product.axes, at.scratch, lambda: emit_dense_product(asm, product.each))

    def divide(threads: int) -> list[list[Step]]:
        return [[*map(some, parts)] for parts in ways_to_cut(c.shape, threads, uncut=1)]

    def some(part: ShapePart) -> Step:
        """The step for a part of the stack, or for some rows of every A."""
        by_rows = part.axis == len(c.shape) - 2
        right = b if by_rows else part.of(b)
        views = part.of(a), right, part.of(c)
        made = product_of_views(*views, transposed, scale, origin, target, pairs)
        return replace(made, share=part.share)

    facts, key = _planned(product, target)
    scratch = _COUNTER * len(product.axes)
    operands = (a, b), (c,)
    kernel = "paired dense product" if pairs else "dense product"
    return Step(kernel, origin, *operands, emit, facts, scratch, divide=divide, code_key=key)


@lru_cache(maxsize=64)  # layers are alike
def _planned(product: StackedProduct, target: Target) -> tuple[Facts, CodeKey]:
    """The facts and the code key of a product."""
    return _facts(product, target), CodeKey("dense products", product)


def stacked(a: View, b: View, c: View, transposed: bool, scale: float) -> StackedProduct:
    """The product C = scale * A B for each index of a stack, from views; stack axes are merged.

    A, B and C have a contiguous axis each; `transposed`: whether B is stored as (columns, depth).
    """
    a_transposed = not _is_matrix(a)
    left = a.turned() if a_transposed else a
    return _stacked(left.place, b.place, c.place, a_transposed, transposed, scale)


@lru_cache(maxsize=64)  # layers are alike
def _stacked(
    a: StridedShape,
    b: StridedShape,
    c: StridedShape,
    a_transposed: bool,
    transposed: bool,
    scale: float,
) -> StackedProduct:
    """The product of `stacked`, from shapes and strides of the matrices as they are stored."""
    rows, columns = c.shape[-2:]
    depth = a.shape[-2 if a_transposed else -1]
    stack = c.shape[:-2]
    strides = [place.moves(stack) for place in (a, b, c)]
    axes: list[StackAxis] = []
    for length, *moves in zip(stack, *strides, strict=True):
        if length == 1:
            continue
        axis = StackAxis(length, (moves[0], moves[1], moves[2]))
        if axes and axes[-1].moves == tuple(length * move for move in axis.moves):
            axis = StackAxis(length * axes.pop().length, axis.moves)
        axes.append(axis)
    a_pitch, b_pitch, c_pitch = map(_pitch, (a, b, c))
    a_row = _FLOAT if a_transposed else a_pitch
    if axes and axes[-1].moves == (rows * a_row, 0, rows * c_pitch):
        rows *= axes.pop().length  # all share one B: the matrices A form one tall matrix
    sizes, pitches = (rows, columns, depth), (a_pitch, b_pitch, c_pitch)
    each = DenseProduct(*sizes, *pitches, transposed, scale, a_transposed=a_transposed)
    return StackedProduct(each, tuple(axes))


def _right(low: Lowering, value: Value, transposed: bool) -> tuple[View, bool]:
    """The view of B, and whether it is stored as (columns, depth)."""
    view = low.view(value)
    if not _is_matrix(view) and _is_matrix(view.turned()):
        view, transposed = view.turned(), not transposed
    elif not _is_matrix(view):
        view = low.contiguous(value)
    columns, depth = view.shape[-2:]
    if transposed and widest_strip(_transposed_right(columns, depth), low.target) == 0:
        turned = view.turned()
        view, transposed = low.temporary(TensorType(turned.shape)), False
        low.copy(turned, view, value.origin)
    return view, transposed


def _transposed_right(columns: int, depth: int) -> DenseProduct:
    return DenseProduct.contiguous(1, columns, depth, transposed=True)


def _is_matrix(view: View) -> bool:
    """Whether the last two axes are a matrix that a dense product takes: rows are contiguous."""
    rows, columns = view.shape[-2:]
    pitch, step = view.strides[-2:]
    return (columns == 1 or step == _FLOAT) and (rows == 1 or pitch >= _FLOAT * columns)


def _pitch(place: StridedShape) -> int:
    """Bytes from row to row; the bytes of the row if there is only one."""
    rows, columns = place.shape[-2:]
    return place.strides[-2] if rows > 1 else _FLOAT * columns


def _emit_axes(
    asm: Assembler, axes: tuple[StackAxis, ...], counters: Location, body: Callable[[], None]
) -> None:
    """Append loops that run `body` for all of a stack, and restore the operands' registers."""
    if not axes:
        body()
        return
    axis, *inner = axes
    counter = Memory(rax, _COUNTER * len(inner))
    counters.point(asm, rax)
    asm.emit("mov", rcx, axis.length)
    asm.emit("mov", counter, rcx)
    again = asm.label("next of stack")
    asm.bind(again)
    _emit_axes(asm, tuple(inner), counters, body)
    _move(asm, axis.moves)
    counters.point(asm, rax)
    asm.emit("mov", rcx, counter)
    asm.emit("sub", rcx, 1)
    asm.emit("mov", counter, rcx)
    asm.jump("jnz", again)
    _move(asm, tuple(-axis.length * move for move in axis.moves))


def _move(asm: Assembler, moves: tuple[int, ...]) -> None:
    for register, move in zip(_OPERANDS, moves, strict=True):
        if move:
            asm.emit("add", register, move)


def _facts(product: StackedProduct, target: Target) -> Facts:
    each, count = product.each, product.count
    flops = 2 * count * each.rows * each.columns * each.depth
    reason = f"{count} dense products {each.rows}x{each.depth} by {each.depth}x{each.columns}"
    ns = count * dense_product_ns(each, target)
    return Facts(reason, ns, effective_flops=flops, flops=flops, bound="execution")
