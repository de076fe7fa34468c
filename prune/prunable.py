"""A weight to prune, as a matrix of blocks."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsejit.api.kernels.compile_layer import compile_matrix
from sparsejit.prune.allocation import choose_pruned
from sparsejit.prune.convolutions import ConvolutionInModel
from sparsejit.prune.in_model import CompiledLayer
from sparsejit.prune.patterns import Blocks, Pattern, on_weight
from sparsejit.prune.targets import Target, check_finite, count_gates, match_targets

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Prunable:
    """One weight as float32 (out_features, in_features), and its blocks scored by magnitude.

    convolution: the convolution in the model that has the weight, None for other layers.
    """

    weight: Tensor
    blocks: Blocks
    convolution: ConvolutionInModel | None = None

    @property
    def largest_amount(self) -> float:
        """The largest share to prune of a gate: protected blocks and at least one block stay."""
        free = int((self.blocks.scores != math.inf).sum(1).min())
        return min(free, self.blocks.per_gate - 1) / self.blocks.per_gate

    def pruned(self, amount: float) -> Tensor:
        """A copy in which the blocks of least magnitude are 0: a share `amount` of each gate's."""
        counts = [amount * self.blocks.per_gate] * self.blocks.gates
        gone = choose_pruned({"": self.blocks}, {"": counts})[""]
        return self.weight.masked_fill(gone.view_as(self.weight), 0)

    def compiled(self, amount: float, dtype: str) -> list[CompiledLayer]:
        """Code of the pruned weight: a product with one vector, or a convolution's calls."""
        weight = self.pruned(amount)
        if self.convolution is None:
            return [compile_matrix(weight.cpu().numpy(), dtype=dtype)]
        return [*self.convolution.compiled(weight, dtype)]

    def energy_left(self, amounts: FloatArray) -> FloatArray:
        """Share of the sum of squared weights that is left after pruning by each amount.

        A share of 0 becomes float64's epsilon, so that its logarithm is finite.
        """
        labels, scores = self.blocks.labels.flatten(1), self.blocks.scores
        squares = self.weight.double().square().view_as(labels)
        by_block = torch.zeros_like(scores).scatter_add_(1, labels, squares)
        in_order = by_block.gather(1, scores.argsort(1)).cpu().numpy()
        lost = np.pad(in_order.cumsum(1), ((0, 0), (1, 0))).sum(0)
        counts = np.rint(amounts * self.blocks.per_gate).astype(int)
        left = 1 - lost[counts] / (lost[-1] or 1.0)
        return np.asarray(np.maximum(left, np.finfo(float).eps))

    def digest(self) -> str:
        """A digest of all data that decide the weights to prune, and the code to run."""
        facts = tuple(self.blocks.labels.shape), self.convolution
        state = hashlib.sha256(str(facts).encode())
        for tensor in (self.weight, self.blocks.scores):
            state.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return state.hexdigest()


def prunables(
    model: nn.Module,
    targets: Target | Sequence[Target],
    pattern: Pattern,
    per_gate: bool | Mapping[str, int] = True,
    convolutions: Mapping[str, ConvolutionInModel] = MappingProxyType({}),
) -> dict[str, Prunable]:
    """The targets of a model, as `Pruner` would prune them; nothing of them is pruned yet.

    convolutions: the convolutions that targets belong to, by the target's name.
    Raises InvalidInput as `Pruner` does.
    """
    layers = {}
    for name in match_targets(model, targets):
        weight = model.get_parameter(name).detach()
        check_finite(name, weight)
        gates = count_gates(model, name, per_gate)
        by_gate = weight.reshape(gates, weight.shape[0] // gates, -1)
        lying = on_weight(pattern, weight.shape)
        blocks = lying.blocks(by_gate.double().square(), torch.ones_like(by_gate).bool())
        layers[name] = Prunable(weight.flatten(1).float(), blocks, convolutions.get(name))
    return layers
