"""Operators, which declare their types, float64 semantics, batch and time rule; and their nodes.

    @dataclass(frozen=True)
    class Linear(Operator):
        types = "x float32 [*rows, in], weights float32 [out, in] -> float32 [*rows, out]"

A subclass is registered when it is defined. Files store its fields (`artefact.records`); its
lowering is registered beside the lowering's code (`lowering.context.lowers`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from enum import Enum
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.signature import Bound, Signature, signature
from sparsejit.ir.time_rules import Apart, TimeRule
from sparsejit.ir.values import Array, TensorType, Value

# Every operator by its name.
OPERATORS: dict[str, type[Operator]] = {}


class Operator:
    """A frozen record with its types and its float64 semantics.

    `types` is the text of its `Signature`; `needs` describes the further checks of `sizes_of`.

    The batch may lie on any axis that operands and results name alike. On any other axis, and on
    the axes in `mixes`, the operator mixes samples, and `mixing` is the message.
    """

    types: ClassVar[str]
    needs: ClassVar[str] = ""
    mixes: ClassVar[tuple[str, ...]] = ()
    mixing: ClassVar[str] = "combines samples with each other"
    # Whether the operator computes something where an operand has no elements.
    takes_empty: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        OPERATORS[cls.__name__] = cls

    def signature(self, operands: int) -> Signature:
        """The types for this number of operands."""
        return signature(self.types)

    def sizes_of(self, bound: Mapping[str, Any]) -> Bound | None:
        """Sizes, by name, of results' axes that `bound`, the sizes of the operands' axes, lacks.

        None where the operator does not take operands of these sizes.
        """
        return {}

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        """The types of the results. Raises InvalidInput for operands that it does not take."""
        declared = self.signature(len(operands))
        bound = declared.match(operands, self)
        more = None if bound is None else self.sizes_of(bound)
        if bound is not None and more is not None:
            with suppress(InvalidInput):  # for sizes that no tensor has
                return declared.made({**bound, **more}, self)
        raise self.refusal(operands)

    def refusal(self, operands: Sequence[TensorType]) -> InvalidInput:
        """The error to raise for operands that it does not take."""
        found = ", ".join(map(str, operands))
        wanted = self.signature(len(operands)).wanted
        return InvalidInput(f"{self} got ({found}); give {wanted}{self.needs}")

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        """The results in float64 where a type says float32, else int64 and bool."""
        raise NotImplementedError

    def follow_batch(self, follow: Follower, node: Node) -> None:
        """Set the batch's place in a node's outputs. Raises SamplesMixed where it mixes samples."""
        declared = self.signature(len(node.inputs))
        labels = [
            each.labels(len(value.shape))
            for each, value in zip(declared.operands, node.inputs, strict=False)
        ]
        found = {
            (labels[number][place.axis], place._replace(axis=0))
            for number, value in enumerate(node.inputs)
            if (place := follow.places.get(value)) is not None
        }
        if len(found) != 1:
            raise SamplesMixed(self.mixing)
        ((label, place),) = found
        for value, axes in zip(node.inputs, labels, strict=True):
            if value not in follow.places and label in axes:
                follow.check_shared(value, place._replace(axis=axes.index(label)))
        for value, made in zip(node.outputs, declared.results, strict=True):
            axes = made.labels(len(value.shape))
            if label not in axes or label[0] in self.mixes:
                raise SamplesMixed(self.mixing)
            follow.places[value] = place._replace(axis=axes.index(label))

    def time_rule(
        self, node: Node, places: Sequence[BatchPlace | None], length: int
    ) -> TimeRule:
        """The frames that a node reads, where time has these places in its operands.

        `length` is the number of frames; an operand without time has no place. Frames on an axis
        that may be the batch are apart.
        """
        return Apart()

    def resized(self, node: Node, place: BatchPlace, length: int) -> Operator:
        """The operator of a step, where the axis of that place in the results has `length`."""
        return self

    def as_text(self) -> str:
        """The operator's name, with the fields that differ from their defaults."""
        record: Any = self
        said = [
            f"{field.name}={_plain(getattr(self, field.name))}"
            for field in fields(record)
            if field.default is MISSING or getattr(self, field.name) != field.default
        ]
        return type(self).__name__.lower() + (f"[{', '.join(said)}]" if said else "")

    def of_any_size(self) -> Operator:
        """The operator without the fields that repeat sizes of its result.

        So two operators that differ in these sizes alone become equal.
        """
        return self


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


