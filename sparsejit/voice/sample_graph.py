"""The network of a voice that runs once a sample, as a graph and the loop around it.

    p          = prediction from the last samples
    input      = rows of three tables for s[t-1], class[t-1] and p, + the frame's gate terms
    h          = GRU(input, W_h h)
    dense      = relu(W_1 h + the frame's bias)
    class      ~ softmax((W_2 dense + b) / temperature)
    s          = clamp(p + DECODED[class] * the frame's residual scale)
    y          = s + 0.9 y[t-1]
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from sparsejit.ir.graph import Array, Element, Graph, GraphBuilder, Op, Origin, TensorType, Value
from sparsejit.ir.ops.pointwise import Pointwise, write_activation
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.sampling import (
    INDEX,
    PREDICTION_WINDOW,
    Draw,
    GruStep,
    Predict,
    Quantise,
    Reconstruct,
    SumOfRows,
    Uniform,
)
from sparsejit.ir.ops.types import float_type
from sparsejit.ir.ops.views import Concat, Reshape, Slice
from sparsejit.ir.spec import Activation
from sparsejit.lowering.loop import GraphLoop, Role
from sparsejit.voice.features import HOP_LENGTH
from sparsejit.voice.prediction import (
    DECODED,
    PRE_EMPHASIS,
    SIGNAL_LIMIT,
    THRESHOLDS,
    ZERO_CLASS,
)
from sparsejit.voice.weights import VoiceWeights

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

    def apply(self, op: Op, *operands: Value, name: str) -> Value:
        """An operator of one result."""
        return self._graph.one(op, *operands, origin=Origin(name))

    def apply_all(self, op: Op, *operands: Value, name: str) -> tuple[Value, ...]:
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


def sample_graph(weights: VoiceWeights) -> SampleGraph:
    """The graph of a voice.

    Of a call: seed. Of a frame: gate terms (3H,), dense biases, predictor (32,), residual scale,
    input scale. Of a sample, as results: the sample float32, its class int64.
    """
    make, hidden = SampleGraphBuilder(HOP_LENGTH), weights.hidden_size
    seed = make.input(Role.CALL, "seed", INDEX)
    gate_terms = make.input(Role.FRAME, "gate terms", float_type((3 * hidden,)))
    dense_bias = make.input(Role.FRAME, "dense bias", float_type(weights.dense.shape[:1]))
    predictor = make.input(Role.FRAME, "predictor", float_type((PREDICTION_WINDOW,)))
    residual_scale = make.input(Role.FRAME, "residual scale", float_type(()))
    input_scale = make.input(Role.FRAME, "input scale", float_type(()))
    state = make.state("state", np.zeros(hidden, np.float32))
    history = make.state("history", np.zeros(PREDICTION_WINDOW, np.float32))
    last_class = make.state("last class", np.array(ZERO_CLASS, np.int64))
    last_output = make.state("last output", np.array(0, np.float32))
    counter = make.state("counter", np.array(0, np.int64))

    prediction = make.apply(Predict(), history, predictor, name="prediction")
    signals = make.newest(history), prediction
    first, third = (make.level(signal, input_scale) for signal in signals)
    tables = [make.constant("table", table) for table in weights.input_tables]
    rows = (first, last_class, third, *tables)
    bias = make.constant("recurrent.bias", _recurrent_bias(weights))
    recurrent = make.linear("recurrent", state, weights.recurrent, bias, input_scale=STATE_STEP)
    gates = make.apply(SumOfRows(), *rows, gate_terms, name="input")
    state = make.apply(GruStep(), gates, recurrent, state, name="gates")
    dense = make.linear("dense", state, weights.dense, dense_bias, Activation.RELU, STATE_STEP)
    bias = make.constant("output.bias", weights.output_bias)
    logits = make.linear("output", dense, weights.output, bias)
    uniform = make.apply(Uniform(), seed, counter, name="uniform")
    drawn = make.apply(Draw(1 / weights.temperature), logits, uniform, name="draw")
    levels = drawn, make.constant("decoded", DECODED), residual_scale, prediction, last_output
    signal, output = make.apply_all(Reconstruct(SIGNAL_LIMIT, PRE_EMPHASIS), *levels, name="signal")
    make.give(output, drawn)
    make.keep(state, make.shifted(history, signal), drawn, output, make.next(counter))
    return make.finish()


def _recurrent_bias(weights: VoiceWeights) -> Array:
    """That of the new gate alone: the others lie in the gate terms."""
    hidden = weights.hidden_size
    bias = np.zeros(3 * hidden, np.float32)
    bias[2 * hidden :] = weights.recurrent_new_bias
    return bias
