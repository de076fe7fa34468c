"""Small networks of a `VoiceSpec` with random weights, and what they mean, written plainly."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sparsejit.ir import reference
from sparsejit.ir.graph import Array, Graph, Node
from sparsejit.ir.ops.sampling import Draw
from sparsejit.ir.ops.tree_draw import TreeDraw
from sparsejit.ir.spec import Activation
from sparsejit.lowering.loop import Role
from sparsejit.voice.loop_arrays import LoopArrays
from sparsejit.voice.sample_graph import SampleGraph
from sparsejit.voice.spec import (
    BinaryTree,
    Categorical,
    Companding,
    DenseSpec,
    DualDenseSpec,
    DualSoftmax,
    Gaussian,
    GruSpec,
    HeldConditioning,
    InterpolatedConditioning,
    LastClass,
    LastHalves,
    LastSample,
    MixtureOfLogistics,
    SampleOutput,
    VoiceSpec,
)

HOP = 5
MEL, AUX, GATES = "mel", "aux", "gates"
CONDITIONING = (InterpolatedConditioning(MEL, 7, 3), HeldConditioning(AUX, 4))


def two_grus(output: SampleOutput) -> VoiceSpec:
    """As fatchord's: a scalar, residual additions, conditioning joined to every layer."""
    layers = (
        DenseSpec("I", 24, concatenated=(MEL, AUX)),
        GruSpec("rnn1", 24, residual=True),
        GruSpec("rnn2", 24, residual=True, concatenated=(AUX,)),
        DenseSpec("fc1", 20, Activation.RELU, concatenated=(AUX,)),
        DenseSpec("fc2", output.parameters),
    )
    return VoiceSpec(16_000, HOP, (LastSample(),), CONDITIONING, layers, output, 0.8)


def tables_and_added_gates(output: SampleOutput) -> VoiceSpec:
    """As LPCNet's: rows of tables, gate terms of a frame, a second, smaller GRU."""
    layers = (
        GruSpec("gru_a", 32, added=(GATES,)),
        GruSpec("gru_b", 16, concatenated=(AUX,)),
        DualDenseSpec("fc", output.parameters),
    )
    conditioning = (HeldConditioning(AUX, 4), HeldConditioning(GATES, 96))
    inputs = (LastClass("excitation", 12, 3), LastSample())
    return VoiceSpec(16_000, HOP, inputs, conditioning, layers, output)


def dense_first(output: SampleOutput) -> VoiceSpec:
    """An activation before the GRU, and a linear layer after it."""
    layers = (
        DenseSpec("in", 16, Activation.TANH, concatenated=(MEL,)),
        GruSpec("gru", 16, residual=True),
        DenseSpec("narrow", 8, concatenated=(AUX,)),
        DenseSpec("out", output.parameters),
    )
    return VoiceSpec(8_000, HOP, (LastSample(),), CONDITIONING, layers, output, 1.3)


def halved_gru(bits: int) -> VoiceSpec:
    """As Kalchbrenner's: the fine half of a class sees the coarse half, conditioning joined."""
    coarse, fine = (
        (
            DenseSpec(f"{name}1", 12, Activation.RELU, concatenated=(AUX,)),
            DenseSpec(f"{name}2", 2**bits),
        )
        for name in ("coarse", "fine")
    )
    layers = (GruSpec("gru", 48, concatenated=(MEL,)),)
    inputs = (LastHalves(first=2 ** (2 * bits - 1)),)
    output = DualSoftmax(coarse, fine, bits)
    return VoiceSpec(16_000, HOP, inputs, CONDITIONING, layers, output, 0.9)


def dense_before_halves() -> VoiceSpec:
    """A product before the GRU, too, and no layer behind it."""
    layers = (DenseSpec("in", 10, Activation.RELU6, concatenated=(AUX,)), GruSpec("gru", 32))
    return VoiceSpec(8_000, HOP, (LastSample(),), CONDITIONING, layers, DualSoftmax((), (), 4))


SPECS = {
    "linear classes": two_grus(Categorical(64)),
    "mu-law classes": tables_and_added_gates(Categorical(256, Companding.MU_LAW)),
    "logistics": two_grus(MixtureOfLogistics(5)),
    "gaussian": dense_first(Gaussian()),
    "tree": tables_and_added_gates(BinaryTree(6)),
    "dual softmax": halved_gru(5),
    "halves of a state": dense_before_halves(),
}


