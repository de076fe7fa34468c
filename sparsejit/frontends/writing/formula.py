"""Elementwise formulas that become one chain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.frontends.writing.unmapped import Unmapped
from sparsejit.ir.graph import Value
from sparsejit.ir.ops.pointwise import FUNCTIONS, Chain, ChainStep, Pointwise

if TYPE_CHECKING:
    from sparsejit.frontends.writing.writer import Writer

# An operand of a mapping: a value of the graph, a tensor known now, or a number.
Operand = Any


class Formula:
    """Steps that become one chain: f("mul", x, 0.5) is a step of values, numbers and steps."""

    def __init__(self, write: Writer, title: str) -> None:
        self._write, self._title = write, title
        self._operands: list[Value] = []
        self._steps: list[tuple[str, list[tuple[bool, int]]]] = []

    def __call__(self, kind: str, *arguments: Operand) -> FormulaStep:
        self._steps.append((kind, [self._place(argument) for argument in arguments]))
        return FormulaStep(len(self._steps) - 1)

    def _place(self, argument: Operand) -> tuple[bool, int]:
        """Whether it is a step, and its number among steps or among operands."""
        if isinstance(argument, FormulaStep):
            return True, argument.number
        number = isinstance(argument, int | float) and not isinstance(argument, bool)
        value = self._write.floats(argument) if number else self._write.value(argument)
        if value not in self._operands:
            self._operands.append(value)
        return False, self._operands.index(value)

    def finish(self, *results: FormulaStep, shape: Sequence[int] | None = None) -> Value:
        """Write the chain over `shape`, by default the broadcast shape; return its first result."""
        return self.all(*results, shape=shape)[0]

    def all(self, *results: FormulaStep, shape: Sequence[int] | None = None) -> tuple[Value, ...]:
        """Write the chain as `finish` does; return every result."""
        if len(self._steps) == 1 and self._steps[0][0] in FUNCTIONS:
            kind, places = self._steps[0]
            return (self._write.one(Pointwise(kind), *(self._operands[n] for _, n in places)),)
        count = len(self._operands)
        steps = tuple(
            ChainStep(kind, tuple(n + count * is_step for is_step, n in places))
            for kind, places in self._steps
        )
        whole = self._whole()
        chain = Chain(
            tuple(whole if shape is None else shape),
            count,
            steps,
            tuple(count + result.number for result in results),
            self._title,
        )
        return self._write.many(chain, *self._operands)

    def _whole(self) -> tuple[int, ...]:
        """The shape that the operands broadcast to. Raises Unmapped where they do not."""
        shapes = [value.shape for value in self._operands]
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            found = ", ".join(str(list(shape)) for shape in shapes)
            raise Unmapped(f"its operands, {found}, do not broadcast") from None


class FormulaStep:
    """A step of a formula, by its number."""

    def __init__(self, number: int) -> None:
        self.number = number
