"""A graph that runs once a sample, the loop around it, and the builder of both.

    SampleGraph, SampleWriter   the graph, and its builder
    SampleDraw                  draws of a class or sample from the last layer's outputs, as
                                operators of the graph
    SampleTurn                  from one sample to the next: the inputs that the network reads back,
                                and the output sample

A choice is a class that was drawn or is given; without classes it is the sample.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from sparsejit.frontends.writing.writer import Writer
from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.pointwise import Cast
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.sampling import (
    PREDICTION_WINDOW,
    Draw,
    Predict,
    Quantise,
    Reconstruct,
    TreeDraw,
    Uniform,
    UniformRow,
)
from sparsejit.ir.ops.selection import Embedding
from sparsejit.ir.ops.views import Concat, Reshape, Slice
from sparsejit.ir.spec import Activation, Quantisation
from sparsejit.ir.values import Array, Element, TensorType, Value, float_type
from sparsejit.lowering.sample_loop import GraphLoop, Role
from sparsejit.voice.prediction import THRESHOLDS, class_levels, expanded
from sparsejit.voice.spec.layers import (
    BinaryTree,
    Categorical,
    Gaussian,
    MixtureOfLogistics,
)
from sparsejit.voice.spec.voice_spec import (
    LEVEL_SCALE,
    PREDICTOR,
    RESIDUAL_SCALE,
    Companding,
    DualSoftmax,
    LastClass,
    LastHalves,
    LastSample,
    LinearPrediction,
    NetworkInput,
    PredictionRow,
    VoiceSpec,
)

# Step of a GRU's state as int8: the state lies within [-1, 1].
STATE_STEP = 1 / 127


@dataclass(frozen=True, eq=False)
class SampleGraph:
    """A graph, the loop around it, and its initial states, in the order of the loop's states."""

    graph: Graph
    loop: GraphLoop
    initial: tuple[Array, ...]


class SampleWriter(Writer):
    """Writes a graph of one sample, whose operands have roles in the loop around it.

    An operand belongs to a call, a frame, a sample, or is a state from the sample before.
    """

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
        """The last of the past samples (n,), a scalar value ()."""
        (length,) = history.shape
        last = self.one(Slice(0, length - 1, length), history, name="last sample")
        return self.one(Reshape(()), last, name="last sample")

    def shifted(self, history: Value, signal: Value) -> Value:
        """Past samples (n,) without the oldest, and a new one."""
        older = self.one(Slice(0, 1, history.shape[0]), history, name="history")
        newest = self.one(Reshape((1,)), signal, name="history")
        return self.one(Concat(0), older, newest, name="history")

    def level(self, signal: Value, scale: Value) -> Value:
        """The mu-law level of signal * scale, which is the number of a table's row."""
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
        x_steps: Quantisation | None = None,
    ) -> Value:
        """activation(W x + bias), the bias constant or of a frame; `ir.ops.products.Linear`."""
        op, matrix = Linear(activation, x_steps=x_steps), self.constant(weights, name)
        return self.one(op, x, matrix, bias, name=name)

    def loop(self) -> SampleGraph:
        """The graph, and the loop around it."""
        graph = self.finish(*(value for _, value in self._outputs))
        roles = tuple(role for role, _ in self._outputs)
        loop = GraphLoop(self._hop, tuple(self._inputs), roles)
        return SampleGraph(graph, loop, tuple(self._initial))


# All but a dual softmax, whose second parameters depend on the first draw.
SingleOutput: TypeAlias = Categorical | MixtureOfLogistics | Gaussian | BinaryTree

# Uniform numbers of a mixture keep this far from 0 and 1.
_EDGE = 1e-5


@dataclass(eq=False)
class UniformNumbers:
    """The numbers of a seed's stream one after the other; `counter` is the next one's index."""

    make: SampleWriter
    seed: Value
    counter: Value

    def one(self) -> Value:
        """The next uniform number, a scalar value ()."""
        number = self.make.one(Uniform(), self.seed, self.counter, name="uniform")
        self.counter = self.make.next(self.counter)
        return number

    def row(self, count: int) -> Value:
        """The next uniform numbers, (count,)."""
        numbers = self.make.one(UniformRow(count), self.seed, self.counter, name="uniform")
        more = self.make.constant(np.array(count, np.int64), "numbers")
        self.counter = self.make.pointwise("add", self.counter, more, name="counter")
        return numbers


