"""Small networks of a `VoiceSpec` with random weights, and what they mean, written plainly."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sparsejit.ir import reference
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Array
from sparsejit.voice.prediction import quantise
from sparsejit.voice.spec.voice_spec import (
    LEVEL_SCALE,
    PREDICTOR,
    RESIDUAL_SCALE,
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
    LastSampleRow,
    MixtureOfLogistics,
    PredictionRow,
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
    last: Iterable[Sequence[float]],
) -> Iterator[Array]:
    """The last layer's results for each sample, by `spec`'s formulas.

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
            if not isinstance(each, LastSample | LastHalves)
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


def plain_signal(
    spec: VoiceSpec, classes: Iterable[int], frames: Mapping[str, Array]
) -> Iterator[tuple[list[int], np.float32]]:
    """The rows that `spec.inputs` read before each sample of linear prediction, and the sample.

    In float32 and the order of operations of `asm_templates/pointwise/signal.py`.
    """
    assert spec.prediction is not None
    levels = 2 * np.arange(256) / 255 - 1
    amplitudes = (np.sign(levels) * (256 ** np.abs(levels) - 1) / 255).astype(np.float32)
    wide = {name: np.asarray(array, np.float32) for name, array in frames.items()}
    limit, emphasis = np.float32(spec.prediction.limit), np.float32(spec.prediction.emphasis)
    history, output = np.zeros(32, np.float32), np.float32(0)
    (last,) = (each.first for each in spec.inputs if isinstance(each, LastClass))
    for sample, chosen in enumerate(classes):
        frame = sample // spec.hop_length
        # A balanced tree over 32 products: i and i + 16 first, then + 8, + 4, + 2, + 1.
        sums = wide[PREDICTOR][frame] * history
        while len(sums) > 1:
            sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
        signals = np.array([history[-1], sums[0]]) * wide[LEVEL_SCALE][frame]
        rows = {LastSampleRow: quantise(signals[0]), PredictionRow: quantise(signals[1])}
        inputs = [int(rows.get(type(each), last)) for each in spec.inputs]
        signal = amplitudes[chosen] * wide[RESIDUAL_SCALE][frame] + sums[0]
        signal = np.clip(signal, -limit, limit)
        history, last, output = np.append(history[1:], signal), chosen, signal + emphasis * output
        yield inputs, output


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


def speech_like_mel(frames: int, seed: int = 0) -> Array:
    steps = np.random.default_rng(seed).standard_normal((80, frames)) * 0.3
    return (np.cumsum(steps, axis=1) * 0.5 - 3).astype(np.float32)
