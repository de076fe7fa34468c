"""Penalties that draw weights to zero before they are pruned."""

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, Protocol

import torch
from torch import Tensor

from sparsejit.errors import InvalidInput
from sparsejit.prune.patterns import BlockPattern, InputBlocks, Pattern, choose_pattern

# Tensors to the nearest ones that meet the pruner's pattern and final amount.
Project = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


class Regulariser(Protocol):
    """A term of the loss while a Pruner works; `weights` are its targets by name."""

    def start(self, weights: Mapping[str, Tensor], project: Project) -> None:
        """Forget everything; training of these weights begins."""
        ...

    def observe(self, step: int, weights: Mapping[str, Tensor], project: Project) -> None:
        """Record the weights after an optimizer step."""
        ...

    def penalty(self, weights: Mapping[str, Tensor], gates: Mapping[str, int]) -> Tensor:
        """The term to add to the loss: a scalar with a gradient."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class GroupLasso:
    """strength * sum over blocks of sqrt(weights in the block) * (norm of the block).

    Yuan & Lin 2006, "Model selection and estimation in regression with grouped variables", equation
    2.1. Blocks of one weight make it the L1 penalty.

    Args:
        strength: more than 0
        pattern: the Pruner's own where it is a block; a lane or N:M has no fixed blocks
    """

    def __init__(self, strength: float, pattern: str | Pattern) -> None:
        if not _is_number(strength) or not strength > 0:
            raise InvalidInput(f"strength={strength!r} draws no weight to zero: give more than 0")
        chosen = choose_pattern(pattern)
        if not isinstance(chosen, BlockPattern):
            raise InvalidInput(
                f"pattern {chosen.name!r} has no fixed blocks for GroupLasso: "
                "use L1, or a BlockPattern"
            )
        self.strength = strength
        self.pattern = chosen

    def start(self, weights: Mapping[str, Tensor], project: Project) -> None:
        pass

    def observe(self, step: int, weights: Mapping[str, Tensor], project: Project) -> None:
        pass

    def penalty(self, weights: Mapping[str, Tensor], gates: Mapping[str, int]) -> Tensor:
        norms = []
        for name, weight in weights.items():
            matrix = weight.reshape(gates[name], weight.shape[0] // gates[name], -1)
            if isinstance(self.pattern, InputBlocks):  # each tap is a matrix of its own
                taps = weight.shape[2:].numel()
                matrix = matrix.unflatten(2, (-1, taps)).movedim(3, 1).flatten(0, 1)
            norms.append(_block_norms(matrix, self.pattern))
        return self.strength * torch.stack(norms).sum()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class L1(GroupLasso):
    """strength * sum of magnitudes."""

    def __init__(self, strength: float) -> None:
        super().__init__(strength, BlockPattern(1, 1))


class ADMM:
    """Alternating directions: rho / 2 * |W - Z + U|^2 for each weight matrix W.

    Z is W + U projected onto the pruner's pattern and final amount, U the scaled dual variable that
    adds up W - Z; both are renewed every `every` steps. Boyd et al. 2011, "Distributed optimization
    and statistical learning via ADMM", section 9.1; Zhang et al. 2018, "A systematic DNN weight
    pruning framework using ADMM". The schedule's end is the final projection: use OneShot(at=...)
    late enough for `residuals` to have fallen.

    `residuals` holds |W - Z| / |W| over all targets at each renewal (the relative primal residual).

    Args:
        rho: strength, more than 0
        every: steps between two renewals
    """

    def __init__(self, rho: float = 1e-2, every: int = 100) -> None:
        is_count = isinstance(every, Integral) and not isinstance(every, bool) and every >= 1
        if not _is_number(rho) or not rho > 0 or not is_count:
            raise InvalidInput(
                f"ADMM got rho={rho!r}, every={every!r}: use rho > 0 and whole numbers every >= 1"
            )
        self.rho = rho
        self.every = every
        self.residuals: list[float] = []
        self._projected: dict[str, Tensor] = {}
        self._dual: dict[str, Tensor] = {}

    def start(self, weights: Mapping[str, Tensor], project: Project) -> None:
        self.residuals = []
        self._dual = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self._projected = project({name: weight.detach() for name, weight in weights.items()})

    def observe(self, step: int, weights: Mapping[str, Tensor], project: Project) -> None:
        if step % self.every:
            return
        self._move_to(weights)
        self._projected = project({n: w.detach() + self._dual[n] for n, w in weights.items()})
        gaps = {name: w.detach() - self._projected[name] for name, w in weights.items()}
        for name, gap in gaps.items():
            self._dual[name] += gap
        norm = sum(w.detach().double().square().sum().item() for w in weights.values())
        gap_norm = sum(gap.double().square().sum().item() for gap in gaps.values())
        self.residuals.append((gap_norm / norm) ** 0.5 if norm else 0.0)

    def penalty(self, weights: Mapping[str, Tensor], gates: Mapping[str, int]) -> Tensor:
        self._move_to(weights)
        pulls = [
            (weight - self._projected[name] + self._dual[name]).square().sum()
            for name, weight in weights.items()
        ]
        return self.rho / 2 * torch.stack(pulls).sum()

    def state_dict(self) -> dict[str, Any]:
        return {
            "residuals": list(self.residuals),
            "projected": {name: value.clone() for name, value in self._projected.items()},
            "dual": {name: value.clone() for name, value in self._dual.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.residuals = list(state["residuals"])
        self._projected = {name: value.clone() for name, value in state["projected"].items()}
        self._dual = {name: value.clone() for name, value in state["dual"].items()}

    def _move_to(self, weights: Mapping[str, Tensor]) -> None:
        for name, weight in weights.items():
            self._projected[name] = self._projected[name].to(weight.device)
            self._dual[name] = self._dual[name].to(weight.device)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _block_norms(matrix: Tensor, pattern: BlockPattern) -> Tensor:
    """Sum of the blocks' norms, each times the root of its size; matrix (gates, rows, columns)."""
    padded = torch.nn.functional.pad(
        matrix, (0, -matrix.shape[2] % pattern.cols, 0, -matrix.shape[1] % pattern.rows)
    )
    blocks = padded.unflatten(2, (-1, pattern.cols)).unflatten(1, (-1, pattern.rows))
    height = torch.full((blocks.shape[1],), float(pattern.rows))
    height[-1] -= padded.shape[1] - matrix.shape[1]
    width = torch.full((blocks.shape[3],), float(pattern.cols))
    width[-1] -= padded.shape[2] - matrix.shape[2]
    roots = (height[:, None] * width).sqrt().to(matrix)
    return (torch.linalg.vector_norm(blocks, dim=(2, 4)) * roots).sum()
