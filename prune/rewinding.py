"""The state of model and optimizer that weight rewinding goes back to."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from sparsejit.prune.schedules import IterativeSchedule


class Rewinder:
    """Saves the state at the schedule's `rewind_to` and restores it after every pruning."""

    def __init__(self, schedule: IterativeSchedule) -> None:
        self.schedule = schedule
        self._saved: dict[str, Any] = {}

    def record(self, step: int, model: nn.Module, optimizer: Optimizer | None) -> None:
        """Save the state if this is the step to go back to."""
        if step != self.schedule.rewind_to:
            return
        self._saved = {"model": copy.deepcopy(model.state_dict())}
        if optimizer is not None:
            self._saved["optimizer"] = copy.deepcopy(optimizer.state_dict())

    def rewind(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        """Put the saved state back."""
        model.load_state_dict(self._saved["model"])
        if optimizer is not None:
            # Loading keeps references to the tensors, which training would then change.
            optimizer.load_state_dict(copy.deepcopy(self._saved["optimizer"]))

    def state_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self._saved)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._saved = copy.deepcopy(dict(state))
