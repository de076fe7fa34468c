"""A node of an ONNX graph as mappings see it: operands, attributes, and the opset.

    Call                      the node
    names_of, own_constants   graphs within nodes: the names of their values, and their constants
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.frontends.onnx.reading import tensors_of
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.dtypes import within_float32
from sparsejit.ir.values import Array, Element, Value

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

    from sparsejit.frontends.onnx.words import Words

# Elements that graphs hold, by the kind of a numpy dtype.
ELEMENTS = {
    "b": Element.BOOL,
    "i": Element.INT64,
    "u": Element.INT64,
    "f": Element.FLOAT32,
}
# A value of the graph, or an array that is known now; None where an operand was left out.
Operand = Value | Array | None


class Call:
    """One node. Known operands are arrays in ONNX's own dtypes until something reads them."""

    def __init__(
        self,
        node: NodeProto,
        operands: Sequence[Operand],
        attributes: Mapping[str, Any],
        opset: int,
        constants: dict[int, tuple[Array, Value]],
        is_read_as_float: bool = False,
    ) -> None:
        # Whether each reader of the results casts them to floats.
        self.is_read_as_float = is_read_as_float
        self.operator, self.outputs = node.op_type, len(node.output)
        self.opset = opset
        self._names = list(node.input)
        self._operands, self._attributes, self._constants = operands, attributes, constants
        # The file's strings, the places of operands that stand for some, and float64 values.
        self.words: Words | None = None
        self.texts: frozenset[int] = frozenset()
        self.doubles: Mapping[Value, Value] = {}

    def __len__(self) -> int:
        return len(self._operands)

    def as_of(self, operator: str, others: Mapping[int, Operand], count: int) -> Call:
        """A call of another operator with the first `count` operands, some replaced by `others`."""
        made = copy(self)
        made.operator = operator
        given = [self.operand(place) for place in range(count)]
        made._operands = [others.get(place, x) for place, x in enumerate(given)]
        return made

    def name(self, place: int) -> str:
        """Name of an operand in the file."""
        return self._names[place] if place < len(self._names) else ""

    def has(self, place: int) -> bool:
        """Whether that operand is given."""
        return place < len(self._operands) and self._operands[place] is not None

    def operand(self, place: int) -> Operand:
        """The operand as it is, None where it was left out."""
        return self._operands[place] if self.has(place) else None

    def value(self, write: Writer, place: int) -> Value:
        """The operand as a value of the graph. Raises Unmapped where it was left out."""
        operand = self.operand(place)
        if operand is None:
            raise Unmapped(f"operand {place} is missing")
        if isinstance(operand, Value):
            return operand
        if id(operand) not in self._constants:  # each becomes a value once
            made = write.constant(plain(operand), self._names[place])
            self._constants[id(operand)] = operand, made
        return self._constants[id(operand)][1]

    def values(self, write: Writer) -> list[Value]:
        """All operands, which must be given."""
        return [self.value(write, place) for place in range(len(self))]

    def optional(self, write: Writer, place: int) -> Value | None:
        """The operand as a value where it is given."""
        return self.value(write, place) if self.has(place) else None

    def known(self, place: int, what: str) -> Array:
        """Return an operand that must be known now. Raises Unmapped, which calls it `what`."""
        operand = self.operand(place)
        if not isinstance(operand, np.ndarray):
            raise Unmapped(f"its {what} is not known before the model runs")
        return operand

    def numbers(self, place: int, what: str) -> list[int]:
        """A known operand of whole numbers. Raises Unmapped where it holds others."""
        array = self.known(place, what).reshape(-1)
        is_whole = array.dtype.kind in "iu" or (array.dtype.kind == "f" and np.all(array % 1 == 0))
        if not is_whole:
            raise Unmapped(f"its {what} is {array.tolist()}, not whole numbers")
        return [int(n) for n in array]

    def number(self, place: int, what: str) -> int:
        """A known operand of one whole number."""
        numbers = self.numbers(place, what)
        if len(numbers) != 1:
            raise Unmapped(f"its {what} is {numbers}, not one number")
        return numbers[0]

    def double(self, write: Writer, place: int) -> Value:
        """The operand in float64 where the model has it so, else as `value` gives it."""
        value = self.value(write, place)
        return self.doubles.get(value, value)

    def numbers_of(self, texts: Iterable[Any]) -> Array:
        """The numbers that stand for strings of the file."""
        if self.words is None:
            raise Unmapped("has strings")
        return self.words.of_texts(texts)

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute as Python holds it."""
        return self._attributes.get(name, default)

    def choice(self, name: str, known: Sequence[str]) -> str:
        """An attribute of these, by default the first. Raises Unmapped for any other."""
        chosen = self.attribute(name, known[0])
        if chosen not in known:
            raise Unmapped(f"its {name} is {chosen!r}, not one of {', '.join(known)}")
        return str(chosen)

    def flag(self, name: str, default: bool = False) -> bool:
        """An attribute that is 0 or 1. Raises Unmapped for any other."""
        number = self.attribute(name, int(default))
        if number not in (0, 1):
            raise Unmapped(f"its {name} is {number}, not 0 or 1")
        return bool(number)

    def axes(self, place: int, since: int) -> list[int] | None:
        """Axes: an operand from opset `since` on, an attribute before; None if left out."""
        if self.opset >= since:
            return self.numbers(place, "axes") if self.has(place) else None
        given = self.attribute("axes")
        return None if given is None else list(given)


def operator_of(node: NodeProto) -> str:
    """The operator's name with its domain; for ONNX's own operators the name alone."""
    is_own = node.domain in ("", "ai.onnx")
    return str(node.op_type) if is_own else f"{node.domain}.{node.op_type}"


def plain(array: Array) -> Array:
    """An array in a dtype that graphs hold: floats as float32, integers as int64.

    Numbers of float64 beyond float32 become its largest.
    """
    if array.dtype.kind not in ELEMENTS and "float" not in array.dtype.name:
        raise Unmapped(f"has the dtype {array.dtype}")
    held = within_float32(array)
    return np.asarray(held, ELEMENTS.get(array.dtype.kind, Element.FLOAT32).value)


def names_of(values: Iterable[Any]) -> list[str]:
    """The names of declared values."""
    return [str(each.name) for each in values]


def own_constants(region: GraphProto, outside: Mapping[str, Operand]) -> dict[str, Array]:
    """The initialisers of a graph within a node.

    Raises Unmapped for one with the name of another value around the graph: names in ONNX must
    differ throughout, and ONNX Runtime takes the outer value.
    """
    found = tensors_of(region)
    for name, array in found.items():
        other = outside.get(name)
        if other is not None and not (isinstance(other, np.ndarray) and _is_same(array, other)):
            raise Unmapped(
                f"{region.name or 'a graph'} within it has a constant {name}, the "
                "name of a value around it; give the constant another name"
            )
    return found


def _is_same(array: Array, other: Array) -> bool:
    alike = array.dtype == other.dtype and array.shape == other.shape
    return alike and array.tobytes() == other.tobytes()
