"""Gradual magnitude pruning in place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparsejit.errors import InvalidInput
from sparsejit.prune.patterns import BlockPattern, choose_pattern, choose_pruned
from sparsejit.prune.report import LayerSparsity, SparsityReport
from sparsejit.prune.schedules import OneShot, Schedule
from sparsejit.prune.targets import check_finite, check_globs, count_gates, match_targets


@dataclass
class _Mask:
    """True where pruned: per block, shape (gates, block rows, block columns), and per element."""

    blocks: Tensor
    elements: Tensor

    def on(self, device: torch.device) -> "_Mask":
        if self.blocks.device != device:
            self.blocks = self.blocks.to(device)
            self.elements = self.elements.to(device)
        return self


class Pruner:
    """Zeroes the weights of least magnitude, block by block, while a model trains.

    Weights stay plain parameters: call `prepare` once and `step` after every `optimizer.step`.
    A weight of more than two dimensions counts as (out, product of the rest). Once pruned, a
    block stays pruned. In every gate of every target round(amount * blocks) blocks go.

    amount: share of blocks pruned at the end, 0 <= amount < 1.
    pattern: "unstructured", "1x8" or "1x16" (one input, 8 or 16 consecutive outputs).
    targets: globs over `model.named_parameters()` names.
    schedule: when and how fast; by default everything at once in `prepare`.
    block: any (rows, cols) of weight[out, in] in place of a pattern.
    per_gate: equal density in each gate of nn.GRU, nn.LSTM and their cells. A mapping such as
        {"cell.weight": 3} says so for other modules as well; False prunes across gates.

    Raises InvalidInput for a value outside its range.
    """

    def __init__(
        self,
        amount: float,
        pattern: str = "unstructured",
        *,
        targets: Sequence[str],
        schedule: Schedule | None = None,
        block: tuple[int, int] | None = None,
        per_gate: bool | Mapping[str, int] = True,
    ) -> None:
        if not 0.0 <= amount < 1.0:
            raise InvalidInput(
                f"amount={amount} is outside [0, 1): give the share to prune, 0.9 for 90 %"
            )
        self.amount = amount
        self.pattern: BlockPattern = choose_pattern(pattern, block)
        self.targets = [targets] if isinstance(targets, str) else list(targets)
        if not self.targets:
            raise InvalidInput("targets is empty: name weights, for example ['fc*.weight']")
        self.schedule: Schedule = schedule if schedule is not None else OneShot()
        self.per_gate = per_gate
        self._step = 0
        self._masks: dict[str, _Mask] = {}
        self._model: nn.Module | None = None
        self._optimizer: Optimizer | None = None

    def prepare(self, model: nn.Module, optimizer: Optimizer | None = None) -> None:
        """Start at step 0 with empty masks on the model's targets.

        Raises InvalidInput where a target matches nothing, or no matrix, or holds NaN.
        """
        if isinstance(self.per_gate, Mapping):
            check_globs([name for name, _ in model.named_parameters()], self.per_gate)
        masks = {}
        for name in match_targets(model, self.targets):
            weight = model.get_parameter(name)
            check_finite(name, weight)
            gates = count_gates(model, name, self.per_gate)
            blocks = torch.zeros_like(self.pattern.scores(weight, gates), dtype=torch.bool)
            masks[name] = _Mask(blocks, self.pattern.spread(blocks, weight.shape))
        self._model, self._optimizer, self._masks, self._step = model, optimizer, masks, 0
        self._update_if_due()
        self._apply()

    def step(self) -> None:
        """Prune further where the schedule says so, and zero what is pruned.

        Call it after each `optimizer.step`, which moves pruned weights (by their gradients,
        momentum and weight decay). Raises InvalidInput before `prepare` and for NaN weights.
        """
        self._require_model()
        self._step += 1
        self._update_if_due()
        self._apply()

    def mask_gradients(self) -> None:
        """Zero the gradients of pruned weights, so that clipping by norm does not count them."""
        model = self._require_model()
        for name, mask in self._masks.items():
            gradient = model.get_parameter(name).grad
            if gradient is not None:
                gradient.masked_fill_(mask.on(gradient.device).elements, 0)

    def finalize(self) -> SparsityReport:
        """Leave exact zeros and say what is left. It never prunes further, also mid-schedule."""
        self._apply()
        return self.sparsity_report()

    def sparsity_report(self) -> SparsityReport:
        """Nonzero weights and blocks of every target as they are now."""
        model = self._require_model()
        return SparsityReport([self._describe(name, model) for name in self._masks])

    def state_dict(self) -> dict[str, Any]:
        """The step and the masks, safe for `torch.save` and `torch.load(weights_only=True)`."""
        return {
            "step": self._step,
            "block": (self.pattern.rows, self.pattern.cols),
            "masks": {name: mask.blocks.clone() for name, mask in self._masks.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; call after `prepare` on a model with the same targets.

        Raises InvalidInput where names, block or shapes differ, and changes nothing then.
        """
        model = self._require_model()
        self._check_state(state)
        for name, blocks in state["masks"].items():
            weight = model.get_parameter(name)
            self._set_mask(name, blocks.to(device=weight.device, dtype=torch.bool), weight)
        self._step = int(state["step"])
        self._apply()

    def _require_model(self) -> nn.Module:
        if self._model is None:
            raise InvalidInput("the Pruner has no model yet: call prepare(model, optimizer) first")
        return self._model

    def _update_if_due(self) -> None:
        if not self.schedule.due(self._step):
            return
        model = self._require_model()
        amount = self.amount * self.schedule.fraction(self._step)
        for name, mask in self._masks.items():
            weight = model.get_parameter(name)
            check_finite(name, weight)
            pruned = mask.on(weight.device).blocks
            scores = self.pattern.scores(weight, gates=pruned.shape[0])
            self._set_mask(name, choose_pruned(scores, pruned, amount), weight)

    def _set_mask(self, name: str, blocks: Tensor, weight: Tensor) -> None:
        self._masks[name] = _Mask(blocks, self.pattern.spread(blocks, weight.shape))

    @torch.no_grad()
    def _apply(self) -> None:
        model = self._require_model()
        for name, mask in self._masks.items():
            weight = model.get_parameter(name)
            pruned = mask.on(weight.device).elements
            for tensor in [weight, *self._moments(weight)]:
                tensor.masked_fill_(pruned, 0)

    def _moments(self, weight: nn.Parameter) -> list[Tensor]:
        """Whatever the optimizer keeps per weight (Adam's exp_avg, SGD's momentum_buffer, ...)."""
        if self._optimizer is None:
            return []
        state = self._optimizer.state.get(weight, {})
        return [
            value
            for value in state.values()
            if isinstance(value, Tensor)
            and value.shape == weight.shape
            and value.device == weight.device
        ]

    def _describe(self, name: str, model: nn.Module) -> LayerSparsity:
        weight = model.get_parameter(name).detach()
        gates = self._masks[name].blocks.shape[0]
        occupied = self.pattern.occupied(weight, gates)
        return LayerSparsity(
            name=name,
            shape=tuple(weight.shape),
            gates=gates,
            block=(self.pattern.rows, self.pattern.cols),
            nnz=int(weight.count_nonzero()),
            elements=weight.numel(),
            occupied_blocks=int(occupied.sum()),
            blocks=occupied.numel(),
        )

    def _check_state(self, state: Mapping[str, Any]) -> None:
        missing = {"step", "block", "masks"} - state.keys()
        if missing:
            raise InvalidInput(f"the state lacks {sorted(missing)}: pass Pruner.state_dict()")
        here = (self.pattern.rows, self.pattern.cols)
        if tuple(state["block"]) != here:
            raise InvalidInput(
                f"the state has block {tuple(state['block'])}, this Pruner {here}: "
                "build it with the pattern it was saved with"
            )
        found = {name: tuple(blocks.shape) for name, blocks in state["masks"].items()}
        wanted = {name: tuple(mask.blocks.shape) for name, mask in self._masks.items()}
        if found != wanted:
            differing = sorted(set(found.items()) ^ set(wanted.items()))
            raise InvalidInput(
                f"the state does not fit this model's targets, which differ in {differing[:4]}: "
                "use the same model, targets and per_gate"
            )
