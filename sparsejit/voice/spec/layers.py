"""Layers of a network of the WaveRNN family, which a `VoiceSpec` joins, and distributions.

Samples are drawn from a distribution whose parameters are the outputs of the last layer.
"""

from dataclasses import dataclass
from typing import TypeAlias

from sparsejit.ir.spec import Activation, Choice

Shape = tuple[int, ...]


@dataclass(frozen=True)
class DenseSpec:
    """A dense layer: tensors["<name>.weight"] (size, in_features) and ["<name>.bias"] (size,).

    Attributes:
        name: the layer's, and the beginning of its tensors' names
        size: features of its output
        activation: a function of each output
        concatenated: names of conditioning that follows the input
        added: names of conditioning that is added to the product
    """

    name: str
    size: int
    activation: Activation = Activation.NONE
    concatenated: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def out_features(self) -> int:
        return self.size

    def shapes(self, in_features: int) -> dict[str, Shape]:
        """The shapes of its tensors by name."""
        return {
            f"{self.name}.weight": (self.size, in_features),
            f"{self.name}.bias": (self.size,),
        }


@dataclass(frozen=True)
class DualDenseSpec:
    """The sum over k in 0, 1 of scale[k] * tanh(weight[k] x + bias[k] + a[k]).

    tensors["<name>.weight"] (2, size, in_features), ".bias" and ".scale" (2, size). Added
    conditioning has 2 * size features. As LPCNet's last layer: Valin and Skoglund 2019, equation 5.
    """

    name: str
    size: int
    concatenated: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def out_features(self) -> int:
        return 2 * self.size

    def shapes(self, in_features: int) -> dict[str, Shape]:
        """The shapes of its tensors by name."""
        both = (2, self.size)
        return {
            f"{self.name}.weight": (*both, in_features),
            f"{self.name}.bias": both,
            f"{self.name}.scale": both,
        }


@dataclass(frozen=True)
class GruSpec:
    """A GRU: tensors["<name>.weight_ih"], ".weight_hh", ".bias_ih", ".bias_hh" of torch.nn.GRUCell.

    Gates are in order r-z-n.

    Attributes:
        name: the layer's, and the beginning of its tensors' names
        size: units
        residual: whether the input is added to the output
        concatenated: names of conditioning that follows the input
        added: names of conditioning that is added to the product, 3 * size features in the order of
            the gates
    """

    name: str
    size: int
    residual: bool = False
    concatenated: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def out_features(self) -> int:
        """Features of the product with the layer's input, all gates included."""
        return 3 * self.size

    def shapes(self, in_features: int) -> dict[str, Shape]:
        """The shapes of its tensors by name."""
        gates = self.out_features
        return {
            f"{self.name}.weight_ih": (gates, in_features),
            f"{self.name}.weight_hh": (gates, self.size),
            f"{self.name}.bias_ih": (gates,),
            f"{self.name}.bias_hh": (gates,),
        }


SampleLayer: TypeAlias = DenseSpec | DualDenseSpec | GruSpec


class Companding(Choice):
    """Spacing of the classes' amplitudes: even, or on ITU-T G.711's curve, mu = classes - 1."""

    LINEAR = "linear"
    MU_LAW = "mu_law"


@dataclass(frozen=True)
class Categorical:
    """Class k ~ softmax(parameters / temperature). One uniform number a sample.

    The network reads back 2 k / (classes - 1) - 1; the sample is this number, expanded.
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

    The parameter's number, 1 to 2**bits - 1, is 1 followed by the bits drawn so far; parameter 0 is
    not read. One uniform number a bit; a bit is 1 where the number is less than its probability.
    As LPCNet since 2021.
    """

    bits: int
    companding: Companding = Companding.MU_LAW

    @property
    def classes(self) -> int:
        return 1 << self.bits

    @property
    def parameters(self) -> int:
        return self.classes


@dataclass(frozen=True)
class DualSoftmax:
    """A class of 2 * bits bits: its coarse half c is drawn, and then its fine half f.

    The last of a spec's layers is a GRU of an even size that reads one feature more, the last
    column of its weight_ih: 2 c / (2**bits - 1) - 1, of the c just drawn. The first half of its
    units runs through the layers `coarse` to the logits of c; in their rows that column is zero.
    The second half runs through `fine` to f's logits. Each half ~ softmax(logits / temperature).

    sample = (2**bits c + f) / 2**(2 bits - 1) - 1. Two uniform numbers a sample, for c and for f.

    Source: Kalchbrenner et al. 2018, Efficient Neural Audio Synthesis, equation 2.
    """

    coarse: tuple[DenseSpec, ...]
    fine: tuple[DenseSpec, ...]
    bits: int = 8

    @property
    def classes(self) -> int:
        return 1 << 2 * self.bits

    @property
    def half_classes(self) -> int:
        """Classes of either half."""
        return 1 << self.bits

    @property
    def parameters(self) -> int:
        return 2 * self.half_classes


SampleOutput: TypeAlias = Categorical | MixtureOfLogistics | Gaussian | BinaryTree | DualSoftmax
