"""The layers of a network of the WaveRNN family, which a `VoiceSpec` joins."""

from dataclasses import dataclass
from typing import TypeAlias

from sparsejit.ir.spec import Activation

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
