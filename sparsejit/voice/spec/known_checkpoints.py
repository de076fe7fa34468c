"""Readers of state dicts with known tensor names.

They are fatchord/WaveRNN's, and the one-GRU network of geneing/WaveRNN-Pytorch with the names that
the project's `wavernn-16k` gives it.

`ResidualStack` is the conditioning of fatchord's WaveRNN: a residual stack of convolutions, and
smoothed repeats. Source: github.com/fatchord/WaveRNN, models/fatchord_version.py (MIT licence),
`UpsampleNetwork`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from math import prod
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.frontends.arrays import to_array
from sparsejit.frontends.files import read_tensors
from sparsejit.ir.spec import Activation
from sparsejit.voice.features import FloatArray
from sparsejit.voice.spec.known_parts import DoubleArray, RowwiseLinear, taps_in_a_row
from sparsejit.voice.spec.layers import SampleLayer
from sparsejit.voice.spec.network_graph import Tensors
from sparsejit.voice.spec.trained import TrainedNetwork
from sparsejit.voice.spec.voice_spec import (
    Categorical,
    Companding,
    DenseSpec,
    GruSpec,
    HeldConditioning,
    InterpolatedConditioning,
    LastSample,
    MixtureOfLogistics,
    VoiceSpec,
)

BATCH_NORM_EPSILON = 1e-5


@dataclass(frozen=True, eq=False)
class BatchNorm:
    """(x - mean) / sqrt(variance + 1e-5) * weight + bias, each (n,)."""

    weight: FloatArray
    bias: FloatArray
    mean: FloatArray
    variance: FloatArray

    def folded(self, weight: FloatArray, bias: FloatArray | float = 0.0) -> RowwiseLinear:
        """The product with weight (n, m) and bias (n,) followed by this norm, as one product."""
        variance = self.variance.astype(np.float64) + BATCH_NORM_EPSILON
        scale = self.weight / np.sqrt(variance)
        return RowwiseLinear(weight * scale[:, None], self.bias + (bias - self.mean) * scale)


@dataclass(frozen=True, eq=False)
class ResidualBlock:
    """x + second(relu(first(x)))."""

    first: RowwiseLinear
    second: RowwiseLinear

    def __call__(self, x: DoubleArray) -> DoubleArray:
        return x + self.second(np.maximum(self.first(x), 0))


@dataclass(frozen=True, eq=False)
class ResidualStack:
    """Features of each frame from the mel of `width` frames around it."""

    width: int
    entry: RowwiseLinear
    blocks: Sequence[ResidualBlock]
    exit: RowwiseLinear

    def __call__(self, mel: DoubleArray) -> DoubleArray:
        """mel (frames + width - 1, bands); returns (frames, features)."""
        frames = len(mel) - self.width + 1
        around = [mel[k : k + frames] for k in range(self.width)]
        x = np.maximum(self.entry(np.concatenate(around, axis=1)), 0)
        for block in self.blocks:
            x = block(x)
        return self.exit(x)


def interpolation_kernel(kernels: Sequence[FloatArray], taps: int) -> FloatArray:
    """Combine repeating by (len(k) - 1) / 2 and smoothing with k, for each k in turn, into one.

    Returns float32 (hop, taps): the weights of the frames around each sample of a frame. Raises
    InvalidInput where samples depend on more frames.
    """
    frames = 3 * taps
    impulse = np.zeros(frames)
    impulse[frames // 2] = 1
    hop = 1
    for kernel in kernels:
        scale = (len(kernel) - 1) // 2
        # torch's convolution does not reverse the kernel; numpy's does.
        impulse = np.convolve(np.repeat(impulse, scale), kernel[::-1].astype(np.float64), "same")
        hop *= scale
    # Frame f's weight in a sample of the middle frame is the middle's weight in f's mirror frame.
    rows = impulse.reshape(frames, hop)[::-1]
    first = frames // 2 - taps // 2
    if rows[:first].any() or rows[first + taps :].any():
        scales = [(len(kernel) - 1) // 2 for kernel in kernels]
        raise InvalidInput(
            f"upsampling by {scales} with smoothing reads more than the {taps} frames that the "
            "residual stack reads; describe the network by a VoiceSpec"
        )
    return rows[first : first + taps].T.astype(np.float32)


MEL = "mel"
# Such networks read mels scaled to about one: [0, 1], or [-4, 4]. Decibels are far beyond.
LARGEST_MEL = 10.0
# Counters that training keeps in a state dict.
_COUNTERS = ("num_batches_tracked", "step")
# Outputs for a mixture of ten logistics.
_MIXTURE = 30
_GRU_PARTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_ANY = 0


class TensorReader:
    """Takes tensors of a state dict by name, and checks their shapes."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors, self._left = tensors, dict(tensors)

    def has(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, *shape: int) -> FloatArray:
        """Take a tensor; a length of 0 allows any. Raises InvalidInput where none fits."""
        wanted = ", ".join(str(n) if n else "any" for n in shape)
        if name not in self._tensors:
            raise InvalidInput(
                f"the checkpoint has no tensor {name!r}, ({wanted}); give the whole state dict"
            )
        found = self._tensors[name]
        same = len(found.shape) == len(shape) and all(
            n in (_ANY, m) for n, m in zip(shape, found.shape, strict=True)
        )
        if not same:
            raise InvalidInput(f"tensor {name!r} has shape {found.shape}, not ({wanted})")
        if not np.isfinite(found).all():
            raise InvalidInput(f"tensor {name!r} has NaN or infinity in it; train it again")
        self._left.pop(name, None)
        return found

    def finish(self) -> None:
        """Raise InvalidInput where a tensor was not taken."""
        for name, array in self._left.items():
            raise InvalidInput(
                f"tensor {name!r} of shape {array.shape} is in no WaveRNN of this kind; "
                "give the state dict of the network alone, or describe it by a VoiceSpec"
            )