@dataclass(frozen=True, eq=False)
class Node:
    """One application of an operator."""

    op: Operator
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]

    @property
    def output(self) -> Value:
        """The only output."""
        (value,) = self.outputs
        return value


class SamplesMixed(Exception):
    """An operator mixes samples; the text says how."""


class BatchPlace(NamedTuple):
    """The axis with the batch: outer * batch * inner elements, with indices (o, sample, i)."""

    axis: int
    outer: int = 1
    inner: int = 1


class Follower:
    """The batch's places found so far. A value without a place is the same for all samples.

    Such a value may still have an axis as long as the batch: `shared` has its place. Values in
    `given` depend on inputs without batch, so that their numbers are not known; `repeated` has the
    axes along which they are the same.
    """

    def __init__(
        self, constants: Mapping[Value, Array], producers: Mapping[Value, Node], batch: int
    ) -> None:
        self.batch = batch
        self.places: dict[Value, BatchPlace] = {}
        self.shared: dict[Value, BatchPlace] = {}
        self.given: set[Value] = set()
        self.repeated: dict[Value, list[int]] = {}
        self._producers = producers
        self._known: dict[Value, Array] = dict(constants)

    def know(self, value: Value, array: Array) -> None:
        """Note the array of an input without batch, where it is known."""
        self._known[value] = array

    def put(self, node: Node, place: BatchPlace) -> None:
        """Record that the batch has this place in all outputs of a node."""
        self.places.update(dict.fromkeys(node.outputs, place))

    def common(self, node: Node, from_end: bool = True) -> BatchPlace:
        """Return the place that all operands of a broadcast share.

        With `from_end` its axis is counted from the end (-1 ...). Operands without a place must be
        the same for all samples along that axis.
        """
        found = {
            place._replace(axis=place.axis - len(value.shape)) if from_end else place
            for value in node.inputs
            if (place := self.places.get(value)) is not None
        }
        if len(found) != 1:
            raise SamplesMixed(
                "combines each sample with others: the batch lies on different axes"
            )
        (place,) = found
        for value in node.inputs:
            if value not in self.places:
                self.check_shared(value, place)
        return place

    def put_from_end(self, node: Node, place: BatchPlace) -> None:
        """Set a place, counted from the end, in all outputs whose axis has its length."""
        length = place.outer * self.batch * place.inner
        for value in node.outputs:
            axis = len(value.shape) + place.axis
            if axis >= 0 and value.shape[axis] == length:
                self.places[value] = place._replace(axis=axis)

    def check_shared(self, value: Value, place: BatchPlace) -> None:
        """Raise SamplesMixed unless a value is the same for all samples at that place."""
        axis = place.axis if place.axis >= 0 else len(value.shape) + place.axis
        if axis < 0 or value.shape[axis] == 1:
            return
        if axis in self.repeated.get(value, ()):
            self.places[value] = place._replace(axis=axis)
            return
        if value in self.given:
            raise SamplesMixed(f"reads {value.origin.name}, which has no batch, sample by sample")
        place = place._replace(axis=axis)
        if value.shape[axis] != place.outer * self.batch * place.inner:
            raise SamplesMixed(f"repeats samples along {value.origin.name}")
        if self.array(value).shape != value.shape:  # of a sequence, in the body of a loop
            raise SamplesMixed(f"reads {value.origin.name} by turns, sample by sample")
        if self.changes(value, place):
            raise SamplesMixed("treats samples differently, by their place in the batch")
        if self.shared.setdefault(value, place) != place:
            raise SamplesMixed("reads one array with two layouts of the batch")

    def changes(self, value: Value, place: BatchPlace) -> bool:
        """Whether a known value has samples at that place that differ."""
        axis, *sizes = place.axis, place.outer, self.batch, place.inner
        array = self.array(value)
        if array.shape[axis] != prod(sizes):
            return False
        apart = array.reshape(*array.shape[:axis], *sizes, *array.shape[axis + 1 :])
        first = apart.take([0], axis=axis + 1)
        return not np.array_equal(apart, np.broadcast_to(first, apart.shape))

    def array(self, value: Value) -> Array:
        """Compute the array of a value that depends on constants and noted inputs alone."""
        if value not in self._known:
            node = self._producers.get(value)
            if node is None:
                raise SamplesMixed(f"takes numbers from {value.origin.name} by their place")
            results = node.op.reference(*(self.array(operand) for operand in node.inputs))
            self._known.update(zip(node.outputs, results, strict=True))
        return self._known[value]