def random_tensors(spec: VoiceSpec, seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    generator = np.random.default_rng(seed)
    tensors = {
        name: (generator.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in spec.tensor_shapes().items()
    }
    if spec.halved is not None:
        column = tensors[f"{spec.halved.name}.weight_ih"][:, -1].reshape(3, 2, -1)
        column[:, 0] = 0  # the mask
        column[:, 1] *= 3
    return tensors


def random_conditioning(spec: VoiceSpec, frames: int, seed: int = 1) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    rows = {
        c.name: frames + (c.taps - 1 if isinstance(c, InterpolatedConditioning) else 0)
        for c in spec.conditioning
    }
    return {c.name: generator.standard_normal((rows[c.name], c.size)) for c in spec.conditioning}


def plain_parameters(
    spec: VoiceSpec,
    tensors: Mapping[str, Array],
    conditioning: Mapping[str, Array],
    last: Sequence[Sequence[float]],
) -> Iterator[Array]:
    """What the last layer gives for each sample, by `spec`'s formulas.

    `last` are its inputs, and of a dual softmax what is fed of the coarse half just drawn; then
    the logits of both halves come joined.
    """
    wide = {name: array.astype(np.float64) for name, array in tensors.items()}
    states = {
        layer.name: np.zeros(layer.size) for layer in spec.layers if isinstance(layer, GruSpec)
    }
    for sample, values in enumerate(last):
        features = {}
        for each in spec.conditioning:
            rows, frame = conditioning[each.name], sample // spec.hop_length
            if isinstance(each, InterpolatedConditioning):
                weights = wide[f"{each.name}.kernel"][sample % spec.hop_length]
                features[each.name] = weights @ rows[frame : frame + each.taps]
            else:
                features[each.name] = rows[frame]
        given = iter(values)
        inputs = [
            wide[f"{each.name}.table"][int(next(given))]
            if isinstance(each, LastClass)
            else [next(given) for _ in range(each.size)]
            for each in spec.inputs
        ]
        x = np.concatenate(inputs)
        coarse = [values[-1]] if spec.halved is not None else []
        for layer in spec.layers:
            features["c"] = coarse if layer is spec.halved else []
            x = _layer(layer, x, features, wide, states)
        if isinstance(spec.output, DualSoftmax):
            halves = list(np.split(x, 2))
            for number, head in enumerate((spec.output.coarse, spec.output.fine)):
                features["c"] = []
                for dense in head:
                    halves[number] = _layer(dense, halves[number], features, wide, states)
            x = np.concatenate(halves)
        yield x


def _layer(
    layer: DenseSpec | DualDenseSpec | GruSpec,
    x: Array,
    features: Mapping[str, Array],
    wide: Mapping[str, Array],
    states: dict[str, Array],
) -> Array:
    joined = np.concatenate([x, *(features[name] for name in (*layer.concatenated, "c"))])
    added = sum(features[name] for name in layer.added)
    if isinstance(layer, DenseSpec):
        y = wide[f"{layer.name}.weight"] @ joined + wide[f"{layer.name}.bias"] + added
        return reference.ACTIVATIONS[layer.activation](y)
    if isinstance(layer, DualDenseSpec):
        parts = (wide[f"{layer.name}.{part}"] for part in ("weight", "bias", "scale"))
        return sum(s * np.tanh(w @ joined + b) for w, b, s in zip(*parts, strict=True))
    ih, hh, b_ih, b_hh = (
        wide[f"{layer.name}.{part}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    r_x, z_x, n_x = np.split(ih @ joined + b_ih + added, 3)
    r_h, z_h, n_h = np.split(hh @ states[layer.name] + b_hh, 3)
    reset, update = reference.sigmoid(r_x + r_h), reference.sigmoid(z_x + z_h)
    new = np.tanh(n_x + reset * n_h)
    states[layer.name] = h = (1 - update) * new + update * states[layer.name]
    return x + h if layer.residual else h


class GraphTurns:
    """A sample graph by `Graph.evaluate`, sample after sample, told what the loop gave."""

    def __init__(self, sample: SampleGraph, arrays: LoopArrays, seed: int) -> None:
        self._loop, self._arrays, self._seed = sample.loop, arrays, seed
        self._states = [np.array(state) for state in sample.initial]
        names = [value.origin.name for value in sample.graph.inputs]
        self._state_names = [
            n for n, role in zip(names, sample.loop.inputs, strict=True) if role is Role.STATE
        ]
        deciding = [value for node in _decisions(sample.graph) for value in node.inputs]
        self._results = len(sample.graph.outputs)
        self._graph = replace(sample.graph, outputs=(*sample.graph.outputs, *deciding))
        self._sample = 0

    def next(self) -> tuple[list[Array], float]:
        """Results of a sample, and how near a decision was: 0 where rounding may change it."""
        frame = self._sample // self._loop.hop
        given = {
            Role.CALL: iter([np.array(self._seed, np.uint64).view(np.int64)]),
            Role.FRAME: iter([array[frame] for array in self._arrays.of_frames]),
            Role.SAMPLE: iter([array[self._sample] for array in self._arrays.of_samples]),
            Role.STATE: iter(self._states),
        }
        values = self._graph.evaluate([next(given[role]) for role in self._loop.inputs])
        outputs, deciding = values[: self._results], values[self._results :]
        roles = list(zip(self._loop.outputs, outputs, strict=True))
        self._states = [value for role, value in roles if role is Role.STATE]
        self._sample += 1
        nodes = _decisions(self._graph)
        pairs = zip(nodes, deciding[::2], deciding[1::2], strict=True)
        margin = min((_margin(*pair) for pair in pairs), default=1.0)
        return [value for role, value in roles if role is Role.SAMPLE], margin

    def follow(self, name: str, value: float) -> None:
        """Go on from another value of a state."""
        if name in self._state_names:
            state = self._state_names.index(name)
            self._states[state] = np.asarray(value, self._states[state].dtype)


def _decisions(graph: Graph) -> list[Node]:
    """Draws of any kind."""
    return [node for node in graph.nodes if isinstance(node.op, Draw | TreeDraw)]


def _margin(node: Node, first: Array, second: Array) -> float:
    if isinstance(node.op, TreeDraw):
        read = node.op.path(first, second)[:-1]
        return float(np.abs(first[read] - second).min())
    assert isinstance(node.op, Draw)
    spec = node.op.spec(len(first))
    return float(reference.categorical_margin(spec, first, float(second)))
