"""Spec of a network of the WaveRNN family: its inputs, its layers, and the draw of a sample.

A sample's features run through the layers in order. A layer reads the output of the layer before
it, followed by the conditioning that is concatenated to it:

    dense    y  = activation(W [x, c] + b + a);   two of them, added: `DualDenseSpec`
    GRU      h' = GRU(W_ih [x, c] + b_ih + a, h);   y = h', or x + h' with `residual`

`c` is conditioning that is concatenated, `a` conditioning that is added. The first layer's x are
the inputs one after the other, the last layer's y the parameters of the output's distribution.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real
from typing import TypeAlias

from sparsejit.errors import InvalidInput
from sparsejit.voice.spec.layers import (
    BinaryTree,
    Categorical,
    Companding,
    DenseSpec,
    DualDenseSpec,
    DualSoftmax,
    Gaussian,
    GruSpec,
    MixtureOfLogistics,
    SampleLayer,
    SampleOutput,
    Shape,
)

# All that describes a network, layers and outputs too.
__all__ = [
    "BinaryTree",
    "Categorical",
    "Companding",
    "DenseSpec",
    "DualDenseSpec",
    "DualSoftmax",
    "FrameConditioning",
    "Gaussian",
    "GruSpec",
    "HeldConditioning",
    "InterpolatedConditioning",
    "LastClass",
    "LastHalves",
    "LastSample",
    "LastSampleRow",
    "LinearPrediction",
    "MixtureOfLogistics",
    "NetworkInput",
    "PredictionRow",
    "VoiceSpec",
]

LAST_SAMPLE = "last sample"
PREDICTOR, RESIDUAL_SCALE, LEVEL_SCALE = "predictor", "residual scale", "level scale"
# Levels of a signal, the rows of tables.
LEVELS = 256
# Below these softmax(logits / temperature) is the greatest logit, above them it is even.
TEMPERATURES = (0.01, 100.0)


@dataclass(frozen=True)
class LastSample:
    """The previous sample, one number in [-1, 1], 0 at first.

    With classes it is 2 k / (classes - 1) - 1; with linear prediction it is the signal.
    """

    name: str = LAST_SAMPLE
    size: int = 1


@dataclass(frozen=True)
class LastHalves:
    """The coarse and the fine half of the previous class, two numbers 2 k / (2**bits - 1) - 1.

    At first they are the halves of class `first`; with 16 bits, 32,768 is silence.
    """

    name: str = "last halves"
    size: int = 2
    first: int = 32_768


@dataclass(frozen=True)
class LastClass:
    """A row of tensors["<name>.table"], (classes, size), for the previous class.

    The first sample reads the row of class `first`.
    """

    name: str
    size: int
    first: int


@dataclass(frozen=True)
class LastSampleRow:
    """A row of tensors["<name>.table"], (256, size), for the previous signal's level.

    The level is the signal times the frame's level scale, among 256 levels on the mu-law curve.
    """

    name: str
    size: int


@dataclass(frozen=True)
class PredictionRow:
    """A row as of `LastSampleRow`, for the level of the signal's prediction."""

    name: str
    size: int


@dataclass(frozen=True)
class LinearPrediction:
    """Linear prediction of the pre-emphasised signal; classes code its residual.

    prediction = sum over k of predictor[k] * signal[t - 1 - k]
    signal = clamp(amplitude of the class * residual scale + prediction, -limit, limit)
    sample = signal + emphasis * the previous sample

    A frame has PREDICTOR (32,), the oldest signal's weight first, RESIDUAL_SCALE and LEVEL_SCALE.
    """

    limit: float
    emphasis: float


@dataclass(frozen=True)
class HeldConditioning:
    """`size` features of a frame, the same for all its samples."""

    name: str
    size: int


@dataclass(frozen=True)
class InterpolatedConditioning:
    """`size` features of a sample, interpolated over `taps` frames, `taps` // 2 before its own.

    Sample p of a frame weighs them by row p of tensors["<name>.kernel"], (hop_length, taps).
    """

    name: str
    size: int
    taps: int


NetworkInput: TypeAlias = LastSample | LastHalves | LastClass | LastSampleRow | PredictionRow
FrameConditioning: TypeAlias = HeldConditioning | InterpolatedConditioning


