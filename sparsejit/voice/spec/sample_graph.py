"""A graph that runs once a sample, the loop around it, and what builds them."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from sparsejit.ir.graph import Array, Element, Graph, GraphBuilder, Origin, TensorType, Value
from sparsejit.ir.ops.operator import Operator
from sparsejit.ir.ops.pointwise import Pointwise, write_activation
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.sampling import Quantise
from sparsejit.ir.ops.views import Concat, Reshape, Slice
from sparsejit.ir.spec import Activation
from sparsejit.lowering.loop import GraphLoop, Role
from sparsejit.voice.prediction import THRESHOLDS

# A GRU's state lies within [-1, 1]: as int8 it has steps of this size.
STATE_STEP = 1 / 127


@dataclass(frozen=True, eq=False)
class SampleGraph:
    """A graph, the loop around it, and what its states begin with, in the order of the loop's."""

    graph: Graph
    loop: GraphLoop
    initial: tuple[Array, ...]


class SampleGraphBuilder:
    """Makes a graph whose operands have roles."""

    def __init__(self, hop: int) -> None:
        self._graph, self._hop = GraphBuilder(), hop
        self._inputs: list[Role] = []
        self._outputs: list[tuple[Role, Value]] = []
        self._initial: list[Array] = []

    def input(self, role: Role, name: str, kind: TensorType) -> Value:
        """An operand that the caller gives."""
        self._inputs.append(role)
        return self._graph.input(kind, Origin(name))

    def state(self, name: str, initial: Array) -> Value:
        """What the last turn left; `keep` says what that is, in the order of states."""
        self._initial.append(initial)
        kind = TensorType(initial.shape, Element(initial.dtype.name))
        return self.input(Role.STATE, name, kind)

    def keep(self, *values: Value) -> None:
        """What states are in the next turn."""
        self._outputs += [(Role.STATE, value) for value in values]

    def give(self, *values: Value) -> None:
        """What the caller gets of every sample."""
        self._outputs += [(Role.SAMPLE, value) for value in values]

    def constant(self, name: str, array: Array) -> Value:
        return self._graph.constant(array, Origin(name))

    def apply(self, op: Operator, *operands: Value, name: str) -> Value:
        """An operator of one result."""
        return self._graph.one(op, *operands, origin=Origin(name))

    def apply_all(self, op: Operator, *operands: Value, name: str) -> tuple[Value, ...]:
        """An operator, for all its results."""
        return self._graph.add(op, *operands, origin=Origin(name))

    def number(self, kind: str, *operands: Value, name: str) -> Value:
        """A function of elements."""
        return self.apply(Pointwise(kind), *operands, name=name)

    def activated(self, activation: Activation, value: Value, name: str) -> Value:
        """The function that products apply, by itself."""
        return write_activation(
            activation,
            value,
            partial(self.number, name=name),
            lambda number: self.constant(name, np.array(number, np.float32)),
        )

    def newest(self, history: Value) -> Value:
        """The last of past samples (n,): ()."""
        (length,) = history.shape
        last = self.apply(Slice(0, length - 1, length), history, name="last sample")
        return self.apply(Reshape(()), last, name="last sample")

    def shifted(self, history: Value, signal: Value) -> Value:
        """Past samples (n,) without the oldest, and a new one."""
        older = self.apply(Slice(0, 1, history.shape[0]), history, name="history")
        newest = self.apply(Reshape((1,)), signal, name="history")
        return self.apply(Concat(0), older, newest, name="history")

    def level(self, signal: Value, scale: Value) -> Value:
        """A scaled signal's row of a table."""
        scaled = self.number("mul", signal, scale, name="level")
        thresholds = self.constant("thresholds", THRESHOLDS)
        return self.apply(Quantise(), scaled, thresholds, name="level")

    def next(self, counter: Value) -> Value:
        """One more."""
        one = self.constant("one", np.array(1, np.int64))
        return self.number("add", counter, one, name="counter")

    def linear(
        self,
        name: str,
        x: Value,
        weights: Array,
        bias: Value,
        activation: Activation = Activation.NONE,
        input_scale: float | None = None,
    ) -> Value:
        """activation(W x + bias), the bias constant or of a frame; `ir.ops.products.Linear`."""
        op, matrix = Linear(activation, input_scale=input_scale), self.constant(name, weights)
        return self.apply(op, x, matrix, bias, name=name)

    def finish(self) -> SampleGraph:
        graph = self._graph.finish([value for _, value in self._outputs])
        roles = tuple(role for role, _ in self._outputs)
        loop = GraphLoop(self._hop, tuple(self._inputs), roles)
        return SampleGraph(graph, loop, tuple(self._initial))
