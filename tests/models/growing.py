"""A graph that grows value by value, each with its float64 content, for hypothesis.

A function is applied only where small errors of its operand stay small: no logarithm near zero, no
rounding near a step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from sparsejit.ir.graph import GraphBuilder
from sparsejit.ir.operator import Operator
from sparsejit.ir.values import Array, Element, Origin, TensorType, Value

SIZES = (1, 2, 3, 7, 8, 9, 15, 16, 17)
MOST_ELEMENTS = 4096
LARGEST = 1e3


class Growing:
    """A graph under construction and the content of its values.

    `pool` holds its float values, which are operands to come, `indices` its int64 ones.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.builder = GraphBuilder()
        self.random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        self.known: dict[Value, Array] = {}
        self.inputs: list[Array] = []
        self.pool: list[Value] = []
        self.indices: list[Value] = []

    def input(self, array: Array) -> Value:
        """A new input that holds an array."""
        kind = TensorType(array.shape, Element(array.dtype.name))
        value = self.builder.input(kind, Origin(f"input_{len(self.inputs)}"))
        self.inputs.append(array)
        return self.remember(value, array)

    def numbers(self, *shape: int) -> Array:
        """Numbers around 1 in size."""
        return self.random.standard_normal(shape).astype(np.float32)

    def remember(self, value: Value, array: Array) -> Value:
        wide = array.astype(np.float64) if array.dtype.kind == "f" else array
        self.known[value] = wide
        return value

    def constant(self, array: Array, name: str = "constant") -> Value:
        return self.remember(self.builder.constant(array, Origin(name)), array)

    def weights(self, *shape: int) -> Value:
        """A pruned matrix or kernel whose products stay around 1 in size."""
        array = self.numbers(*shape) / np.float32(np.sqrt(max(1, np.prod(shape[1:]))))
        return self.constant(array * (self.random.random(shape) < 0.7), "weight")

    def apply(self, op: Operator, *inputs: Value) -> Value | None:
        """The first result, and all of them in the pools; None where it is too large."""
        results = op.reference(*(self.known[value] for value in inputs))
        largest = max(float(np.abs(r.astype(np.float64)).max(initial=0)) for r in results)
        if results[0].size > MOST_ELEMENTS or not largest < LARGEST:
            return None
        name = type(op).__name__.lower()
        outputs = self.builder.add(op, *inputs, origin=Origin(name, f"layer.{name}"))
        for value, array in zip(outputs, results, strict=True):
            self.remember(value, np.asarray(array))
            if value.type.element is Element.FLOAT32:
                self.pool.append(value)
            elif value.type.element is Element.INT64:
                self.indices.append(value)
        # Operands are most often taken from the end.
        if len(outputs) > 1 and outputs[0] in self.pool:
            self.pool.remove(outputs[0])
            self.pool.append(outputs[0])
        return outputs[0]

    def one(self, values: list[Any]) -> Any:
        return self.draw(st.sampled_from(values))

    def operand(self, least_rank: int = 0, most_rank: int = 9) -> Value | None:
        """Any float value of that many axes, most often the last."""
        fits = [v for v in reversed(self.pool) if least_rank <= len(v.shape) <= most_rank]
        return self.one([*fits[:1] * len(fits), *fits]) if fits else None

    def wholes(self, least_rank: int = 0) -> Value | None:
        """Any int64 value of that many axes."""
        fits = [v for v in self.indices if len(v.shape) >= least_rank]
        return self.one(fits) if fits else None