@dataclass(frozen=True)
class KnownFormat:
    """Format of one project's state dicts: names of the parts, and default values.

    stack, blocks, norm: names of the residual stack, its blocks, and batch norms 1 and 2 in them.
    kernel, first_kernel, kernel_step, kernel_axes: the names of upsampling kernels, the first
        number in them and its step, and the kernel's axes of one element before its taps.
    grus, dense: layers after "I", by name, with the features that are concatenated to each; the
        last has no activation, all other dense ones ReLU.
    gru_suffix: suffix of the names of a GRU's tensors.
    parts: number of parts of the stack's features, "aux1" and so on; unread: number of features
        that are left out at the end of the first part.
    """

    sample_rate: int
    companding: Companding
    stack: str
    blocks: str
    norm: str
    kernel: str
    first_kernel: int
    kernel_step: int
    kernel_axes: int
    grus: Mapping[str, tuple[str, ...]]
    dense: Mapping[str, tuple[str, ...]]
    gru_suffix: str
    parts: int
    unread: int = 0


FATCHORD = KnownFormat(
    sample_rate=22_050,
    companding=Companding.MU_LAW,
    stack="upsample.resnet",
    blocks="layers",
    norm="batch_norm",
    kernel="upsample.up_layers.{}.weight",
    first_kernel=1,
    kernel_step=2,
    kernel_axes=3,
    grus={"rnn1": (), "rnn2": ("aux2",)},
    dense={"fc1": ("aux3",), "fc2": ("aux4",), "fc3": ()},
    gru_suffix="_l0",
    parts=4,
)
ONE_GRU = KnownFormat(
    sample_rate=16_000,
    companding=Companding.LINEAR,
    stack="cond",
    blocks="res",
    norm="bn",
    kernel="upsample.{}.kernel",
    first_kernel=0,
    kernel_step=1,
    kernel_axes=0,
    grus={"rnn": ()},
    dense={"fc1": ("aux2",), "fc2": ()},
    gru_suffix="",
    parts=2,
    unread=1,
)


