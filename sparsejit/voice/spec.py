"""What a network of the WaveRNN family is: what it reads, its layers, how a sample is drawn.

A sample's features run through the layers in order. A layer reads what the one before it made,
followed by conditioning that is joined to it:

    dense    y  = activation(W [x, c] + b + a)
    GRU      h' = GRU(W_ih [x, c] + b_ih + a, h);   y = h', or x + h' with `residual`

`c` is conditioning that is concatenated, `a` conditioning that is added. The first layer's x are
the inputs one after the other, the last layer's y the parameters of the output's distribution.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from sparsejit.errors import InvalidInput
from sparsejit.ir.spec import Activation, Choice

Shape = tuple[int, ...]

LAST_SAMPLE = "last sample"
PREDICTOR, RESIDUAL_SCALE, LEVEL_SCALE = "predictor", "residual scale", "level scale"
# Of a signal, in tables.
LEVELS = 256


@dataclass(frozen=True)
class LastSample:
    """The sample before, one number in [-1, 1], 0 at first.

    Of classes that is 2 k / (classes - 1) - 1, and with linear prediction the signal.
    """

    name: str = LAST_SAMPLE
    size: int = 1


@dataclass(frozen=True)
class LastClass:
    """A row of tensors["<name>.table"], (classes, size), for the class before.

    At first that is class `first`.
    """

    name: str
    size: int
    first: int


@dataclass(frozen=True)
class LastSampleRow:
    """A row of tensors["<name>.table"], (256, size), for the level of the signal before.

    That is of 256 levels on the mu-law curve of the signal times the frame's level scale.
    """

    name: str
    size: int


@dataclass(frozen=True)
class PredictionRow:
    """The same for the level of the signal's prediction."""

    name: str
    size: int


@dataclass(frozen=True)
class LinearPrediction:
    """Classes say what linear prediction leaves of a signal, the sample before pre-emphasis.

    prediction = sum over k of predictor[k] * signal[t - 1 - k]
    signal = clamp(amplitude of the class * residual scale + prediction, -limit, limit)
    sample = signal + emphasis * the sample before

    Of a frame: PREDICTOR (32,), the oldest signal's weight first, RESIDUAL_SCALE and LEVEL_SCALE.
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
    """`size` features of a sample: sums of those of `taps` frames, `taps` // 2 before its own.

    Sample p of a frame weighs them by row p of tensors["<name>.kernel"], (hop_length, taps).
    """

    name: str
    size: int
    taps: int


@dataclass(frozen=True)
class DenseSpec:
    """tensors["<name>.weight"] (size, in_features) and ["<name>.bias"] (size,)."""

    name: str
    size: int
    activation: Activation = Activation.NONE
    concatenated: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def out_features(self) -> int:
        return self.size

    def shapes(self, in_features: int) -> dict[str, Shape]:
        """Of its tensors."""
        return {
            f"{self.name}.weight": (self.size, in_features),
            f"{self.name}.bias": (self.size,),
        }


@dataclass(frozen=True)
class GruSpec:
    """tensors["<name>.weight_ih"], ".weight_hh", ".bias_ih", ".bias_hh", as torch.nn.GRUCell has.

    Gates are in order r-z-n. What is added has 3 * size features, in that order.
    """

    name: str
    size: int
    residual: bool = False
    concatenated: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def out_features(self) -> int:
        """Of the product with what it reads."""
        return 3 * self.size

    def shapes(self, in_features: int) -> dict[str, Shape]:
        """Of its tensors."""
        gates = self.out_features
        return {
            f"{self.name}.weight_ih": (gates, in_features),
            f"{self.name}.weight_hh": (gates, self.size),
            f"{self.name}.bias_ih": (gates,),
            f"{self.name}.bias_hh": (gates,),
        }


class Companding(Choice):
    """How amplitudes lie between classes: evenly, or on ITU-T G.711's curve, mu = classes - 1."""

    LINEAR = "linear"
    MU_LAW = "mu_law"


@dataclass(frozen=True)
class Categorical:
    """Class k ~ softmax(parameters / temperature). One uniform number a sample.

    The network is fed 2 k / (classes - 1) - 1; the sample given is that, expanded.
    """

    classes: int
    companding: Companding = Companding.LINEAR

    @property
    def parameters(self) -> int:
        return self.classes


