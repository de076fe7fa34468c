"""Distributions from which samples are drawn, with the last layer's outputs as parameters."""

from dataclasses import dataclass
from typing import TypeAlias

from sparsejit.ir.spec import Choice
from sparsejit.voice.spec.layers import DenseSpec


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
