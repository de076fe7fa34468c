"""The layers of a network of the WaveRNN family; `VoiceSpec` says how they are joined."""

from dataclasses import dataclass
from typing import TypeAlias

from sparsejit.ir.spec import Activation

Shape = tuple[int, ...]


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


SampleLayer: TypeAlias = DenseSpec | GruSpec
