"""Criteria for the importance of weights."""

import zlib
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from sparsejit.errors import InvalidInput


class Criterion(Protocol):
    """A measure of importance that a Pruner ranks weights by; `weights` are its targets by name."""

    def start(self, weights: Mapping[str, Tensor]) -> None:
        """Forget everything; training of these weights begins."""
        ...

    def observe(self, weights: Mapping[str, Tensor]) -> None:
        """Record the weights after an optimizer step, their gradients still in place."""
        ...

    def importance(self, name: str, weight: Tensor) -> Tensor:
        """Importance of each weight, float64, in the weight's shape; the least are pruned first."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def check_criterion(criterion: Any) -> None:
    """Raise InvalidInput for an object that is no criterion, such as the name of one."""
    if not hasattr(criterion, "importance"):
        raise InvalidInput(
            f"criterion={criterion!r} is no criterion: give Magnitude(), Movement() or Random(seed)"
        )


class _Stateless:
    def start(self, weights: Mapping[str, Tensor]) -> None:
        pass

    def observe(self, weights: Mapping[str, Tensor]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


class Magnitude(_Stateless):
    """The square of the weight."""

    def importance(self, name: str, weight: Tensor) -> Tensor:
        # float64 keeps the order of any two float32 magnitudes, which float32 squares do not.
        return weight.detach().double().square()


class Random(_Stateless):
    """A fixed draw for each weight: the baseline that any other criterion has to beat."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def importance(self, name: str, weight: Tensor) -> Tensor:
        # torch's CPU generator takes no more than 32 bits of a seed.
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {name}".encode()))
        draw = torch.rand(weight.shape, generator=generator, dtype=torch.float64)
        return draw.to(weight.device)


class Movement:
    """Movement of a weight away from zero in training: minus the sum of gradient * weight.

    Sanh et al. 2020, "Movement pruning", equation 4. Meant for fine-tuning, with a schedule that
    starts after some steps. Steps whose gradients are not finite, which a GradScaler skips, do not
    count. `Pruner.step` must come before `optimizer.zero_grad`; InvalidInput says so otherwise.
    """

    def __init__(self) -> None:
        self._before: dict[str, Tensor] = {}
        self._movement: dict[str, Tensor] = {}

    def start(self, weights: Mapping[str, Tensor]) -> None:
        self._movement = {
            name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in weights.items()
        }
        self._remember(weights)

    def observe(self, weights: Mapping[str, Tensor]) -> None:
        for name, weight in weights.items():
            if weight.grad is None:
                raise InvalidInput(
                    f"{name} has no gradient to judge its movement by: "
                    "call pruner.step() after optimizer.step() and before optimizer.zero_grad()"
                )
            movement = self._movement[name] = self._movement[name].to(weight.device)
            before = self._before[name].to(weight.device)
            if weight.grad.isfinite().all():
                movement.sub_(weight.grad.double() * before.double())
        self._remember(weights)

    def importance(self, name: str, weight: Tensor) -> Tensor:
        return self._movement[name].to(weight.device)

    def state_dict(self) -> dict[str, Any]:
        return {
            "movement": {name: value.clone() for name, value in self._movement.items()},
            "before": {name: value.clone() for name, value in self._before.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._movement = {name: value.clone() for name, value in state["movement"].items()}
        self._before = {name: value.clone() for name, value in state["before"].items()}

    def _remember(self, weights: Mapping[str, Tensor]) -> None:
        self._before = {name: weight.detach().clone() for name, weight in weights.items()}