@dataclass(frozen=True, eq=False)
class StackReader:
    """Conditioning by name: the mel itself, and slices [first, end) of the stack's features."""

    bands: int
    stack: ResidualStack
    features: Mapping[str, tuple[int, int]]
    is_log_mel = False

    @property
    def around(self) -> int:
        return self.stack.width // 2

    def beyond(self, frame: FloatArray) -> FloatArray:
        """Zeros in place of frames before the first or after the last frame, as in training."""
        return np.zeros((len(frame), self.around), np.float32)

    def check_scale(self, mel: FloatArray) -> None:
        largest = float(np.abs(mel).max())
        if largest > LARGEST_MEL:
            raise InvalidInput(
                f"the mel has values of size {largest:.4g}; scale it as in the network's training, "
                "to [0, 1] or [-4, 4]"
            )

    def __call__(self, mel: DoubleArray) -> dict[str, DoubleArray]:
        found = self.stack(mel)
        parts = {name: found[:, first:end] for name, (first, end) in self.features.items()}
        return {MEL: mel, **parts}


def read_checkpoint(source: str | os.PathLike[str] | Mapping[str, Any]) -> dict[str, FloatArray]:
    """Read the tensors, float32 by name, of a state dict or a file of one, safetensors or torch's.

    They are copies, since training may go on; counters of steps and batches are left out. Raises
    as `read_tensors` does.
    """
    state = source if isinstance(source, Mapping) else read_tensors(source)
    return {
        name: np.array(to_array(value, name, takes_bools=name.endswith("_mask")), np.float32)
        for name, value in state.items()
        if name.rpartition(".")[2] not in _COUNTERS
    }


def known_network(
    tensors: Tensors, sample_rate: int | None = None, companding: str | None = None
) -> TrainedNetwork:
    """Make the network of a state dict; arguments that are None have the format's default:

    sample_rate: in Hz; 22,050 for fatchord's, 16,000 for the one-GRU network.
    companding: spacing of classes, "linear" or "mu_law"; mu_law for fatchord's, else linear.

    Raises InvalidInput that names the first tensor that does not fit.
    """
    reader = TensorReader(tensors)
    curve = None if companding is None else Companding.parse(companding)
    for known in (FATCHORD, ONE_GRU):
        if reader.has(f"{known.stack}.conv_in.weight"):
            network = _network(
                reader, known, sample_rate or known.sample_rate, curve or known.companding
            )
            reader.finish()
            return network
    first = next(iter(tensors), None)
    raise InvalidInput(
        f"the checkpoint begins with tensor {first!r} and has no {FATCHORD.stack}.conv_in.weight, "
        "which fatchord's WaveRNN has; describe other networks by a VoiceSpec"
    )


