"""A graph that runs once a sample, the loop around it, and the builder of both."""

from dataclasses import dataclass

import numpy as np

from sparsejit.frontends.writing.writer import Writer
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.sampling import Quantise
from sparsejit.ir.ops.views import Concat, Reshape, Slice
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Array, Element, TensorType, Value
from sparsejit.lowering.loop import GraphLoop, Role
from sparsejit.voice.prediction import THRESHOLDS

# Step of a GRU's state as int8: the state lies within [-1, 1].
STATE_STEP = 1 / 127


@dataclass(frozen=True, eq=False)
class SampleGraph:
    """A graph, the loop around it, and its initial states, in the order of the loop's states."""

    graph: Graph
    loop: GraphLoop
    initial: tuple[Array, ...]


class SampleWriter(Writer):
    """Writes a graph whose operands have roles."""

    def __init__(self, hop: int) -> None:
        super().__init__()
        self._hop = hop
        self._inputs: list[Role] = []
        self._outputs: list[tuple[Role, Value]] = []
        self._initial: list[Array] = []

    def given(self, role: Role, name: str, kind: TensorType) -> Value:
        """Add an operand with a role."""
        self._inputs.append(role)
        return self.input(kind, name)

    def state(self, name: str, initial: Array) -> Value:
        """Add a state from the last turn; `keep` sets the next values, in the order of states."""
        self._initial.append(initial)
        kind = TensorType(initial.shape, Element(initial.dtype.name))
        return self.given(Role.STATE, name, kind)

    def keep(self, *values: Value) -> None:
        """Set the values of the states in the next turn."""
        self._outputs += [(Role.STATE, value) for value in values]

    def give(self, *values: Value) -> None:
        """Add results that the caller gets for every sample."""
        self._outputs += [(Role.SAMPLE, value) for value in values]

    def newest(self, history: Value) -> Value:
        """The last of past samples (n,): ()."""
        (length,) = history.shape
        last = self.one(Slice(0, length - 1, length), history, name="last sample")
        return self.one(Reshape(()), last, name="last sample")

    def shifted(self, history: Value, signal: Value) -> Value:
        """Past samples (n,) without the oldest, and a new one."""
        older = self.one(Slice(0, 1, history.shape[0]), history, name="history")
        newest = self.one(Reshape((1,)), signal, name="history")
        return self.one(Concat(0), older, newest, name="history")

    def level(self, signal: Value, scale: Value) -> Value:
        """The row of a table for a signal times a scale."""
        scaled = self.pointwise("mul", signal, scale, name="level")
        thresholds = self.constant(THRESHOLDS, "thresholds")
        return self.one(Quantise(), scaled, thresholds, name="level")

    def next(self, counter: Value) -> Value:
        """The counter plus one."""
        one = self.constant(np.array(1, np.int64), "one")
        return self.pointwise("add", counter, one, name="counter")

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
        op, matrix = Linear(activation, input_scale=input_scale), self.constant(weights, name)
        return self.one(op, x, matrix, bias, name=name)

    def loop(self) -> SampleGraph:
        """The graph, and the loop around it."""
        graph = self.finish(*(value for _, value in self._outputs))
        roles = tuple(role for role, _ in self._outputs)
        loop = GraphLoop(self._hop, tuple(self._inputs), roles)
        return SampleGraph(graph, loop, tuple(self._initial))
