"""ONNX's sequences of tensors, of known length: graphs hold their tensors, and no sequence.

    SplitToSequence(x) -> s of 3; SequenceAt(s, 1)  ->  the second part of x
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.frontends.onnx.call import Call, operator_of, plain
from sparsejit.frontends.onnx.inference import Inference
from sparsejit.frontends.writing import arranging, views
from sparsejit.frontends.writing.writer import Unmapped, Writer, element_of
from sparsejit.ir.dtypes import Dtype
from sparsejit.ir.values import Array, Value, axis_of

if TYPE_CHECKING:
    from onnx import NodeProto

# A tensor, and the dtype that the file has of it, if that is known.
Item = tuple[Value | Array, "Dtype | None"]


@dataclass(frozen=True)
class TensorSequence:
    """A sequence of ONNX: its tensors in order, with their dtypes."""

    items: tuple[Item, ...]

    def place(self, call: Call, operand: int, what: str, count: int) -> int:
        """The place of a tensor in the sequence that an operand names; by default the last one.

        `count` is the number of places. Raises Unmapped for a place outside of them.
        """
        if not call.has(operand):
            return count - 1
        place = call.number(operand, what)
        if not -count <= place < count:
            raise Unmapped(f"its {what} is {place}, outside the length {count}")
        return place % count


Mapped = Callable[[Writer, Call, Sequence[Any], "tuple[Dtype | None, ...]"], Any]


def _items(given: Sequence[Any], place: int = 0) -> TensorSequence:
    if not isinstance(given[place], TensorSequence):
        raise Unmapped(f"operand {place} is not a sequence of known length")
    return given[place]


def _construct(write: Writer, call: Call, given: Sequence[Any], dtypes: Any) -> TensorSequence:
    return TensorSequence(tuple(zip(given, dtypes, strict=True)))


def _empty(write: Writer, call: Call, given: Sequence[Any], dtypes: Any) -> TensorSequence:
    return TensorSequence(())


def _at(write: Writer, call: Call, given: Sequence[Any], dtypes: Any) -> Item:
    held = _items(given)
    return held.items[held.place(call, 1, "position", len(held.items))]


def _insert(write: Writer, call: Call, given: Sequence[Any], dtypes: Any) -> TensorSequence:
    held = _items(given)
    place = held.place(call, 2, "position", len(held.items) + 1)
    return TensorSequence((*held.items[:place], (given[1], dtypes[1]), *held.items[place:]))


def _erase(write: Writer, call: Call, given: Sequence[Any], dtypes: Any) -> TensorSequence:
    held = _items(given)
    place = held.place(call, 1, "position", len(held.items))
    return TensorSequence(held.items[:place] + held.items[place + 1 :])


def _length(write: Writer, call: Call, given: Sequence[Any], dtypes: Any) -> Array:
    return np.asarray(len(_items(given).items))


def _concatenate(write: Writer, call: Call, given: Sequence[Any], dtypes: Any) -> Item:
    (dtype, *others), tensors = _apart(write, _items(given))
    if any(other != dtype for other in others):
        raise Unmapped("has tensors of several dtypes")
    join = views.stack if call.flag("new_axis") else views.concatenate
    return join(write, tensors, call.attribute("axis")), dtype


def _apart(write: Writer, held: TensorSequence) -> tuple[list[Any], list[Value]]:
    """The dtypes of a sequence's tensors, and the tensors as values. Raises Unmapped for none."""
    if not held.items:
        raise Unmapped("has no tensors")
    tensors = [write.value(plain(x) if isinstance(x, np.ndarray) else x) for x, _ in held.items]
    return [dtype for _, dtype in held.items], tensors


def _split(write: Writer, call: Call, given: Sequence[Any], dtypes: Any) -> TensorSequence:
    """Parts of one length, where the last may be shorter, or of given lengths; else of length 1."""
    x = call.value(write, 0)
    axis = axis_of(call.attribute("axis", 0), len(x.shape))
    length = x.shape[axis]
    if not call.has(1):
        parts = views.cut(write, x, [1] * length, axis)
        if not call.flag("keepdims", True):
            parts = [arranging.at(write, part, axis, 0) for part in parts]
    elif call.known(1, "split").ndim:
        lengths = call.numbers(1, "split")
        if sum(lengths) != length or min(lengths, default=0) < 0:
            raise Unmapped(f"its parts are {lengths}, whose sum is not {length}")
        parts = views.cut(write, x, lengths, axis)
    else:
        step = call.number(1, "split")
        if step < 1:
            raise Unmapped(f"its parts are of {step}")
        parts = views.split(write, x, step, axis)
    return TensorSequence(tuple((part, dtypes[0]) for part in parts))


def _same(write: Writer, call: Call, given: Sequence[Any], dtypes: Any) -> TensorSequence:
    return _items(given)


_ROWS: Mapping[str, Mapped] = {
    "ConcatFromSequence": _concatenate,
    "Identity": _same,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}


def is_of_sequences(node: NodeProto, operands: Sequence[Any]) -> bool:
    """Whether a node makes or reads a sequence."""
    makes = operator_of(node) in _ROWS and node.op_type != "Identity"
    return makes or any(isinstance(x, TensorSequence) for x in operands)


def through_sequences(
    write: Writer, inference: Inference, node: NodeProto, operands: Sequence[Any], call: Call
) -> list[Any]:
    """The result of a node on sequences. Raises Unmapped for operators without a row."""
    if operator_of(node) not in _ROWS:
        raise Unmapped("reads a sequence of tensors")
    dtypes = tuple(
        x.dtype if isinstance(x, np.ndarray) else inference.dtype(name)
        for name, x in zip(node.input, operands, strict=True)
    )
    made = _ROWS[node.op_type](write, call, operands, dtypes)
    if not isinstance(made, tuple):
        return [made]
    result, dtype = made
    if dtype is not None:
        inference.name_as(node.output[0], dtype)
        if isinstance(result, Value) and result.type.element is element_of(dtype):
            result = write.noted(result, dtype)
    return [result]
