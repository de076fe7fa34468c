"""Lower view operators, which cost nothing where strides describe the result, else a copy."""

from sparsejit.ir.operator import Node
from sparsejit.ir.ops.views import Concat, Expand, Pad, Permute, Reshape, Slice
from sparsejit.lowering.context import Lowering, lowers
from sparsejit.lowering.memory.storage import concat_parts


@lowers(Reshape)
def lower_reshape(low: Lowering, node: Node) -> None:
    """Bind the result to a view of the operand; copy elements if no strides describe it."""
    assert isinstance(node.op, Reshape)
    (x,) = node.inputs
    view = low.view(x).reshaped(node.op.shape) or low.contiguous(x).reshaped(node.op.shape)
    assert view is not None
    low.bind(node.output, view)


@lowers(Permute)
def lower_permute(low: Lowering, node: Node) -> None:
    """Bind the result to a view of the operand with its axes permuted; nothing is copied."""
    assert isinstance(node.op, Permute)
    low.bind(node.output, low.view(node.inputs[0]).permuted(node.op.axes))


@lowers(Slice)
def lower_slice(low: Lowering, node: Node) -> None:
    """Bind the result to a view of a part of the operand; nothing is copied."""
    op = node.op
    assert isinstance(op, Slice)
    view = low.view(node.inputs[0])
    low.bind(node.output, view.sliced(op.axis % len(view.shape), op.first, op.end, op.step))


@lowers(Expand)
def lower_expand(low: Lowering, node: Node) -> None:
    """Bind the result to a view of the operand with strides of 0; nothing is copied."""
    assert isinstance(node.op, Expand)
    low.bind(node.output, low.view(node.inputs[0]).expanded(node.op.shape))


@lowers(Concat)
def lower_concat(low: Lowering, node: Node) -> None:
    """Append copies of operands to their parts of the result, unless they were written there."""
    assert isinstance(node.op, Concat)
    view = low.result(node.output)
    for part, operand in zip(concat_parts(node, view), node.inputs, strict=True):
        if operand.type.size and not low.is_in(operand, part):
            low.copy(low.view(operand), part, node.output.origin)


@lowers(Pad)
def lower_pad(low: Lowering, node: Node) -> None:
    """Append a copy of the operand to the middle; write the value around it, axis by axis."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Pad)
    view, origin = low.result(node.output), node.output.origin
    low.surround(view, low.view(x), op.widths, op.value, origin)