@dataclass(frozen=True, eq=False)
class SampleDraw:
    """Draws by uniform numbers: a class, or a sample."""

    make: SampleWriter
    temperature: float
    uniform: UniformNumbers

    def of(self, output: SingleOutput, parameters: Value) -> Value:
        """Draw from `output` with parameters (n,): a class int64 (), or a sample float32 ()."""
        match output:
            case Categorical():
                return self.categorical(parameters)
            case MixtureOfLogistics():
                return self._mixture(output, parameters)
            case Gaussian():
                return self._gaussian(output, parameters)
            case BinaryTree():
                return self._tree(output, parameters)

    def categorical(self, logits: Value) -> Value:
        """A class int64 () ~ softmax(logits / temperature), of logits (classes,)."""
        draw = Draw(1 / self.temperature)
        return self.make.one(draw, logits, self.uniform.one(), name="draw")

    def _mixture(self, output: MixtureOfLogistics, parameters: Value) -> Value:
        count = output.components
        logits, means, scales = (
            self.make.one(Slice(0, n * count, (n + 1) * count), parameters, name="mixture")
            for n in range(3)
        )
        draw = Draw(1 / self.temperature)
        component = self.make.one(draw, logits, self.uniform.one(), name="component")
        mean, log_scale = (picked(self.make, each, component) for each in (means, scales))
        u = self.uniform.one()
        # 1 - u is exact: log of it keeps its digits where u is near 1.
        below, above = (self._inside(each) for each in (u, self._number("sub", 1.0, u)))
        logs = (self._number("log", each) for each in (below, above))
        noise = self._number("sub", *logs)
        return self._continuous(mean, log_scale, output.least_log_scale, noise)

    def _inside(self, uniform: Value) -> Value:
        """Map a uniform number in [0, 1] to [1e-5, 1 - 1e-5]."""
        return self._number("fma", uniform, 1 - 2 * _EDGE, _EDGE)

    def _gaussian(self, output: Gaussian, parameters: Value) -> Value:
        mean, log_deviation = (self._element(parameters, n) for n in range(2))
        u, v = self.uniform.one(), self.uniform.one()
        squared = self._number("mul", self._number("log", self._number("sub", 1.0, u)), -2.0)
        wave = self._number("cos", self._number("mul", v, 2 * np.pi))
        noise = self._number("mul", self._number("sqrt", squared), wave)
        return self._continuous(mean, log_deviation, output.least_log_deviation, noise)

    def _continuous(self, mean: Value, log_scale: Value, least: float, noise: Value) -> Value:
        """A drawn sample: mean + temperature * exp(max(log_scale, least)) * noise, clamped.

        It lies within [-1, 1].
        """
        scale = self._number("exp", self._number("maximum", log_scale, least))
        spread = self._number("mul", noise, self.temperature)
        free = self._number("fma", scale, spread, mean)
        return self._number("minimum", self._number("maximum", free, -1.0), 1.0)

    def _tree(self, output: BinaryTree, parameters: Value) -> Value:
        """Draw by u < sigmoid(p / temperature), which is temperature * log(u / (1 - u)) < p."""
        u = self.uniform.row(output.bits)
        # 1 - u is exact.
        logs = (self._number("log", each) for each in (u, self._number("sub", 1.0, u)))
        thresholds = self._number("mul", self._number("sub", *logs), self.temperature)
        return self.make.one(TreeDraw(output.bits), parameters, thresholds, name="draw")

    def _element(self, numbers: Value, index: int) -> Value:
        one = self.make.one(Slice(0, index, index + 1), numbers, name="parameter")
        return self.make.one(Reshape(()), one, name="parameter")

    def _constant(self, name: str, array: Array) -> Value:
        return self.make.constant(array.astype(np.float32), name)

    def _number(self, kind: str, *operands: Value | float) -> Value:
        values = (
            each if isinstance(each, Value) else self._constant("number", np.array(each))
            for each in operands
        )
        return self.make.pointwise(kind, *values, name="sample")


def picked(make: SampleWriter, numbers: Value, index: Value) -> Value:
    """Element number `index` of numbers (n,), a scalar value ()."""
    column = make.one(Reshape((numbers.shape[0], 1)), numbers, name="picked")
    row = make.one(Embedding(), index, column, name="picked")
    return make.one(Reshape(()), row, name="picked")


class PredictedSignal:
    """The signal of linear prediction: its states, and its inputs of a frame."""

    # In the order of the loop's inputs.
    terms = (PREDICTOR, RESIDUAL_SCALE, LEVEL_SCALE)

    def __init__(self, make: SampleWriter, spec: LinearPrediction) -> None:
        self._make, self._spec = make, spec
        predictor = make.given(Role.FRAME, PREDICTOR, float_type((PREDICTION_WINDOW,)))
        self._residual_scale = make.given(Role.FRAME, RESIDUAL_SCALE, float_type(()))
        self._level_scale = make.given(Role.FRAME, LEVEL_SCALE, float_type(()))
        self._history = make.state("history", np.zeros(PREDICTION_WINDOW, np.float32))
        self._last_output = make.state("last output", np.array(0, np.float32))
        self.last = make.newest(self._history)
        self.prediction = make.one(Predict(), self._history, predictor, name="prediction")

    def level(self, signal: Value) -> Value:
        """The mu-law level of a signal in this frame, which is the number of a table's row."""
        return self._make.level(signal, self._level_scale)

    def after(self, choice: Value, amplitudes: Value) -> Value:
        """The output sample of a class; moves the states to the next turn."""
        op = Reconstruct(self._spec.limit, self._spec.emphasis)
        operands = choice, amplitudes, self._residual_scale, self.prediction, self._last_output
        signal, output = self._make.many(op, *operands, name="signal")
        self._history = self._make.shifted(self._history, signal)
        self._last_output = output
        return output

    def states(self) -> tuple[Value, Value]:
        return self._history, self._last_output


