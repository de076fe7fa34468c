"""A run of a recipe: prune, train, resume, and report the result.

    Batches         batches in an order that a resumed run repeats
    run_recipe      the run
    PruningResult   the pruned model and its figures
"""

import math
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.files import atomic_path
from sparsejit.frontends.files import read_torch_file
from sparsejit.prune.calibration import Calibration, calibrate, evaluating
from sparsejit.prune.post_training import refit
from sparsejit.prune.recipe import LEARNING_RATES, Recipe, Training
from sparsejit.prune.report import SparsityReport
from sparsejit.prune.schedules import IterativeSchedule
from sparsejit.prune.workload import Workload


class Batches:
    """A workload's batches without end, in an order that can be resumed exactly.

    Random numbers that batches draw from torch's generator, or a DataLoader from its own, depend on
    the seed and the number of the pass alone, not on numbers that the model draws meanwhile.
    """

    def __init__(self, source: Iterable[Any], seed: int) -> None:
        self._source = source
        self._seed = seed
        self._pass, self._taken = -1, 0
        self._iterator: Iterator[Any] = iter(())
        self._random_state = torch.get_rng_state()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """The next batch; raises InvalidInput where a pass yields nothing."""
        with self._own_generator():
            batch = next(self._iterator, self)
            if batch is self:
                self._start(self._pass + 1)
                batch = next(self._iterator, self)
        if batch is self:
            raise InvalidInput(
                f"batches yielded nothing in pass {self._pass + 1}: give an iterable "
                "that can start again, such as a DataLoader or a list, with at least one batch"
            )
        self._taken += 1
        return batch

    def position(self) -> dict[str, int]:
        """The position for `restore`: the number of the pass, and of batches taken from it."""
        return {"pass": self._pass, "taken": self._taken}

    def restore(self, position: Mapping[str, int]) -> None:
        """Resume at a `position`: start its pass again, and skip the batches taken."""
        if position["pass"] < 0:
            return
        with self._own_generator():
            self._start(position["pass"])
        for _ in range(position["taken"]):
            next(self)

    def _start(self, number: int) -> None:
        # torch's CPU generator takes no more than 32 bits of a seed.
        seed = zlib.crc32(f"{self._seed} {number}".encode())
        torch.manual_seed(seed)
        own = getattr(self._source, "generator", None)
        if isinstance(own, torch.Generator):
            own.manual_seed(seed)
        self._pass, self._taken, self._iterator = number, 0, iter(self._source)

    @contextmanager
    def _own_generator(self) -> Iterator[None]:
        outside = torch.get_rng_state()
        torch.set_rng_state(self._random_state)
        try:
            yield
        finally:
            self._random_state = torch.get_rng_state()
            torch.set_rng_state(outside)


CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True)
class RunProgress:
    """Stage and step of a run; `loss` and `density` of the targets are known while it trains."""

    stage: str
    step: int = 0
    steps: int = 0
    loss: float | None = None
    density: float | None = None


@dataclass(frozen=True)
class PruningResult:
    """The pruned model, in eval mode, its sparsity, and its figures before and after.

    `before` and `after` are results of the workload's `evaluate`; empty without one.
    """

    model: nn.Module
    report: SparsityReport
    before: Mapping[str, float]
    after: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """All but the model, as plain JSON types."""
        return {**self.report.as_dict(), "before": {**self.before}, "after": {**self.after}}