@dataclass(frozen=True)
class MixtureOfLogistics:
    """Parameters: logits, means and log scales s of `components` logistic distributions.

    k ~ softmax(logits / temperature), u uniform in [1e-5, 1 - 1e-5],
    sample = mean_k + temperature exp(max(s_k, least_log_scale)) log(u / (1 - u)), clamped to
    [-1, 1]. Two uniform numbers a sample, for k and for u.

    Source: Salimans et al. 2017, PixelCNN++, section 2.1, as fatchord/WaveRNN draws from it.
    """

    components: int
    least_log_scale: float = -32.23619  # log 1e-14

    @property
    def parameters(self) -> int:
        return 3 * self.components


@dataclass(frozen=True)
class Gaussian:
    """Parameters: mean and log standard deviation s.

    sample = mean + temperature exp(max(s, least_log_deviation)) z, clamped to [-1, 1], with z
    normal: sqrt(-2 log(1 - u)) cos(2 pi v). Two uniform numbers a sample, u and v.
    """

    least_log_deviation: float = -7.0

    @property
    def parameters(self) -> int:
        return 2


@dataclass(frozen=True)
class BinaryTree:
    """A class of `bits` bits, the highest first; bit ~ sigmoid(parameter / temperature).

    Which parameter that is, 1 to 2**bits - 1, is 1 followed by the bits drawn so far; number 0 is
    not read. One uniform number a bit; a bit is 1 where the number is less. As LPCNet since 2021.
    """

    bits: int
    companding: Companding = Companding.MU_LAW

    @property
    def classes(self) -> int:
        return 1 << self.bits

    @property
    def parameters(self) -> int:
        return self.classes


NetworkInput: TypeAlias = LastSample | LastClass | LastSampleRow | PredictionRow
FrameConditioning: TypeAlias = HeldConditioning | InterpolatedConditioning
SampleLayer: TypeAlias = DenseSpec | GruSpec
SampleOutput: TypeAlias = Categorical | MixtureOfLogistics | Gaussian | BinaryTree


@dataclass(frozen=True)
class VoiceSpec:
    """A network that makes `hop_length` samples of each frame of conditioning.

    Raises InvalidInput for two parts of one name, conditioning that is not declared, layers whose
    sizes do not fit, a last class or a prediction where the output has no classes, and rows of a
    signal without a prediction.
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
        names = [part.name for part in (*self.inputs, *self.conditioning, *self.layers)]
        for name in names:
            if names.count(name) > 1:
                count = names.count(name)
                raise InvalidInput(f"{count} parts are named {name!r}; give each its own")
        self._check_inputs()
        self._check_layers()

    @property
    def has_classes(self) -> bool:
        """Whether a sample is one of some classes."""
        return isinstance(self.output, Categorical | BinaryTree)

    def _check_inputs(self) -> None:
        kind = type(self.output).__name__
        if self.prediction and not self.has_classes:
            raise InvalidInput(f"linear prediction with {kind}; give an output that has classes")
        for each in self.inputs:
            if isinstance(each, LastClass) and not self.has_classes:
                raise InvalidInput(
                    f"input {each.name!r} is the last class, which {kind} has not; give LastSample"
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
        found, wanted = self.layers[-1].size, self.output.parameters
        if found != wanted:
            raise InvalidInput(
                f"the last layer has {found} features; {type(self.output).__name__} takes {wanted}"
            )

    def layer_inputs(self) -> Iterator[tuple[SampleLayer, int]]:
        """Every layer, and how many features it reads before what is concatenated."""
        features = sum(each.size for each in self.inputs)
        for layer in self.layers:
            yield layer, features
            features = layer.size

    def tensor_shapes(self) -> dict[str, Shape]:
        """Name and shape of every tensor of the network."""
        shapes: dict[str, Shape] = {}
        sizes = {each.name: each.size for each in self.conditioning}
        for each in self.inputs:
            if isinstance(each, LastClass):
                shapes[f"{each.name}.table"] = (self.output.parameters, each.size)
            elif not isinstance(each, LastSample):
                shapes[f"{each.name}.table"] = (LEVELS, each.size)
        for one in self.conditioning:
            if isinstance(one, InterpolatedConditioning):
                shapes[f"{one.name}.kernel"] = (self.hop_length, one.taps)
        for layer, features in self.layer_inputs():
            joined = sum(sizes[name] for name in layer.concatenated)
            shapes |= layer.shapes(features + joined)
        return shapes
