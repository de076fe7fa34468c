"""The per-sample graph of a `VoiceSpec`, and its inputs for every frame.

    drawing_graph   a graph that draws sample after sample
    forced_graph    a graph that returns the last layer's results for given samples
    FrameTerms      inputs of the loop for every frame and sample, from the conditioning

Conditioning is multiplied once a frame: a layer's input from a frame, or from the frames around a
sample, is W c + b already, and a sample weighs and adds these terms. A product that no activation
separates from the next is merged with it, in float64, when the graph is built.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.ir.ops.sampling import INDEX, GruStep, SumOfRows
from sparsejit.ir.ops.views import Concat, Reshape, Slice
from sparsejit.ir.spec import Activation, Quantisation
from sparsejit.ir.values import Array, Value, float_type
from sparsejit.lowering.sample_loop import Role
from sparsejit.runtime.native_call import aligned_copy
from sparsejit.voice.features import FloatArray
from sparsejit.voice.spec.known_parts import DoubleArray, Features, RowwiseLinear, columns_of
from sparsejit.voice.spec.layers import SampleLayer
from sparsejit.voice.spec.sample_graph import (
    STATE_STEP,
    SampleDraw,
    SampleGraph,
    SampleTurn,
    SampleWriter,
    UniformNumbers,
)
from sparsejit.voice.spec.sample_loop import LoopArrays
from sparsejit.voice.spec.voice_spec import (
    DenseSpec,
    DualDenseSpec,
    DualSoftmax,
    GruSpec,
    InterpolatedConditioning,
    LastHalves,
    LastSample,
    NetworkInput,
    VoiceSpec,
)

Tensors = Mapping[str, FloatArray]


@dataclass(frozen=True, eq=False)
class FrameTerm:
    """A layer's term from conditioning: constant (n,) + the sum of W c, with W by c's name, (n, c).

    The loop has `taps` inputs of it, each from one frame later than the input before.
    """

    name: str
    constant: DoubleArray
    weights: Mapping[str, DoubleArray]
    taps: int = 1


@dataclass(frozen=True, eq=False)
class SpecGraph:
    """A graph, its inputs of a frame (`terms`) and of a sample (`kernels`, (hop, taps)).

    Results of a sample are the sample and, if the output has classes, the class, int64. A term
    that is a name is the conditioning of that name, unchanged.
    """

    sample: SampleGraph
    terms: tuple[FrameTerm | str, ...]
    kernels: tuple[FloatArray, ...]


def drawing_graph(spec: VoiceSpec, tensors: Tensors) -> SpecGraph:
    """The graph that draws sample after sample. A call has one seed, int64.

    Sample t takes the numbers t n to t n + n - 1 of the seed's stream, in the order in which
    `spec.output` names them. Raises InvalidInput as `check_tensors` does.
    """
    check_tensors(spec, tensors)
    build = _NetworkBuilder(spec, tensors)
    make, turn = build.make, build.turn
    seed = make.given(Role.CALL, "seed", INDEX)
    uniform = UniformNumbers(make, seed, make.state("counter", np.array(0, np.int64)))
    draw = SampleDraw(make, spec.temperature, uniform)
    if isinstance(spec.output, DualSoftmax):
        halves = build.halves(spec.output, lambda _, logits: draw.categorical(logits))
        make.give(*turn.after_halves(spec.output, *halves))
    else:
        choice = draw.of(spec.output, build.network())
        make.give(turn.after(choice), *[choice] if spec.has_classes else [])
    return build.finish(uniform.counter)


def forced_graph(spec: VoiceSpec, tensors: Tensors) -> SpecGraph:
    """The graph that returns the last layer's results (n,) for given samples, for a score.

    A sample's inputs are the kernels and its class, int64 (); without classes the sample itself,
    float32 (). A dual softmax has two classes and two results, coarse and fine.
    """
    check_tensors(spec, tensors)
    build = _NetworkBuilder(spec, tensors)
    if isinstance(spec.output, DualSoftmax):
        given = [build.make.given(Role.SAMPLE, name, INDEX) for name in ("coarse", "fine")]

        def choose(half: int, logits: Value) -> Value:
            build.make.give(logits)
            return given[half]

        build.turn.after_halves(spec.output, *build.halves(spec.output, choose))
        return build.finish()
    kind = INDEX if spec.has_classes else float_type(())
    choice = build.make.given(Role.SAMPLE, "given", kind)
    build.make.give(build.network())
    build.turn.after(choice)
    return build.finish()


def check_tensors(spec: VoiceSpec, tensors: Tensors) -> None:
    """Raise InvalidInput unless these are the tensors of `spec.tensor_shapes`, all finite."""
    wanted = spec.tensor_shapes()
    for name in (*wanted, *sorted(tensors.keys() - wanted.keys())):
        found = tensors[name].shape if name in tensors else None
        if found != wanted.get(name):
            wrong = f"tensor {name!r} has shape {found}, not {wanted.get(name)}"
            raise InvalidInput(f"{wrong}; give the tensors of spec.tensor_shapes()")
        if not np.isfinite(tensors[name]).all():
            raise InvalidInput(f"tensor {name!r} contains NaN or infinity; give finite weights")
    if spec.halved is not None:
        name = f"{spec.halved.name}.weight_ih"
        column = tensors[name][:, -1].reshape(3, 2, -1)
        if column[:, 0].any():
            raise InvalidInput(
                f"tensor {name!r} is not masked: its last column, for the coarse half just drawn, "
                "is not zero in the rows of the coarse units; set it to zero there"
            )


class _NetworkBuilder:
    """Builds the layers, and collects their terms of a frame."""

    def __init__(self, spec: VoiceSpec, tensors: Tensors) -> None:
        self.spec, self.make = spec, SampleWriter(spec.hop_length)
        self._tensors = {name: array.astype(np.float64) for name, array in tensors.items()}
        self._terms: list[FrameTerm] = []
        self._kernels: dict[str, list[Value]] = {}
        self._conditioning = {each.name: each for each in spec.conditioning}
        self.turn = SampleTurn(self.make, spec)
        self._states = {
            layer.name: self.make.state(layer.name, np.zeros(layer.size, np.float32))
            for layer in spec.layers
            if isinstance(layer, GruSpec)
        }
        # The kernels come before all other inputs of a sample.
        for each in spec.conditioning:
            if isinstance(each, InterpolatedConditioning):
                self._kernels[each.name] = self._kernel_weights(each)

    def _kernel_weights(self, each: InterpolatedConditioning) -> list[Value]:
        """The weights of an interpolation's taps for a sample, each a scalar value ()."""
        row = self.make.given(Role.SAMPLE, f"{each.name}.kernel", float_type((each.taps,)))
        return [_element(self.make, row, tap) for tap in range(each.taps)]

    def network(self) -> Value:
        """Build all layers, and return the output of the last one, (n,)."""
        parts = [self._input(each) for each in self.spec.inputs]
        result = parts[0]
        for layer in self.spec.layers:
            result = self._layer(layer, parts)
            parts = [result]
        return self._value(self.spec.layers[-1].name, result)

    def halves(
        self, output: DualSoftmax, choose: Callable[[int, Value], Value]
    ) -> tuple[Value, Value]:
        """Build a dual softmax: its GRU and both heads. Returns the coarse and the fine class.

        `choose` returns a class, drawn or given, for number 0 (coarse) or 1 (fine) and its logits.
        """
        parts = [self._input(each) for each in self.spec.inputs]
        *layers, gru = self.spec.layers
        for layer in layers:
            parts = [self._layer(layer, parts)]
        assert isinstance(gru, GruSpec)
        half, state = gru.size // 2, self._states[gru.name]
        # Gates r, z, n of the first half of units, then of the second.
        order = np.arange(3 * gru.size).reshape(3, 2, half).swapaxes(0, 1).reshape(-1)
        gates, recurrent = self._gate_products(gru, parts, order)
        column = self._tensors[f"{gru.name}.weight_ih"][order[3 * half :], -1]
        chosen: list[Value] = []
        states: list[Value] = []
        for number, head in enumerate((output.coarse, output.fine)):
            own = self._part(gates, number)
            if number:
                level = self.turn.half_level(output, chosen[0])
                weights = self.make.constant(column.astype(np.float32), f"{gru.name}.coarse")
                own = self.make.pointwise("fma", weights, level, own, name=f"{gru.name}.input")
            operands = own, self._part(recurrent, number), self._part(state, number)
            states.append(self.make.one(GruStep(), *operands, name=f"{gru.name}.gates"))
            result = Features.of_computed(states[-1], 1.0)
            for layer in head:
                result = self._dense(layer, [result])
            chosen.append(choose(number, self._value(f"half {number}", result)))
        self._states[gru.name] = self.make.one(Concat(0), *states, name=gru.name)
        return chosen[0], chosen[1]

    def _part(self, vector: Value, half: int) -> Value:
        """The first (0) or the second half (1) of a vector."""
        size = vector.shape[0] // 2
        both = Slice(0, half * size, (half + 1) * size)
        return self.make.one(both, vector, name=vector.origin.name)

    def _input(self, each: NetworkInput) -> Features:
        last = self.turn.last(each)
        if isinstance(each, LastSample | LastHalves):
            columns = np.eye(each.size)
            return Features(np.zeros(each.size), scaled=tuple(zip(last, columns, strict=True)))
        table = self._tensors[f"{each.name}.table"]
        return Features(np.zeros(each.size), rows=((last[0], table),))

    def _layer(self, layer: SampleLayer, parts: Sequence[Features]) -> Features:
        if isinstance(layer, GruSpec):
            return self._gru(layer, parts)
        if isinstance(layer, DualDenseSpec):
            return self._dual_dense(layer, parts)
        return self._dense(layer, parts)

    def _dual_dense(self, layer: DualDenseSpec, parts: Sequence[Features]) -> Features:
        """Both products in one, whose halves are then weighed and added."""
        name, scale = layer.name, self._tensors[f"{layer.name}.scale"]
        for each in ("weight", "bias"):
            both = self._tensors[f"{name}.{each}"]
            self._tensors[f"{name}.{each}"] = both.reshape(-1, *both.shape[2:])
        joined = layer.concatenated, layer.added
        result = self._dense(DenseSpec(name, 2 * layer.size, Activation.TANH, *joined), parts)
        halves = [self._part(self._value(name, result), number) for number in range(2)]
        scales = [self.make.constant(row.astype(np.float32), f"{name}.scale") for row in scale]
        first = self.make.pointwise("mul", halves[0], scales[0], name=name)
        total = self.make.pointwise("fma", halves[1], scales[1], first, name=name)
        return Features.of_computed(total)

    def _dense(self, layer: DenseSpec, parts: Sequence[Features]) -> Features:
        name = layer.name
        weights, bias = self._tensors[f"{name}.weight"], self._tensors[f"{name}.bias"]
        before, matrix, rest = self._product(layer, parts, weights, bias)
        if before.computed is None and layer.activation is Activation.NONE:
            return rest
        value = self._activated(layer, before, matrix, rest)
        return Features.of_computed(value)

    def _activated(
        self, layer: DenseSpec, before: Features, matrix: DoubleArray, rest: Features
    ) -> Value:
        if before.computed is not None:
            return self._linear(layer.name, before, matrix, rest, layer.activation)
        value = self._value(layer.name, rest)
        return self.make.activated(layer.activation, value, layer.name)

    def _gru(self, layer: GruSpec, parts: Sequence[Features]) -> Features:
        name = layer.name
        products = self._gate_products(layer, parts, np.arange(3 * layer.size))
        operands = *products, self._states[name]
        self._states[name] = state = self.make.one(GruStep(), *operands, name=f"{name}.gates")
        if not layer.residual:
            return Features.of_computed(state, 1.0)
        return self._with_residual(layer, parts[0], state)

    def _gate_products(
        self, layer: GruSpec, parts: Sequence[Features], order: npt.NDArray[np.intp]
    ) -> tuple[Value, Value]:
        """The gates' products with input and state, (3 * size,), with rows in the given order."""
        name = layer.name
        weight_ih, weight_hh, bias_ih, bias_hh = (
            self._tensors[f"{name}.{each}"]
            for each in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        if layer is self.spec.halved:
            weight_ih = weight_ih[:, :-1]
        # The recurrent bias of the new gate stays in its recurrent product, which r multiplies.
        is_outside = np.arange(3 * layer.size) < 2 * layer.size
        both = bias_ih + np.where(is_outside, bias_hh, 0)
        before, matrix, rest = self._product(layer, parts, weight_ih, both)
        gates = self._linear(f"{name}.input", before, matrix[order], rest.picked(order))
        new_bias = np.where(is_outside, 0, bias_hh)[order]
        recurrent = self.make.linear(
            name,
            self._states[name],
            weight_hh[order].astype(np.float32),
            self.make.constant(new_bias.astype(np.float32), f"{name}.bias"),
            x_steps=Quantisation(STATE_STEP, 0, symmetric=True),
        )
        return gates, recurrent

    def _with_residual(self, layer: GruSpec, before: Features, state: Value) -> Features:
        if before.computed is None:
            return before.plus(Features.of_computed(state, 1.0))
        total = self.make.pointwise("add", before.computed, state, name=layer.name)
        largest = None if before.largest is None else before.largest + 1
        return before.known.plus(Features.of_computed(total, largest))

    def _product(
        self, layer: SampleLayer, parts: Sequence[Features], matrix: DoubleArray, bias: DoubleArray
    ) -> tuple[Features, DoubleArray, Features]:
        """A layer's product in two parts: of computed features, and of all that is known before.

        Returns the computed features, their columns of the matrix, and the rest, multiplied, with
        bias.
        """
        joined = [
            Features.of_conditioning(name, self._conditioning[name].size)
            for name in layer.concatenated
        ]
        rest, before, columns = Features(bias), parts[0], matrix[:, :0]
        for part, own in columns_of(matrix, (*parts, *joined)):
            rest = rest.plus(part.product(own))
            if part.computed is not None:
                before, columns = part, own
        for name in layer.added:
            rest = rest.plus(Features.of_conditioning(name, layer.out_features))
        return before, columns, rest

    def _linear(
        self,
        name: str,
        before: Features,
        matrix: DoubleArray,
        rest: Features,
        activation: Activation = Activation.NONE,
    ) -> Value:
        """activation(matrix times the computed part + rest)."""
        value = self._value(f"{name}.term", rest)
        if before.computed is None:
            return value
        steps, weights = None, matrix.astype(np.float32)
        if before.largest is not None:
            steps = Quantisation(before.largest * STATE_STEP, 0, symmetric=True)
        return self.make.linear(name, before.computed, weights, value, activation, steps)

    def _value(self, name: str, features: Features) -> Value:
        """The vector that is the sum of all parts of some features, as a value of the graph."""
        if features.computed is not None and not features.known.is_zero:
            value = self._value(name, features.known)
            return self.make.pointwise("add", features.computed, value, name=name)
        if features.computed is not None:
            return features.computed
        value = self._held(name, features)
        for scalar, column in features.scaled:
            vector = self.make.constant(column.astype(np.float32), name)
            value = self.make.pointwise("fma", vector, scalar, value, name=name)
        for each, weights in features.conditioning.items():
            if each in self._kernels:
                value = self._interpolated(name, each, weights, value)
        if features.rows:
            tables = [
                self.make.constant(table.astype(np.float32), name) for _, table in features.rows
            ]
            indices = (index for index, _ in features.rows)
            value = self.make.one(SumOfRows(), *indices, *tables, value, name=name)
        return value

    def _held(self, name: str, features: Features) -> Value:
        """The constant plus the terms that all samples of a frame share: an input of the frame."""
        held = {n: w for n, w in features.conditioning.items() if n not in self._kernels}
        if not held:
            return self.make.constant(features.constant.astype(np.float32), f"{name}.bias")
        self._terms.append(FrameTerm(name, features.constant, held))
        return self.make.given(Role.FRAME, name, float_type(features.constant.shape))

    def _interpolated(self, name: str, each: str, weights: DoubleArray, value: Value) -> Value:
        """value + W c for interpolated conditioning c: the sum over taps of weight * W c."""
        kernel, size = self._kernels[each], len(weights)
        self._terms.append(
            FrameTerm(f"{name}.{each}", np.zeros(size), {each: weights}, len(kernel))
        )
        for tap, weight in enumerate(kernel):
            frame = self.make.given(Role.FRAME, f"{name}.{each}.{tap}", float_type((size,)))
            value = self.make.pointwise("fma", frame, weight, value, name=name)
        return value

    def finish(self, *states: Value) -> SpecGraph:
        """The graph; `states` are further states, besides the turn's and the GRUs'."""
        self.make.keep(*self.turn.states(), *self._states.values(), *states)
        kernels = (self._tensors[f"{name}.kernel"] for name in self._kernels)
        narrow = tuple(np.ascontiguousarray(kernel, np.float32) for kernel in kernels)
        given = () if self.turn.signal is None else self.turn.signal.terms
        return SpecGraph(self.make.loop(), (*given, *self._terms), narrow)


def _element(make: SampleWriter, row: Value, index: int) -> Value:
    one = make.one(Slice(0, index, index + 1), row, name="kernel")
    return make.one(Reshape(()), one, name="kernel")


class FrameTerms:
    """Computes the terms of frames of a network from its conditioning."""

    def __init__(self, graph: SpecGraph) -> None:
        self._kernels = graph.kernels
        self._terms = graph.terms
        self._products = {
            (term.name, name): RowwiseLinear(weights)
            for term in graph.terms
            if isinstance(term, FrameTerm)
            for name, weights in term.weights.items()
            if not _is_identity(weights)
        }

    def __call__(self, conditioning: Mapping[str, DoubleArray], frames: int) -> LoopArrays:
        """The loop's inputs for `frames` frames.

        conditioning: arrays by name, (frames, size); interpolated conditioning is
        (frames + taps - 1, size), from `taps` // 2 frames before the first. With linear prediction
        also PREDICTOR, (frames, 32), and RESIDUAL_SCALE and LEVEL_SCALE, (frames,).
        """
        arrays: list[Array] = []
        for term in self._terms:
            if isinstance(term, FrameTerm):
                arrays += self._rows(term, conditioning, frames)
            else:
                arrays.append(np.ascontiguousarray(conditioning[term], np.float32))
        kernels = [np.tile(kernel, (frames, 1)) for kernel in self._kernels]
        return LoopArrays(frames, [aligned_copy(each) for each in arrays], kernels)

    def _rows(
        self, term: FrameTerm, conditioning: Mapping[str, DoubleArray], frames: int
    ) -> list[Array]:
        """An array (frames, n) for each tap of a term."""
        total = np.tile(term.constant, (frames + term.taps - 1, 1))
        for name in term.weights:
            product, rows = self._products.get((term.name, name)), conditioning[name]
            total = total + (rows if product is None else product(rows))
        narrow = np.ascontiguousarray(total, np.float32)
        return [narrow[tap : tap + frames] for tap in range(term.taps)]


def _is_identity(weights: DoubleArray) -> bool:
    """Whether the weights add conditioning unchanged."""
    rows, columns = weights.shape
    return rows == columns and np.array_equal(weights, np.eye(rows))