def run_recipe(
    workload: Workload,
    recipe: Recipe,
    *,
    checkpoint: str | PathLike[str] | None = None,
    progress: Callable[[RunProgress], None] = lambda progress: None,
) -> PruningResult:
    """Prune the workload's model in place, as the recipe says. Seeds torch's generator.

    Args:
        workload: the model, its batches and its loss
        recipe: the method of pruning and of training
        checkpoint: a file written every minute of training, at its end, and on Ctrl-C, which then
            ends the step that is running. If it exists the run resumes from it, with the same
            result as without interruption on the same machine and number of threads.
        progress: a function that gets the stage and step of the run

    Raises:
        InvalidInput: the workload lacks data that the recipe needs, a loss is not finite, or the
            checkpoint is of another recipe
    """
    _check_data(workload, recipe)
    run = _Run(workload, recipe)
    if checkpoint is not None and Path(checkpoint).exists():
        run.restore(checkpoint)
    else:
        run.begin(progress)
    if recipe.train is not None:
        run.train(recipe.train, checkpoint, progress)
    report = run.pruner.finalize()
    progress(RunProgress("evaluating"))
    after = _evaluate(workload)
    workload.model.eval()
    return PruningResult(workload.model, report, run.before, after)


class _Run:
    """The state of a run, which a checkpoint holds, and the steps that change it."""

    def __init__(self, workload: Workload, recipe: Recipe) -> None:
        self.workload, self.recipe = workload, recipe
        self.model = workload.model
        self.optimizer = recipe.build_optimizer(self.model.parameters())
        self.pruner = recipe.build_pruner()
        batches = () if workload.batches is None else workload.batches
        self.batches = Batches(batches, recipe.seed)
        self.before: Mapping[str, float] = {}
        self.step = 0

    def begin(self, progress: Callable[[RunProgress], None]) -> None:
        """Evaluate the model, then do all pruning that the method does before training.

        This is calibration, a cut, the Pruner's start and a refit, as the method has them.
        """
        torch.manual_seed(self.recipe.seed)
        progress(RunProgress("evaluating"))
        self.before = _evaluate(self.workload)
        method = self.recipe.build_method()
        calibration: Calibration = {}
        if method.batches:
            progress(RunProgress("calibrating"))
            calibration = self._calibrate(method.batches)
        progress(RunProgress("pruning"))
        if method.cut is not None:
            settings = self.recipe.prune
            per_gate = settings.get("per_gate", True)
            method.cut(
                self.model, calibration, settings["amount"], self.pruner.pattern, per_gate=per_gate
            )
        self._prepare(method.keep_zeros)
        if method.refit:
            refit(self.model, calibration)

    def train(
        self,
        training: Training,
        checkpoint: str | PathLike[str] | None,
        progress: Callable[[RunProgress], None],
    ) -> None:
        """Train to the last step.

        Saves the checkpoint, if one is named, every CHECKPOINT_SECONDS, at the end, and at Ctrl-C.
        """
        self.model.train()
        density = self.pruner.sparsity_report().density
        saved = time.monotonic()
        with ctrl_c_noted(checkpoint is not None) as pressed:
            while self.step < training.steps:
                loss = self.train_step(training)
                if self.pruner.schedule.due(self.step):
                    density = self.pruner.sparsity_report().density
                progress(RunProgress("training", self.step, training.steps, loss, density))
                stop = pressed()
                due = time.monotonic() - saved >= CHECKPOINT_SECONDS or self.step == training.steps
                if checkpoint is not None and (stop or due):
                    self.save(checkpoint)
                    saved = time.monotonic()
                if stop:
                    raise KeyboardInterrupt

    def train_step(self, training: Training) -> float:
        """Train on the next batch; return its loss, without the regulariser's penalty."""
        assert self.optimizer is not None and self.workload.loss is not None
        for group in self.optimizer.param_groups:
            group["lr"] = self.optimizer.defaults["lr"] * self._learning_rate(training)
        self.optimizer.zero_grad()
        loss = self.workload.loss(self.model, next(self.batches))
        if not isinstance(loss, Tensor) or loss.ndim:
            raise InvalidInput(f"the loss is {loss!r}: return a scalar tensor, such as a mean")
        value = loss.item()
        if not math.isfinite(value):
            raise InvalidInput(
                f"the loss is {value} at step {self.step + 1}: lower train.optimizer.lr, or set "
                "train.clip"
            )
        (loss if self.pruner.regulariser is None else loss + self.pruner.penalty()).backward()
        self.pruner.mask_gradients()
        if training.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), training.clip)
        self.optimizer.step()
        self.pruner.step()
        self.step += 1
        return value

    def save(self, path: str | PathLike[str]) -> None:
        """Write a checkpoint for `restore`: plain data and tensors, no pickled code."""
        content = {
            "recipe": self.recipe.to_dict(),
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": None if self.optimizer is None else self.optimizer.state_dict(),
            "pruner": self.pruner.state_dict(),
            "batches": self.batches.position(),
            "random": torch.get_rng_state(),
            "random_cuda": torch.cuda.get_rng_state_all(),
            "before": {**self.before},
        }
        with atomic_path(path) as temporary:
            torch.save(content, temporary)

    def restore(self, path: str | PathLike[str]) -> None:
        """Resume from a checkpoint of the same recipe, on a model of the same build."""
        content = _read_checkpoint(path)
        if content["recipe"] != self.recipe.to_dict():
            raise InvalidInput(
                f"{path} is the checkpoint of another recipe: go on with that one, or delete it"
            )
        keep_zeros = self.recipe.build_method().keep_zeros
        self._prepare(keep_zeros)
        try:
            self.model.load_state_dict(content["model"])
        except RuntimeError as error:
            problem = " ".join(str(error).split())
            raise InvalidInput(f"{path} is of another model ({problem}); delete it") from error
        if self.optimizer is not None:
            self.optimizer.load_state_dict(content["optimizer"])
        self.pruner.load_state_dict(content["pruner"])
        self.batches.restore(content["batches"])
        torch.set_rng_state(content["random"])
        torch.cuda.set_rng_state_all(content["random_cuda"])
        self.step, self.before = content["step"], content["before"]

    def _prepare(self, keep_zeros: bool) -> None:
        batches, example = self.workload.batches, None
        if self.pruner.budget_us is not None and batches is not None:
            example = next(Batches(batches, self.recipe.seed))  # for the size of images
        self.pruner.prepare(self.model, self.optimizer, keep_zeros, example, self.workload.run)

    def _calibrate(self, batches: int) -> Calibration:
        batches_seen = islice(self.batches, batches)
        return calibrate(self.model, self.pruner.targets, batches_seen, self.workload.run)

    def _learning_rate(self, training: Training) -> float:
        """Share of the optimizer's rate for the next step."""
        schedule = self.pruner.schedule
        steps = schedule.length if isinstance(schedule, IterativeSchedule) else training.steps
        rate = training.learning_rate.build(LEARNING_RATES)
        return float(rate.share(self.pruner.training_step, steps))


