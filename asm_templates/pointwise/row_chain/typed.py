"""A chain as typed values: operands loaded, constants, functions, and conversions in between."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sparsejit.asm_templates.pointwise.row_chain.doubles import DOUBLE_FUNCTIONS
from sparsejit.asm_templates.pointwise.row_chain.functions import (
    BOOL_FUNCTIONS,
    COMMUTATIVE,
    FLOAT_FUNCTIONS,
    VectorFunction,
)
from sparsejit.asm_templates.pointwise.row_chain.integers import INT_FUNCTIONS, PairFunction
from sparsejit.ir.ops.pointwise import ROW_REDUCTIONS, Cast, Chain, ChainStep
from sparsejit.ir.values import Element

_COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
_LOGICAL = {"logical_and", "logical_or", "logical_not"}
# Arithmetic of truth values that torch allows.
_OF_BOOLS = {
    "add": "logical_or",
    "mul": "logical_and",
    "maximum": "logical_or",
    "minimum": "logical_and",
}
_TABLES: dict[Element, Mapping[str, VectorFunction | PairFunction]] = {
    Element.FLOAT32: FLOAT_FUNCTIONS,
    Element.BOOL: BOOL_FUNCTIONS,
    Element.INT64: INT_FUNCTIONS,
    Element.FLOAT64: DOUBLE_FUNCTIONS,
}


# Names of a chain's reductions when they reduce int64, and float64.
OF_LONGS = {kind: f"{kind}_of_longs" for kind in ROW_REDUCTIONS}
OF_DOUBLES = {kind: f"{kind}_of_doubles" for kind in ROW_REDUCTIONS}
_OF_HALVES = {Element.INT64: OF_LONGS, Element.FLOAT64: OF_DOUBLES}
# A chain's reductions, the sum of products, and the extremes that ignore NaN.
REDUCTIONS = {
    *(*ROW_REDUCTIONS, *OF_LONGS.values(), *OF_DOUBLES.values()),
    *("row_dot", "row_max_of_numbers", "row_min_of_numbers"),
}


@dataclass(frozen=True, eq=False)
class Strided:
    """An operand or result: bytes from element to element along every axis of the chain's shape.

    A stride is 0 where the array broadcasts. `constant` is the value of an operand of one element
    that is known when the code is made; its memory is never read. Equal instances have the same
    code, so 0.0 and -0.0 are not equal as constants.
    """

    strides: tuple[int, ...]
    element: Element = Element.FLOAT32
    constant: float | None = None

    @cached_property
    def _key(self) -> tuple[tuple[int, ...], Element, str]:
        return self.strides, self.element, repr(self.constant)

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Strided) and self._key == other._key


@dataclass(frozen=True)
class ChainValue:
    """A value of a chain: `kind` is "load", "constant", a function, conversion or reduction.

    `per_row`: a row has one such value. `of`: the element of the arguments, which chooses the
    function's table.
    """

    kind: str
    arguments: tuple[int, ...]
    element: Element
    of: Element
    per_row: bool
    array: int = -1
    number: float = 0.0


class _Typing:
    def __init__(self, chain: Chain, operands: Sequence[Strided], per_row: Sequence[bool]) -> None:
        self.chain = chain
        self.values: list[ChainValue] = []
        self._known: dict[ChainValue, int] = {}
        self.numbers = [
            self._operand(array, operand, per_row[array]) for array, operand in enumerate(operands)
        ]
        self._uses = Counter(a for step in chain.steps for a in step.arguments)
        self._uses.update(chain.results)
        for step in chain.steps:
            arguments = [self.numbers[a] for a in step.arguments]
            fused = self._fused(step)
            self.numbers.append(self._step(step.kind, arguments) if fused is None else fused)

    def add(self, value: ChainValue) -> int:
        """Add a value unless an equal one is there; return its number."""
        if value not in self._known:
            self._known[value] = len(self.values)
            self.values.append(value)
        return self._known[value]

    def _operand(self, array: int, operand: Strided, per_row: bool) -> int:
        if operand.constant is not None:
            return self._constant(operand.constant, operand.element)
        return self.add(ChainValue("load", (), operand.element, operand.element, per_row, array))

    def _constant(self, number: float, element: Element) -> int:
        exact = int(number) if element is Element.INT64 else float(number)
        return self.add(ChainValue("constant", (), element, element, True, number=exact))

    def convert(self, number: int, element: Element) -> int:
        """Return the number of the value as another element, converted as by torch's `to`."""
        value = self.values[number]
        if value.element is element:
            return number
        if value.kind == "constant":
            if element is Element.FLOAT64:
                return self._constant(float(value.number), element)
            (known,) = Cast(element).reference(np.asarray(value.number, value.element.value))
            return self._constant(known.item(), element)
        if element is Element.BOOL:
            zero = self._constant(0.0, value.element)
            return self._function("not_equal", (number, zero), Element.BOOL, value.element)
        return self._function(f"to_{element.value}", (number,), element, value.element)

    def _function(
        self, kind: str, arguments: tuple[int, ...], element: Element, of: Element
    ) -> int:
        assert kind in REDUCTIONS or kind in _TABLES[of], f"no code for {kind} of {of.value}"
        if kind in COMMUTATIVE and self.values[arguments[0]].kind == "constant":
            arguments = arguments[::-1]
        per_row = kind in REDUCTIONS or all(self.values[a].per_row for a in arguments)
        return self.add(ChainValue(kind, arguments, element, of, per_row))

    def _fused(self, step: ChainStep) -> int | None:
        """Fuse a product with the step that adds to it, or sums it over a row (FMA, dot product).

        Return the number of the fused value; None unless the step reads a product that nothing else
        uses.
        """
        if step.kind not in ("add", "row_sum"):
            return None
        for place, number in enumerate(step.arguments):
            value = self.values[self.numbers[number]]
            if self._uses[number] > 1 or value.element is not Element.FLOAT32:
                continue
            if value.per_row and step.kind == "row_sum":
                continue
            if value.kind not in ("mul", "square"):
                continue
            first, second = value.arguments[0], value.arguments[-1]
            if step.kind == "row_sum":
                return self._function("row_dot", (first, second), Element.FLOAT32, Element.FLOAT32)
            other = self.numbers[step.arguments[1 - place]]
            if self.values[other].element is Element.FLOAT32:
                return self._function(
                    "fma", (first, second, other), Element.FLOAT32, Element.FLOAT32
                )
        return None

    def _common(self, arguments: list[int]) -> Element:
        elements = {self.values[a].element for a in arguments}
        order = (Element.FLOAT64, Element.FLOAT32, Element.INT64, Element.BOOL)
        return next(element for element in order if element in elements)

    def _step(self, kind: str, arguments: list[int]) -> int:
        if kind in ROW_REDUCTIONS:
            element = self.values[arguments[0]].element
            if (named := _OF_HALVES.get(element)) is not None:
                return self._function(named[kind], (arguments[0],), element, element)
            whole = self.convert(arguments[0], Element.FLOAT32)
            return self._function(kind, (whole,), Element.FLOAT32, Element.FLOAT32)
        if kind in _LOGICAL:
            truths = tuple(self.convert(a, Element.BOOL) for a in arguments)
            return self._function(kind, truths, Element.BOOL, Element.BOOL)
        if kind == "where":
            truth = self.convert(arguments[0], Element.BOOL)
            common = self._common(arguments[1:])
            choices = (self.convert(a, common) for a in arguments[1:])
            return self._function(kind, (truth, *choices), common, common)
        common = self._common(arguments)
        if kind in _COMPARISONS:
            common = Element.FLOAT32 if common is Element.BOOL else common
            both = tuple(self.convert(a, common) for a in arguments)
            return self._function(kind, both, Element.BOOL, common)
        if common is Element.BOOL:
            kind = _OF_BOOLS.get(kind, kind)
        alike = tuple(self.convert(a, common) for a in arguments)
        return self._function(kind, alike, common, common)


def type_values(
    chain: Chain, operands: Sequence[Strided], results: Sequence[Strided], per_row: Sequence[bool]
) -> tuple[list[ChainValue], list[int]]:
    """Return the values of a chain, arguments first, and the numbers of its results among them.

    `per_row[n]`: a row has one element of operand n.
    """
    typing = _Typing(chain, operands, per_row)
    ends = [
        typing.convert(typing.numbers[number], result.element)
        for number, result in zip(chain.results, results, strict=True)
    ]
    return typing.values, ends


def registers_of(element: Element) -> int:
    """Return the registers that a vector of elements fills: one, or two of 64 bits each."""
    return 2 if element in _OF_HALVES else 1


def function_of(value: ChainValue) -> VectorFunction | PairFunction:
    """Return the function that computes the value."""
    return _TABLES[value.of][value.kind]