@dataclass(frozen=True)
class VoiceSpec:
    """A network that makes `hop_length` samples of each frame of conditioning.

    Attributes:
        sample_rate: in Hz
        hop_length: samples a frame
        inputs: inputs of the first layer, from previous samples
        conditioning: features of a frame that layers read
        layers: one after the other
        output: the distribution from which a sample is drawn
        temperature: classes are drawn from softmax(logits / temperature)
        prediction: linear prediction, whose residual the network then draws

    Raises:
        InvalidInput: two parts have one name; conditioning is not declared; sizes of layers do not
            fit; the output lacks the classes that a last class or a prediction needs; rows of a
            signal are read without a prediction; the temperature is outside TEMPERATURES
    """

    sample_rate: int
    hop_length: int
    inputs: tuple[NetworkInput, ...]
    conditioning: tuple[FrameConditioning, ...]
    layers: tuple[SampleLayer, ...]
    output: SampleOutput
    temperature: float = 1.0
    prediction: LinearPrediction | None = None

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        layers = (layer for layer, _ in self.layer_inputs())
        names = [part.name for part in (*self.inputs, *self.conditioning, *layers)]
        for name in names:
            if names.count(name) > 1:
                count = names.count(name)
                raise InvalidInput(f"{count} parts are named {name!r}; give each its own")
        self._check_inputs()
        self._check_layers()

    @property
    def has_classes(self) -> bool:
        """Whether a sample is one of some classes."""
        return isinstance(self.output, Categorical | BinaryTree | DualSoftmax)

    @property
    def halved(self) -> GruSpec | None:
        """The GRU of a dual softmax, whose second half of units reads the coarse half drawn."""
        last = self.layers[-1]
        return last if isinstance(self.output, DualSoftmax) and isinstance(last, GruSpec) else None

    def _check_inputs(self) -> None:
        kind, in_halves = type(self.output).__name__, isinstance(self.output, DualSoftmax)
        is_whole = self.has_classes and not in_halves
        if self.prediction and not is_whole:
            raise InvalidInput(f"linear prediction with {kind}; give Categorical or BinaryTree")
        for each in self.inputs:
            missing = (isinstance(each, LastClass) and not is_whole) or (
                isinstance(each, LastHalves) and not in_halves
            )
            if missing:
                part = "the last class" if isinstance(each, LastClass) else "halves of a class"
                raise InvalidInput(
                    f"input {each.name!r} is {part}, which {kind} lacks; give LastSample"
                )
            if isinstance(each, LastSampleRow | PredictionRow) and not self.prediction:
                raise InvalidInput(
                    f"input {each.name!r} is a row for a signal; give the spec a LinearPrediction"
                )

    def _check_layers(self) -> None:
        sizes = {each.name: each.size for each in self.conditioning}
        for layer, in_features in self.layer_inputs():
            for name in (*layer.concatenated, *layer.added):
                if name not in sizes:
                    known = ", ".join(sizes) or "none"
                    raise InvalidInput(
                        f"layer {layer.name!r} reads {name!r}; conditioning is {known}"
                    )
            for name in layer.added:
                if sizes[name] != layer.out_features:
                    raise InvalidInput(
                        f"{name!r} of {sizes[name]} features is added to layer {layer.name!r}; "
                        f"give {layer.out_features}"
                    )
            if isinstance(layer, GruSpec) and layer.residual and layer.size != in_features:
                raise InvalidInput(
                    f"layer {layer.name!r} of {layer.size} units is added to {in_features} "
                    "features; give sizes that are equal"
                )
        if isinstance(self.output, DualSoftmax):
            self._check_halves(self.output)
            return
        found, wanted = self.layers[-1].size, self.output.parameters
        if found != wanted:
            raise InvalidInput(
                f"the last layer has {found} features; {type(self.output).__name__} takes {wanted}"
            )

    def _check_halves(self, output: DualSoftmax) -> None:
        last = self.halved
        if last is None or last.size % 2 or last.residual:
            raise InvalidInput(
                f"DualSoftmax after layer {self.layers[-1].name!r}; give a GRU of an even size, "
                "not residual"
            )
        for name, layers in (("coarse", output.coarse), ("fine", output.fine)):
            found = layers[-1].size if layers else last.size // 2
            if found != output.half_classes:
                raise InvalidInput(
                    f"the {name} half has {found} features in the end; {output.bits} bits take "
                    f"{output.half_classes}"
                )

    def layer_inputs(self) -> Iterator[tuple[SampleLayer, int]]:
        """Every layer, and the number of its input features without concatenated conditioning."""
        features = sum(each.size for each in self.inputs)
        for layer in self.layers:
            yield layer, features
            features = layer.size
        if isinstance(self.output, DualSoftmax):
            for half in (self.output.coarse, self.output.fine):
                features = self.layers[-1].size // 2
                for layer in half:
                    yield layer, features
                    features = layer.size

    def tensor_shapes(self) -> dict[str, Shape]:
        """Name and shape of every tensor of the network."""
        shapes: dict[str, Shape] = {}
        sizes = {each.name: each.size for each in self.conditioning}
        for each in self.inputs:
            if isinstance(each, LastClass):
                shapes[f"{each.name}.table"] = (self.output.parameters, each.size)
            elif not isinstance(each, LastSample | LastHalves):
                shapes[f"{each.name}.table"] = (LEVELS, each.size)
        for one in self.conditioning:
            if isinstance(one, InterpolatedConditioning):
                shapes[f"{one.name}.kernel"] = (self.hop_length, one.taps)
        for layer, features in self.layer_inputs():
            joined = sum(sizes[name] for name in layer.concatenated)
            shapes |= layer.shapes(features + joined + (layer is self.halved))
        return shapes


def check_temperature(temperature: float) -> None:
    """Raise InvalidInput for a temperature outside TEMPERATURES."""
    low, high = TEMPERATURES
    if not isinstance(temperature, Real) or not low <= temperature <= high:  # NaN is not
        raise InvalidInput(
            f"the temperature is {temperature!r}; give {low:g} to {high:g}, such as 0.9"
        )