@dataclass(eq=False)
class SampleTurn:
    """The states that each sample leaves to the next one."""

    make: SampleWriter
    spec: VoiceSpec

    def __post_init__(self) -> None:
        make, prediction = self.make, self.spec.prediction
        self.signal = None if prediction is None else PredictedSignal(make, prediction)
        self._states: dict[NetworkInput, tuple[Value, ...]] = {}
        for each in self.spec.inputs:
            if isinstance(each, LastClass):
                self._states[each] = (make.state(each.name, np.array(each.first, np.int64)),)
            elif isinstance(each, LastHalves):
                self._states[each] = self._first_halves(each)
            elif isinstance(each, LastSample) and self.signal is None:
                self._states[each] = (make.state(each.name, np.array(0, np.float32)),)

    def _first_halves(self, each: LastHalves) -> tuple[Value, Value]:
        assert isinstance(self.spec.output, DualSoftmax)
        count = self.spec.output.half_classes
        coarse, fine = class_levels(count)[list(divmod(each.first, count))].astype(np.float32)
        return (
            self.make.state(f"{each.name}.coarse", np.array(coarse)),
            self.make.state(f"{each.name}.fine", np.array(fine)),
        )

    def last(self, each: NetworkInput) -> tuple[Value, ...]:
        """Values that an input of the network has from samples before: numbers, or a row number."""
        if each in self._states:
            return self._states[each]
        assert self.signal is not None
        if isinstance(each, LastSample):
            return (self.signal.last,)
        is_prediction = isinstance(each, PredictionRow)
        signal = self.signal.prediction if is_prediction else self.signal.last
        return (self.signal.level(signal),)

    def after(self, choice: Value) -> Value:
        """The output sample of `choice`, a class or sample; moves the states to the next turn."""
        output = self.spec.output
        sample, fed_back = choice, choice
        if isinstance(output, Categorical | BinaryTree):
            sample, fed_back = self._of_class(output, choice)
        for each in self._states:
            self._states[each] = (fed_back if isinstance(each, LastSample) else choice,)
        return sample

    def after_halves(self, output: DualSoftmax, coarse: Value, fine: Value) -> tuple[Value, Value]:
        """The output sample and its class, int64 (), from the class's coarse and fine halves.

        Moves the states to the next turn.
        """
        make = self.make
        count = make.constant(np.array(output.half_classes, np.int64), "half classes")
        high = make.pointwise("mul", coarse, count, name="class")
        whole = make.pointwise("add", high, fine, name="class")
        height, lowest = (
            make.constant(np.array(number, np.float32), "amplitude")
            for number in (2 / output.classes, -1)
        )
        wide = make.one(Cast(Element.FLOAT32), whole, name="class")
        sample = make.pointwise("fma", wide, height, lowest, name="sample")
        fed_back = self.half_level(output, coarse), self.half_level(output, fine)
        for each in self._states:
            self._states[each] = fed_back if isinstance(each, LastHalves) else (sample,)
        return sample, whole

    def half_level(self, output: DualSoftmax, half: Value) -> Value:
        """The number in [-1, 1] that the network reads back for half of a class, float32 ()."""
        levels = class_levels(output.half_classes).astype(np.float32)
        return picked(self.make, self.make.constant(levels, "levels"), half)

    def _of_class(self, output: Categorical | BinaryTree, choice: Value) -> tuple[Value, Value]:
        """The sample of a class, and the number that the network reads back."""
        levels = class_levels(output.classes)
        is_linear = output.companding is Companding.LINEAR
        heights = levels if is_linear else expanded(levels, output.classes)
        amplitudes = self.make.constant(heights.astype(np.float32), "amplitudes")
        if self.signal is not None:
            sample = self.signal.after(choice, amplitudes)
            return sample, sample
        sample = picked(self.make, amplitudes, choice)
        if is_linear:
            return sample, sample
        table = self.make.constant(levels.astype(np.float32), "levels")
        return sample, picked(self.make, table, choice)

    def states(self) -> tuple[Value, ...]:
        """The states for `SampleWriter.keep`, in their order."""
        signal = () if self.signal is None else self.signal.states()
        return (*signal, *(value for values in self._states.values() for value in values))