def _network(
    reader: TensorReader, known: KnownFormat, sample_rate: int, companding: Companding
) -> TrainedNetwork:
    numbers = count(known.first_kernel, known.kernel_step)
    names = takewhile(reader.has, (known.kernel.format(number) for number in numbers))
    axes = (1,) * known.kernel_axes
    kernels = [reader.take(name, *axes, _ANY).reshape(-1) for name in names]
    _, bands, width = reader.take(f"{known.stack}.conv_in.weight", _ANY, _ANY, _ANY).shape
    stack, features = _stack(reader, known)
    ends = np.arange(known.parts + 1) * (features // known.parts)
    aux = {f"aux{n + 1}": (int(ends[n]), int(ends[n + 1])) for n in range(known.parts)}
    aux["aux1"] = (0, aux["aux1"][1] - known.unread)
    sizes = {name: len(reader.take(f"{name}.weight", _ANY, _ANY)) for name in ("I", *known.dense)}
    last = [*known.dense][-1]
    activations = {**dict.fromkeys(known.dense, Activation.RELU), last: Activation.NONE}
    layers: tuple[SampleLayer, ...] = (
        DenseSpec("I", sizes["I"], concatenated=(MEL, "aux1")),
        *(GruSpec(name, sizes["I"], True, joined) for name, joined in known.grus.items()),
        *(
            DenseSpec(name, sizes[name], activations[name], joined)
            for name, joined in known.dense.items()
        ),
    )
    held = (HeldConditioning(name, end - first) for name, (first, end) in aux.items())
    spec = VoiceSpec(
        sample_rate,
        prod((len(kernel) - 1) // 2 for kernel in kernels),
        (LastSample(),),
        (InterpolatedConditioning(MEL, bands, width), *held),
        layers,
        _output(f"{last}.weight", sizes[last], companding),
    )
    reads = StackReader(bands, stack, aux)
    return TrainedNetwork(spec, _tensors(reader, spec, kernels, known.gru_suffix), reads)


def _output(
    name: str, outputs: int, companding: Companding
) -> Categorical | MixtureOfLogistics:
    """The distribution whose parameters are `outputs` numbers: classes, or a mixture.

    Raises InvalidInput where these fit neither; `name` is the last layer's tensor.
    """
    if outputs == _MIXTURE:
        return MixtureOfLogistics(_MIXTURE // 3)
    if outputs < 2 or outputs & (outputs - 1):
        raise InvalidInput(
            f"tensor {name!r} has {outputs} outputs, neither classes of some bits nor a mixture of "
            "ten logistics (30); describe the network by a VoiceSpec"
        )
    return Categorical(outputs, companding)


def _tensors(
    reader: TensorReader, spec: VoiceSpec, kernels: list[FloatArray], gru_suffix: str
) -> Tensors:
    """The tensors that the spec names; a GRU's have a suffix in the state dict."""
    (mel,) = (c for c in spec.conditioning if isinstance(c, InterpolatedConditioning))
    tensors = {f"{MEL}.kernel": interpolation_kernel(kernels, mel.taps)}
    for name, shape in spec.tensor_shapes().items():
        if name in tensors:
            continue
        is_gru = name.rpartition(".")[2] in _GRU_PARTS
        tensors[name] = reader.take(f"{name}{gru_suffix}" if is_gru else name, *shape)
    return tensors


def _stack(reader: TensorReader, names: KnownFormat) -> tuple[ResidualStack, int]:
    """The residual stack, and the number of its features."""
    prefix = names.stack
    conv_in = reader.take(f"{prefix}.conv_in.weight", _ANY, _ANY, _ANY)
    size, _, width = conv_in.shape
    bias: FloatArray | float = 0.0
    if reader.has(f"{prefix}.conv_in.bias"):
        bias = reader.take(f"{prefix}.conv_in.bias", size)
    entry = _batch_norm(reader, f"{prefix}.batch_norm", size).folded(taps_in_a_row(conv_in), bias)
    blocks: list[ResidualBlock] = []
    while reader.has(f"{prefix}.{names.blocks}.{len(blocks)}.conv1.weight"):
        block = f"{prefix}.{names.blocks}.{len(blocks)}"
        first, second = (
            _batch_norm(reader, f"{block}.{names.norm}{n}", size).folded(
                reader.take(f"{block}.conv{n}.weight", size, size, 1)[..., 0]
            )
            for n in (1, 2)
        )
        blocks.append(ResidualBlock(first, second))
    conv_out = reader.take(f"{prefix}.conv_out.weight", _ANY, size, 1)[..., 0]
    exit_bias = reader.take(f"{prefix}.conv_out.bias", len(conv_out))
    return ResidualStack(width, entry, blocks, RowwiseLinear(conv_out, exit_bias)), len(conv_out)


def _batch_norm(reader: TensorReader, name: str, size: int) -> BatchNorm:
    parts = ("weight", "bias", "running_mean", "running_var")
    return BatchNorm(*(reader.take(f"{name}.{part}", size) for part in parts))
