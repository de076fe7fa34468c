"""Pruning in place while a model trains, with weight rewinding.

    Rewinder   the state of model and optimizer that rewinding goes back to
    Pruner     zeroes the least important weights
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparsejit.errors import InvalidInput
from sparsejit.ir.spec import DType
from sparsejit.prune.allocation import (
    ALLOCATIONS,
    Amount,
    amounts_by_gate,
    check_amount,
    choose_allocation,
    choose_pruned,
)
from sparsejit.prune.budget import TradeOff, check_budget, spend
from sparsejit.prune.calibration import call
from sparsejit.prune.convolutions import ConvolutionInModel, convolutions_in_model
from sparsejit.prune.criteria import Criterion, Magnitude, check_criterion
from sparsejit.prune.latency import measured_latencies
from sparsejit.prune.patterns import Blocks, Pattern, choose_pattern, on_weight
from sparsejit.prune.prunable import Prunable
from sparsejit.prune.regularisers import Regulariser
from sparsejit.prune.report import SparsityReport, describe_layer
from sparsejit.prune.schedules import IterativeSchedule, OneShot, Schedule, check_schedule
from sparsejit.prune.targets import (
    Target,
    as_list,
    check_finite,
    check_globs,
    count_gates,
    match_targets,
    protect_diagonal,
    warn_of_one_block,
)


class Rewinder:
    """Saves model and optimizer at the schedule's step `rewind_to`, and restores them later.

    That is after every pruning.
    """

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


class Pruner:
    """Zeroes the least important weights, block by block, while a model trains.

    Weights stay plain parameters: call `prepare` once and `step` after every `optimizer.step`. A
    weight of more than two axes counts as (out, product of the rest). Once pruned, a weight stays
    pruned. In every gate of every target round(amount * blocks) blocks go.

    Args:
        amount: share of blocks pruned at the end, 0 <= amount < 1; or globs with a share each, or
            with one share a gate: {"rnn.*": (0.9, 0.8, 0.9), "fc*": 0.95}; the first match counts.
        pattern: "unstructured", "1x8" or "1x16" (one input, 8 or 16 consecutive outputs), "4x1in"
            or "4x2in" (four consecutive inputs, 1 or 2 outputs), "lane16", or N:M such as "2:4".
        targets: globs over `model.named_parameters()` names, "!glob" to leave matches out, or
            functions of a name and a parameter. By default, or with nothing but "!glob", every
            weight of two or more axes that no embedding or normalisation holds.
        schedule: when and how fast; by default everything at once in `prepare`.
        block: any (rows, cols) of weight[out, in] in place of a pattern.
        per_gate: equal density in each gate of nn.GRU, nn.LSTM and their cells. A mapping such as
            {"cell.weight": 3} says so for other modules as well; False prunes across gates.
        allocation: "uniform", "global", "lamp" or "erk": how the targets share one amount. By
            default "lamp", which loses least, or "erk" where scores are no magnitudes.
        criterion: Magnitude() by default, Movement() or Random(seed).
        regulariser: L1, GroupLasso or ADMM; add `penalty()` to the loss.
        keep_diagonal: globs of recurrent matrices whose gates keep the blocks on their diagonals.
        budget_us: microseconds, in place of an amount: the time that one product of each target
            (one image of a convolution) may take in all, one after another on this machine.
            `prepare` measures, chooses the amounts that lose the least, and leaves them in
            `trade_off`.
        dtype: how compiled weights are stored, for `budget_us`.

    Raises:
        InvalidInput: a value is outside its range
    """

    def __init__(
        self,
        amount: Amount | None = None,
        pattern: str | Pattern = "unstructured",
        *,
        targets: Target | Sequence[Target] | None = None,
        schedule: Schedule | None = None,
        block: tuple[int, int] | None = None,
        per_gate: bool | Mapping[str, int] = True,
        allocation: str | None = None,
        criterion: Criterion | None = None,
        regulariser: Regulariser | None = None,
        keep_diagonal: Sequence[str] = (),
        budget_us: float | None = None,
        dtype: str = "float32",
    ) -> None:
        self.pattern: Pattern = choose_pattern(pattern, block)
        check_budget(budget_us, amount, self.pattern, allocation)
        self.amount: Amount = {} if amount is None else amount  # {} until prepare chooses
        check_amount(self.amount, self.pattern)
        self.budget_us = budget_us
        self.dtype = DType.parse(dtype).value
        self.trade_off: TradeOff | None = None
        if targets is not None and not as_list(targets):
            raise InvalidInput(
                "targets is empty: name weights, for example ['fc*.weight'], or leave it out"
            )
        self.targets = as_list(() if targets is None else targets)
        self.schedule: Schedule = schedule if schedule is not None else OneShot()
        check_schedule(self.schedule)
        self.per_gate = per_gate
        self.criterion: Criterion = criterion if criterion is not None else Magnitude()
        check_criterion(self.criterion)
        is_magnitude = isinstance(self.criterion, Magnitude)
        self.allocation = choose_allocation(allocation, self.amount, self.pattern, is_magnitude)
        self.regulariser = regulariser
        self.keep_diagonal: list[Any] = as_list(keep_diagonal, "keep_diagonal")
        self._check_combination()
        self._step = 0
        self._gates: dict[str, int] = {}
        self._masks: dict[str, Tensor] = {}  # True where pruned, in the weight's shape
        self._protected: list[str] = []
        self._model: nn.Module | None = None
        self._optimizer: Optimizer | None = None
        self._rewinder: Rewinder | None = None
        if isinstance(self.schedule, IterativeSchedule) and self.schedule.rewind_weights:
            self._rewinder = Rewinder(self.schedule)

    def prepare(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        keep_zeros: bool = False,
        example_inputs: Any = None,
        run: Callable[[nn.Module, Any], Any] = call,
    ) -> None:
        """Start at step 0 on the model's targets. Warns of a target that is no more than one block.

        Args:
            model: a torch module, pruned in place
            optimizer: the model's optimizer; its state of pruned weights is zeroed as well
            keep_zeros: whether existing zeros count as pruned
            example_inputs: as for `latency_table`, which `budget_us` needs for convolutions
            run: as for `latency_table`

        Raises:
            InvalidInput: a target matches nothing, or no matrix, or holds NaN; protected blocks
                leave too little to prune; a budget needs a convolution's images
        """
        weights = {name: model.get_parameter(name) for name in match_targets(model, self.targets)}
        if isinstance(self.per_gate, Mapping):
            check_globs(dict(model.named_parameters(remove_duplicate=False)), self.per_gate)
        self._gates = {name: count_gates(model, name, self.per_gate) for name in weights}
        for name, weight in weights.items():
            warn_of_one_block(name, weight, self._gates[name], self.pattern)
        check_globs(weights, self.keep_diagonal)
        self._protected = [
            name for name in weights if any(fnmatchcase(name, glob) for glob in self.keep_diagonal)
        ]
        self._masks = {
            name: weight.detach().eq(0)
            if keep_zeros
            else torch.zeros_like(weight, dtype=torch.bool)
            for name, weight in weights.items()
        }
        self._model, self._optimizer, self._step = model, optimizer, 0
        if self.budget_us is not None:
            found = convolutions_in_model(model, weights, example_inputs, run)
            self.trade_off = self._spend(self.budget_us, weights, found)
            self.amount = self.trade_off.amounts
        self.criterion.start(weights)
        # Raises now, not at the schedule's end, if the amount cannot be reached.
        self._project({name: weight.detach() for name, weight in weights.items()})
        if self.regulariser is not None:
            self.regulariser.start(weights, self._project)
        self._advance(weights)

    def step(self) -> None:
        """Prune further where the schedule says so, and zero the pruned weights.

        Call it after each `optimizer.step`, which moves pruned weights (by their gradients,
        momentum and weight decay).

        Raises:
            InvalidInput: before `prepare`, and for NaN weights
        """
        weights = self._weights()
        self._step += 1
        self.criterion.observe(weights)
        if self.regulariser is not None and self._step <= self.schedule.end:
            self.regulariser.observe(self._step, weights, self._project)
        self._advance(weights)

    @property
    def training_step(self) -> int:
        """Step of the training recipe: calls of `step`, less steps that IterativeSchedule rewound.

        Set the learning rate by it.
        """
        if isinstance(self.schedule, IterativeSchedule):
            return self.schedule.training_step(self._step)
        return self._step

    def penalty(self) -> Tensor:
        """The regulariser's term of the loss, a scalar; 0 once the schedule has ended."""
        weights = self._weights()
        if self.regulariser is None:
            raise InvalidInput("the Pruner has no regulariser: give it one, for example L1(1e-5)")
        if self._step >= self.schedule.end:
            return next(iter(weights.values())).new_zeros(())
        return self.regulariser.penalty(weights, self._gates)

    def mask_gradients(self) -> None:
        """Zero the gradients of pruned weights, so that clipping by norm does not count them."""
        for name, weight in self._weights().items():
            if weight.grad is not None:
                weight.grad.masked_fill_(self._mask(name, weight.grad.device), 0)

    def finalize(self) -> SparsityReport:
        """Leave exact zeros and report the rest. It never prunes further, even mid-schedule."""
        self._apply()
        return self.sparsity_report()

    def sparsity_report(self) -> SparsityReport:
        """Nonzero weights and blocks of every target as they are now."""
        return SparsityReport(
            [
                describe_layer(name, weight.detach(), self.pattern, self._gates[name])
                for name, weight in self._weights().items()
            ]
        )

    def state_dict(self) -> dict[str, Any]:
        """The state to resume from, safe for `torch.save` and `torch.load(weights_only=True)`."""
        return {
            "step": self._step,
            "pattern": self.pattern.name,
            "chosen_amounts": {} if self.budget_us is None else self.amount,
            "masks": {name: mask.clone() for name, mask in self._masks.items()},
            "criterion": self.criterion.state_dict(),
            "regulariser": {} if self.regulariser is None else self.regulariser.state_dict(),
            "rewinder": {} if self._rewinder is None else self._rewinder.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state; call after `prepare` on a model with the same targets.

        Args:
            state: the result of `state_dict`

        Raises:
            InvalidInput: names, pattern or shapes differ; nothing is changed then
        """
        weights = self._weights()
        self._check_state(state)
        self._masks = {
            name: mask.to(device=weights[name].device, dtype=torch.bool, copy=True)
            for name, mask in state["masks"].items()
        }
        if self.budget_us is not None:
            self.amount, self.trade_off = dict(state["chosen_amounts"]), None
        self._step = int(state["step"])
        self.criterion.load_state_dict(state["criterion"])
        if self.regulariser is not None:
            self.regulariser.load_state_dict(state["regulariser"])
        if self._rewinder is not None:
            self._rewinder.load_state_dict(state["rewinder"])
        self._apply()

    def _check_combination(self) -> None:
        if not isinstance(self.per_gate, bool | Mapping):
            raise InvalidInput(
                f"per_gate={self.per_gate!r}: give True, False or gates by globs, {{'cell.*': 3}}"
            )
        if self.regulariser is not None and self.schedule.end == 0:
            raise InvalidInput(
                "the schedule prunes everything in prepare, before the regulariser can act: "
                "give one that ends later, for example OneShot(at=1000)"
            )

    def _weights(self) -> dict[str, nn.Parameter]:
        if self._model is None:
            raise InvalidInput("the Pruner has no model yet: call prepare(model, optimizer) first")
        return {name: self._model.get_parameter(name) for name in self._masks}

    def _mask(self, name: str, device: torch.device) -> Tensor:
        self._masks[name] = self._masks[name].to(device)
        return self._masks[name]

    def _advance(self, weights: Mapping[str, nn.Parameter]) -> None:
        due = self.schedule.due(self._step)
        if due:
            for name, weight in weights.items():
                check_finite(name, weight)
            importance = {n: self.criterion.importance(n, w) for n, w in weights.items()}
            self._masks = self._select(
                importance, lambda final: self.schedule.amount(self._step, final)
            )
        if self._rewinder is not None and self._model is not None:
            if due:
                self._rewinder.rewind(self._model, self._optimizer)
                self.criterion.start(weights)
            self._rewinder.record(self._step, self._model, self._optimizer)
        self._apply()

    def _select(
        self, importance: Mapping[str, Tensor], share: Callable[[float], float]
    ) -> dict[str, Tensor]:
        """Masks of weights to prune, by name: all pruned so far, and the least blocks now due.

        `share` gives the amount that is due now, from the final amount.
        """
        layers = {name: self._blocks(name, values) for name, values in importance.items()}
        if isinstance(self.amount, Mapping):
            counts = {
                name: [share(final) * layers[name].per_gate for final in amounts]
                for name, amounts in amounts_by_gate(self.amount, self._gates).items()
            }
        else:
            allocation = self.allocation if len(layers) > 1 else "uniform"
            each = ALLOCATIONS[allocation](layers, share(self.amount))
            counts = {name: [each[name]] * blocks.gates for name, blocks in layers.items()}
        return {
            name: pruned.view_as(importance[name]) | self._masks[name]
            for name, pruned in choose_pruned(layers, counts).items()
        }

    def _blocks(self, name: str, importance: Tensor) -> Blocks:
        if name in self._protected:
            importance = importance.masked_fill(protect_diagonal(name, importance), torch.inf)
        alive = ~self._mask(name, importance.device)
        gates = (self._gates[name], importance.shape[0] // self._gates[name], -1)
        pattern = on_weight(self.pattern, importance.shape)
        return pattern.blocks(importance.reshape(gates), alive.reshape(gates))

    def _spend(
        self,
        budget_us: float,
        weights: Mapping[str, nn.Parameter],
        convolutions: Mapping[str, ConvolutionInModel],
    ) -> TradeOff:
        layers = {}
        for name, weight in weights.items():
            check_finite(name, weight)
            blocks = self._blocks(name, weight.detach().double().square())
            matrix = weight.detach().flatten(1).float()
            layers[name] = Prunable(matrix, blocks, convolutions.get(name))
        table = measured_latencies(layers, self.pattern, self.dtype)
        return spend(budget_us, layers, table, self.pattern.name)

    def _project(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The nearest tensors, by name, that meet the pattern and the final amount: some zeroed."""
        for name, tensor in tensors.items():
            check_finite(name, tensor)
        squares = {name: tensor.double().square() for name, tensor in tensors.items()}
        pruned = self._select(squares, lambda final: final)
        return {name: tensor.masked_fill(pruned[name], 0) for name, tensor in tensors.items()}

    @torch.no_grad()
    def _apply(self) -> None:
        for name, weight in self._weights().items():
            pruned = self._mask(name, weight.device)
            for tensor in [weight, *self._moments(weight)]:
                tensor.masked_fill_(pruned, 0)

    def _moments(self, weight: nn.Parameter) -> list[Tensor]:
        """The optimizer's tensors of a weight (Adam's exp_avg, SGD's momentum_buffer, ...)."""
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

    def _check_state(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping):
            raise InvalidInput(f"the state is {state!r}: pass Pruner.state_dict()")
        missing = self.state_dict().keys() - state.keys()
        if missing:
            raise InvalidInput(f"the state lacks {sorted(missing)}: pass Pruner.state_dict()")
        if state["pattern"] != self.pattern.name:
            raise InvalidInput(
                f"the state has pattern {state['pattern']!r}, this Pruner {self.pattern.name!r}: "
                "build it with the pattern it was saved with"
            )
        if bool(state["chosen_amounts"]) != (self.budget_us is not None):
            raise InvalidInput(
                "one of the saved and this Pruner has budget_us, the other an amount: "
                "build it as it was saved"
            )
        masks = state["masks"]
        if not isinstance(masks, Mapping) or not all(isinstance(m, Tensor) for m in masks.values()):
            raise InvalidInput("the state's masks are no tensors by name: pass Pruner.state_dict()")
        step = state["step"]
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise InvalidInput(f"the state's step is {state['step']!r}: pass Pruner.state_dict()")
        found = {name: tuple(mask.shape) for name, mask in masks.items()}
        wanted = {name: tuple(mask.shape) for name, mask in self._masks.items()}
        if found != wanted:
            differing = sorted(set(found.items()) ^ set(wanted.items()))
            raise InvalidInput(
                f"the state does not fit this model's targets, which differ in {differing[:4]}: "
                "use the same model and targets"
            )
