"""Training of a shrunk torch module on the dense one's outputs, its zeros fixed, without labels."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from sparsejit.api.quantising.seen_inputs import ExampleCall
from sparsejit.lowering.context import Progress
from sparsejit.prune.shrink.data import split

# Elements of a step, and the first rate of Adam, as a share of a tensor's root mean square.
_ELEMENTS, _RATE = 8, 1e-2
# Steps between measurements on the held elements, and measurements without a gain that end it.
_LOOK, _PATIENCE = 20, 5


@dataclass(frozen=True)
class Distillation:
    """The data, and the dense module whose outputs are wanted.

    Attributes:
        dense: the module, in evaluation mode
        calls: the elements, of which a part is held back
        steps: the most steps
        tell: reports the progress
    """

    dense: nn.Module
    calls: Sequence[ExampleCall]
    steps: int
    tell: Progress

    def trained(self, model: nn.Module, names: Iterable[str]) -> nn.Module:
        """Train the named parameters of a copy of a shrunk module on the dense module's outputs.

        Zeros stay zeros. Returns the checkpoint with the least error on the held-out samples, with
        early stopping; the untrained module is the first checkpoint.
        """
        model = copy.deepcopy(model).eval().requires_grad_(False)
        own = dict(model.named_parameters())
        training = _AdamSteps(model, [own[name] for name in names if name in own], self.steps)
        fitted, held = split(self.calls)
        wanted, exact = ([_outputs(self.dense, call) for call in some] for some in (fitted, held))
        best, least, idle = copy.deepcopy(model.state_dict()), _error(model, held, exact), 0
        random = torch.Generator().manual_seed(0)
        for step in range(1, self.steps + 1):
            self.tell(f"training, step {step} of {self.steps}, error {least:.2%}", 0.5)
            chosen = torch.randint(len(fitted), (_ELEMENTS,), generator=random).tolist()
            training.step([(fitted[number], wanted[number]) for number in chosen])
            if step % _LOOK and step != self.steps:
                continue
            error = _error(model, held, exact)
            idle = 0 if error < least else idle + 1
            if error < least:
                best, least = copy.deepcopy(model.state_dict()), error
            if idle == _PATIENCE:
                break
        model.load_state_dict(best)
        return model.requires_grad_(False)


class _AdamSteps:
    """Adam's steps on some tensors of a module, in which zeros of matrices stay zeros."""

    def __init__(self, model: nn.Module, tensors: Sequence[nn.Parameter], steps: int) -> None:
        self._model = model
        self._masks = {one: (one != 0).to(one.dtype) for one in tensors if one.dim() > 1}
        groups = []
        for one in tensors:
            one.requires_grad_(True)
            size = float(one.detach().square().mean().sqrt())
            groups.append({"params": [one], "lr": _RATE * (size or 1.0)})
        self._optimizer = torch.optim.Adam(groups)
        self._schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self._optimizer, steps)

    def step(self, elements: Sequence[tuple[ExampleCall, list[Tensor]]]) -> None:
        """One step on the sum of the relative squared errors of all outputs for some elements."""
        self._optimizer.zero_grad()
        for call, wanted in elements:
            pairs = zip(_outputs(self._model, call, True), wanted, strict=True)
            sum((_relative(ours, theirs) for ours, theirs in pairs), torch.zeros(())).backward()
        self._optimizer.step()
        self._schedule.step()
        with torch.no_grad():
            for one, mask in self._masks.items():
                one.mul_(mask)


def _outputs(model: nn.Module, call: ExampleCall, with_gradients: bool = False) -> list[Tensor]:
    """The floating-point tensors among a module's outputs for a call, in order."""
    args, kwargs = torch.utils._pytree.tree_map(_tensor, (call.args, dict(call.kwargs)))
    with torch.set_grad_enabled(with_gradients):
        found = tree_leaves(model(*args, **kwargs))
    return [x for x in found if isinstance(x, Tensor) and x.is_floating_point()]


def _tensor(leaf: Any) -> Any:
    return torch.as_tensor(leaf) if hasattr(leaf, "__array__") else leaf


def _relative(found: Tensor, wanted: Tensor) -> Tensor:
    """The sum of an output's squared errors over the sum of the wanted output's squares."""
    return (found - wanted).square().sum() / wanted.square().sum().clamp_min(1e-20)


def _error(
    model: nn.Module, calls: Sequence[ExampleCall], exact: Sequence[list[Tensor]]
) -> float:
    """The mean of the relative squared errors of all outputs for all calls."""
    found = [
        _relative(ours, theirs)
        for call, outputs in zip(calls, exact, strict=True)
        for ours, theirs in zip(_outputs(model, call), outputs, strict=True)
    ]
    return float(torch.stack(found).mean()) if found else 0.0
