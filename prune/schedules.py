"""Schedules: the steps that recompute the masks, and the share pruned at each step."""

from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

from sparsejit.errors import InvalidInput


class Schedule(Protocol):
    """The pruning of each step: step 0 is `Pruner.prepare`, step k the k-th `Pruner.step`."""

    @property
    def end(self) -> int:
        """The last step that recomputes the masks; from there on the whole amount is pruned."""
        ...

    def due(self, step: int) -> bool:
        """Whether the masks are recomputed at this step."""
        ...

    def amount(self, step: int, final: float) -> float:
        """Share pruned at this step on the way from 0 to `final`, never falling."""
        ...


def check_schedule(schedule: Any) -> None:
    """Raise InvalidInput for an object that is no schedule, such as the name of one."""
    if not all(hasattr(schedule, name) for name in ("due", "amount", "end")):
        raise InvalidInput(
            f"schedule={schedule!r} is no schedule: give CubicSchedule(start, end), ConstantRate, "
            "OneShot or IterativeSchedule"
        )


def _check_steps(owner: object, **steps: Any) -> None:
    for name, step in steps.items():
        if not isinstance(step, Integral) or isinstance(step, bool):
            raise InvalidInput(
                f"{type(owner).__name__} got {name}={step!r}: give a whole number of steps"
            )


@dataclass(frozen=True)
class OneShot:
    """The whole amount at one step.

    Attributes:
        at: the step; 0 prunes inside `Pruner.prepare`

    Raises:
        InvalidInput: `at` is below 0
    """

    at: int = 0

    def __post_init__(self) -> None:
        _check_steps(self, at=self.at)
        if self.at < 0:
            raise InvalidInput(f"OneShot got at={self.at}: choose a step of 0 or more")

    @property
    def end(self) -> int:
        return self.at

    def due(self, step: int) -> bool:
        return step == self.at

    def amount(self, step: int, final: float) -> float:
        return final if step >= self.at else 0.0


@dataclass(frozen=True)
class _Gradual:
    """Prunes from step `start` to step `end`; recomputes masks every `every` steps and at `end`.

    Raises:
        InvalidInput: unless 0 <= start < end and every >= 1
    """

    start: int
    end: int
    every: int = 100

    def __post_init__(self) -> None:
        _check_steps(self, start=self.start, end=self.end, every=self.every)
        if not 0 <= self.start < self.end:
            raise InvalidInput(
                f"{type(self).__name__} got start={self.start}, end={self.end}: "
                "choose 0 <= start < end"
            )
        if self.every < 1:
            raise InvalidInput(f"{type(self).__name__} got every={self.every}: use 1 step or more")

    def due(self, step: int) -> bool:
        if not self.start <= step <= self.end:
            return False
        return (step - self.start) % self.every == 0 or step == self.end

    def _progress(self, step: int) -> float:
        return min(max((step - self.start) / (self.end - self.start), 0.0), 1.0)


@dataclass(frozen=True)
class CubicSchedule(_Gradual):
    """final * (1 - (1 - t)^3) with t from 0 at step `start` to 1 at step `end`.

    Zhu & Gupta 2017, "To prune, or not to prune", equation 1. `end` always recomputes, so the final
    amount is exact also where `every` does not divide `end - start`.

    Attributes:
        start: the first step that prunes
        end: the last
        every: steps between two updates of the masks

    Raises:
        InvalidInput: unless 0 <= start < end and every >= 1
    """

    def amount(self, step: int, final: float) -> float:
        return final * (1.0 - (1.0 - self._progress(step)) ** 3)


@dataclass(frozen=True)
class ConstantRate(_Gradual):
    """The same share at every update: final * t, with t from 0 at `start` to 1 at `end`.

    Attributes:
        start: the first step that prunes
        end: the last
        every: steps between two updates of the masks

    Raises:
        InvalidInput: unless 0 <= start < end and every >= 1
    """

    def amount(self, step: int, final: float) -> float:
        return final * self._progress(step)


@dataclass(frozen=True)
class IterativeSchedule:
    """Train, prune, rewind, again: each round prunes the same share of the remaining blocks.

    The recipe of training has `length` steps. Its end prunes, then training goes on from the
    recipe's step `rewind_to`; after the last of `rounds` prunings it runs to its end once more,
    `total` steps in all. `Pruner.training_step` is the recipe's step: set the learning rate by it
    (learning-rate rewinding, Renda et al. 2020, "Comparing rewinding and fine-tuning"). With
    `rewind_weights` and `rewind_to=0` it is the lottery ticket of Frankle & Carbin 2019.

    Attributes:
        rounds: number of prunings
        length: steps of the recipe of training
        rewind_to: the recipe's step to go back to
        rewind_weights: whether model and optimizer also go back to their state at that step

    Raises:
        InvalidInput: unless rounds >= 1 and 0 <= rewind_to < length
    """

    rounds: int
    length: int
    rewind_to: int = 0
    rewind_weights: bool = False

    def __post_init__(self) -> None:
        _check_steps(self, rounds=self.rounds, length=self.length, rewind_to=self.rewind_to)
        if self.rounds < 1 or not 0 <= self.rewind_to < self.length:
            raise InvalidInput(
                f"IterativeSchedule got rounds={self.rounds}, length={self.length}, "
                f"rewind_to={self.rewind_to}: choose rounds >= 1 and 0 <= rewind_to < length"
            )

    @property
    def end(self) -> int:
        return self.length + (self.rounds - 1) * self._round

    @property
    def total(self) -> int:
        return self.end + self._round

    def due(self, step: int) -> bool:
        return self.length <= step <= self.end and (step - self.length) % self._round == 0

    def amount(self, step: int, final: float) -> float:
        done = self._prunings(step)
        # Exact at the last: a power of a rounded exponent is not.
        return final if done == self.rounds else 1 - (1 - final) ** (done / self.rounds)

    def training_step(self, step: int) -> int:
        """The recipe's step: `rewind_to` right after a pruning."""
        return step - self._prunings(step) * self._round

    @property
    def _round(self) -> int:
        return self.length - self.rewind_to

    def _prunings(self, step: int) -> int:
        if step < self.length:
            return 0
        return min((step - self.length) // self._round + 1, self.rounds)
