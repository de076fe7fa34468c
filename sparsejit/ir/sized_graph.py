"""One graph for all lengths of a size, derived from the graphs of three lengths.

Every whole number in the graphs must be equal, or a linear function of the length: two lengths
give the function, the third checks it. Constants that grow must begin alike. That is no proof: the
caller must know that the model's sizes are polynomials of the length.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.values import Array, TensorType, Value

TELLING = 3  # lengths for a rule: two determine it, the third must confirm it
_COMPARED = 3  # constants of the first graph with which each constant of another is compared


class _DiffersError(Exception):
    """The graphs differ by more than a length."""


class _Proportion(NamedTuple):
    """A whole number: `at_0 + slope * length`."""

    at_0: int
    slope: int

    def at(self, length: int) -> int:
        return self.at_0 + self.slope * length


@dataclass(frozen=True, eq=False)
class _Record:
    """The rule of a dataclass: an example, and the rules of its fields that depend on the length.

    Equal records are one object.
    """

    example: Any
    changed: Mapping[str, Any]


class _SizedConstant(NamedTuple):
    """A constant that grows: its array for a length is the beginning of `longest`."""

    example: Array
    longest: Array
    shape: tuple[_Proportion | int, ...]

    def at(self, length: int) -> Array | None:
        shape = tuple(_at(each, length) for each in self.shape)
        for array in (self.example, self.longest):
            if all(own <= has for own, has in zip(shape, array.shape, strict=True)):
                return np.ascontiguousarray(_beginning(array, shape))
        return None


class SizedGraph:
    """A graph whose sizes depend on one length."""

    def __init__(self, graphs: Sequence[Graph], lengths: Sequence[int]) -> None:
        """Compare graphs of three lengths; constants that do not grow are the first graph's.

        Raises ValueError where the graphs differ in more than one length.
        """
        if len(graphs) != len(lengths) or len({*lengths}) < TELLING:
            raise ValueError(f"a rule needs graphs of {TELLING} lengths")
        self._first = graphs[0]
        self.lengths = tuple(lengths)
        self._types: dict[Value, Any] = {}
        self._twins: dict[Value, Value] = {}  # values of the other graphs to values of the first
        self._constants: dict[Value, _SizedConstant] = {}
        self._records: dict[Hashable, _Record] = {}
        try:
            self._compare(graphs)
        except _DiffersError as error:
            raise ValueError("the graphs differ in more than one length") from error

    def at(self, length: int) -> Graph | None:
        """The graph of a length; None where it must be made from the model.

        That is so where a constant is longer than the longest seen, or an operator makes other
        types of its operands than the rule says, such as a slice that leaves its axis.
        """
        known: dict[Value, Value] = {}
        constants: dict[Value, tuple[Value, Array]] = {}
        for value, sized in self._constants.items():
            array = sized.at(length)
            if array is None:
                return None
            known[value] = Value(replace(value.type, shape=array.shape), value.origin)
            constants[value] = known[value], array

        made: dict[_Record, Any] = {}

        def own(value: Value) -> Value:
            if value not in known:
                kind = self._types.get(value)
                known[value] = value if kind is None else Value(of(kind), value.origin)
            return known[value]

        def of(sized: Any) -> Any:
            if type(sized) is not _Record:
                return sized
            if sized not in made:
                made[sized] = _at(sized, length)
            return made[sized]

        nodes = [
            Node(of(op), tuple(map(own, node.inputs)), tuple(map(own, node.outputs)))
            for op, node in zip(self._ops, self._first.nodes, strict=True)
        ]
        if not all(map(_is_valid, nodes)):
            return None
        first = self._first
        inputs, outputs = (tuple(map(own, side)) for side in (first.inputs, first.outputs))
        own_constants = _Constants(first.constants, constants)
        return replace(
            first, inputs=inputs, outputs=outputs, nodes=tuple(nodes), constants=own_constants
        )

    @property
    def graphs(self) -> list[Graph]:
        """The graphs of the lengths it was made from; they share constants that do not grow."""
        made = [self.at(length) for length in self.lengths]
        return [graph for graph in made if graph is not None]

    def beside(self, graph: Graph) -> SizedGraph:
        """The same rule, which takes the arrays of constants that `graph` has too from there."""
        first, changed = self._first, copy(self)
        taken = frozenset(value for value in first.constants if value in graph.constants)
        others = {value: a for value, a in first.constants.items() if value not in taken}
        joined = _Joined(graph.constants, taken, others, tuple(first.constants))
        changed._first = replace(first, constants=joined)
        return changed

    def _compare(self, graphs: Sequence[Graph]) -> None:
        first, *others = graphs
        self._pair(*(graph.inputs for graph in graphs))
        if len({len(graph.nodes) for graph in graphs}) > 1:
            raise _DiffersError
        self._ops: list[Any] = []
        for nodes in zip(*(graph.nodes for graph in graphs), strict=True):
            self._ops.append(self._sized([node.op for node in nodes]))
            self._pair(*(node.inputs for node in nodes))
            self._pair(*(node.outputs for node in nodes))
        self._pair(*(graph.outputs for graph in graphs))
        if len(set(self._twins.values())) * len(others) != len(self._twins):
            raise _DiffersError  # two values of one graph are one in another
        twins = [{self._twins.get(its): its for its in graph.constants} for graph in others]
        if any(set(each) != set(first.constants) for each in twins):
            raise _DiffersError
        for value, array in first.constants.items():
            theirs = zip(others, twins, strict=True)
            self._constant(value, [array, *(graph.constants[of[value]] for graph, of in theirs)])

    def _pair(self, *sides: tuple[Value, ...]) -> None:
        if len({len(side) for side in sides}) > 1:
            raise _DiffersError
        for first, *others in zip(*sides, strict=True):
            for other in others:
                if self._twins.setdefault(other, first) is not first:
                    raise _DiffersError
            kind = self._sized([value.type for value in (first, *others)])
            if isinstance(kind, _Record):
                self._types[first] = kind

    def _constant(self, value: Value, arrays: Sequence[Array]) -> None:
        shape = self._sized([array.shape for array in arrays])
        longest = max(arrays, key=lambda array: array.size)
        for array in arrays:
            if any(own > has for own, has in zip(array.shape, longest.shape, strict=True)):
                raise _DiffersError
            if not _alike(array, _beginning(longest, array.shape)):
                raise _DiffersError
        if any(isinstance(each, _Proportion) for each in shape):
            self._constants[value] = _SizedConstant(arrays[0], longest.copy(), shape)

    def _sized(self, examples: Sequence[Any]) -> Any:
        """The rule for numbers, tuples, records or arrays that are alike but for the length.

        The first example itself where all are equal. Raises _DiffersError where no rule gives them
        all.
        """
        first, *others = examples
        if any(type(other) is not type(first) for other in others):
            raise _DiffersError
        if isinstance(first, int) and not isinstance(first, bool):
            return self._line(examples)
        if isinstance(first, tuple) and not hasattr(first, "_fields"):
            if len(set(map(len, examples))) > 1:
                raise _DiffersError
            parts = tuple(self._sized(each) for each in zip(*examples, strict=True))
            return first if _is_fixed(parts) else parts
        if is_dataclass(first) and not isinstance(first, type):
            return self._record(examples)
        if isinstance(first, np.ndarray):
            equal = all(_alike(first, other) for other in others)
        else:
            equal = all(first is other or first == other for other in others)
        if not equal:
            raise _DiffersError
        return first

    def _record(self, examples: Sequence[Any]) -> Any:
        first, changed = examples[0], {}
        for field in fields(first):
            own = [getattr(each, field.name) for each in examples]
            sized = self._sized(own)
            if not _is_fixed(sized):
                changed[field.name] = sized
        return self._one_of(_Record(first, changed)) if changed else first

    def _one_of(self, record: _Record) -> _Record:
        """An equal record that was made before, else this one."""
        try:  # the text has the fields that comparisons leave out
            key = record.example, repr(record.example), tuple(record.changed.items())
            return self._records.setdefault(key, record)
        except TypeError:  # the record holds arrays, which cannot be hashed
            return record

    def _line(self, numbers: Sequence[int]) -> int | _Proportion:
        if len(set(numbers)) == 1:
            return numbers[0]
        lengths = self.lengths
        slope, rest = divmod(numbers[1] - numbers[0], lengths[1] - lengths[0])
        line = _Proportion(numbers[0] - slope * lengths[0], slope)
        if rest or any(line.at(x) != y for x, y in zip(lengths, numbers, strict=True)):
            raise _DiffersError
        return line


def with_constants_of(first: Graph, graph: Graph) -> Graph:
    """The graph, with each constant that equals one of `first` bit for bit replaced by that one.

    Each constant is compared with the first few of `first` that have its shape and element.
    """
    left: dict[TensorType, list[Value]] = {}
    for value in first.constants:
        left.setdefault(value.type, []).append(value)
    known: dict[Value, Value] = {}
    for value, array in graph.constants.items():
        for one in left.get(value.type, [])[:_COMPARED]:
            if _alike(first.constants[one], array):
                known[value] = one
                left[value.type].remove(one)
                break
    nodes = [
        Node(node.op, tuple(known.get(v, v) for v in node.inputs), node.outputs)
        for node in graph.nodes
    ]
    outputs = tuple(known.get(value, value) for value in graph.outputs)
    others = {v: a for v, a in graph.constants.items() if v not in known}
    order = tuple(known.get(value, value) for value in graph.constants)
    constants = _Joined(first.constants, frozenset(known.values()), others, order)
    return replace(graph, nodes=tuple(nodes), outputs=outputs, constants=constants)


class _Joined(Mapping[Value, Array]):
    """A graph's constants: `taken` are read from the first graph on access, `others` are its own.

    They are listed in `order`.
    """

    def __init__(
        self,
        first: Mapping[Value, Array],
        taken: frozenset[Value],
        others: Mapping[Value, Array],
        order: tuple[Value, ...],
    ) -> None:
        self._first, self._taken, self._others, self._order = first, taken, others, order

    def __getitem__(self, value: Value) -> Array:
        return self._first[value] if value in self._taken else self._others[value]

    def __contains__(self, value: object) -> bool:
        return value in self._taken or value in self._others

    def __iter__(self) -> Iterator[Value]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)


class _Constants(Mapping[Value, Array]):
    """The constants of a graph for one length: the first graph's, read on access.

    `own` maps each of them that grows to the value and array that replace it.
    """

    def __init__(
        self, fixed: Mapping[Value, Array], own: Mapping[Value, tuple[Value, Array]]
    ) -> None:
        self._fixed, self._own, self._arrays = fixed, own, dict(own.values())

    def __getitem__(self, value: Value) -> Array:
        return self._arrays[value] if value in self._arrays else self._fixed[value]

    def __contains__(self, value: object) -> bool:
        return value in self._arrays or (value in self._fixed and value not in self._own)

    def __iter__(self) -> Iterator[Value]:
        return (self._own[value][0] if value in self._own else value for value in self._fixed)

    def __len__(self) -> int:
        return len(self._fixed)


def _at(sized: Any, length: int) -> Any:
    """Evaluate a rule at a length."""
    if isinstance(sized, _Proportion):
        return sized.at(length)
    if isinstance(sized, _Record):
        changed = {name: _at(each, length) for name, each in sized.changed.items()}
        return replace(sized.example, **changed)
    if type(sized) is tuple:
        return tuple(_at(each, length) for each in sized)
    return sized


def _is_valid(node: Node) -> bool:
    """Whether the operator makes outputs of these types of its operands."""
    try:
        made = node.op.infer(*(value.type for value in node.inputs))
    except InvalidInput:
        return False
    return made == tuple(value.type for value in node.outputs)


def _is_fixed(sized: Any) -> bool:
    """Whether no part of a rule depends on the length."""
    if isinstance(sized, _Proportion | _Record):
        return False
    if type(sized) is tuple:
        return all(map(_is_fixed, sized))
    return True


def _beginning(array: Array, shape: Sequence[int]) -> Array:
    return array[tuple(map(slice, shape))]


def _alike(array: Array, other: Array) -> bool:
    """Whether shapes, dtypes and all bits are equal."""
    if array.shape != other.shape or array.dtype != other.dtype:
        return False
    own, its = array.__array_interface__, other.__array_interface__
    if own["data"] == its["data"] and array.strides == other.strides:
        return True
    as_bits = np.dtype(f"u{array.itemsize}")
    one, two = (np.ascontiguousarray(each).view(as_bits) for each in (array, other))
    return bool(np.array_equal(one, two))