def _check_data(workload: Workload, recipe: Recipe) -> None:
    needs = [
        ("batches", recipe.train is not None or recipe.build_method().batches > 0),
        ("loss", recipe.train is not None),
    ]
    for name, needed in needs:
        if needed and getattr(workload, name) is None:
            purpose = f"method {recipe.method.kind}" if recipe.train is None else "training"
            raise InvalidInput(
                f"{purpose} needs {name}: return Workload(model, {name}=...) from the factory"
            )


def _evaluate(workload: Workload) -> Mapping[str, float]:
    if workload.evaluate is None:
        return {}
    with evaluating(workload.model), torch.no_grad():
        figures = workload.evaluate(workload.model)
    try:
        return {name: float(value) for name, value in figures.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"evaluate returned {figures!r}: return figures by name, such as {{'accuracy': 0.97}}"
        ) from error


def _read_checkpoint(path: str | PathLike[str]) -> dict[str, Any]:
    content = read_torch_file(path, "delete it to start afresh")
    if not isinstance(content, dict) or "recipe" not in content:
        raise DamagedFile(f"{path} is no checkpoint of a recipe; name another file")
    return content


@contextmanager
def ctrl_c_noted(wanted: bool) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C was pressed; a second press interrupts at once."""
    presses: list[int] = []

    def note(number: int, frame: Any) -> None:
        if presses:
            raise KeyboardInterrupt
        presses.append(number)

    if not wanted or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(presses)
    finally:
        signal.signal(signal.SIGINT, before)
