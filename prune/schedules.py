"""When the masks are recomputed, and how much of the final amount is pruned by then."""

from dataclasses import dataclass
from typing import Protocol

from sparsejit.errors import InvalidInput


class Schedule(Protocol):
    """Step 0 is `Pruner.prepare`; step k is the k-th call of `Pruner.step`."""

    def due(self, step: int) -> bool:
        """Whether the masks are recomputed at this step."""
        ...

    def fraction(self, step: int) -> float:
        """Share of the pruner's amount reached at this step, 0 to 1, never falling."""
        ...


@dataclass(frozen=True)
class OneShot:
    """The whole amount at one step; 0 prunes inside `Pruner.prepare`."""

    at: int = 0

    def due(self, step: int) -> bool:
        return step == self.at

    def fraction(self, step: int) -> float:
        return float(step >= self.at)


@dataclass(frozen=True)
class CubicSchedule:
    """1 - (1 - t)^3 from step `start` (0) to step `end` (1), recomputed each `every` steps.

    Zhu & Gupta 2017, "To prune, or not to prune", equation 1. `end` always recomputes, so the
    final amount is exact also where `every` does not divide `end - start`.

    Raises InvalidInput unless 0 <= start < end and every >= 1.
    """

    start: int
    end: int
    every: int = 100

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise InvalidInput(
                f"CubicSchedule got start={self.start}, end={self.end}: choose 0 <= start < end"
            )
        if self.every < 1:
            raise InvalidInput(f"CubicSchedule got every={self.every}: use 1 step or more")

    def due(self, step: int) -> bool:
        if not self.start <= step <= self.end:
            return False
        return (step - self.start) % self.every == 0 or step == self.end

    def fraction(self, step: int) -> float:
        progress = (step - self.start) / (self.end - self.start)
        return 1.0 - (1.0 - min(max(progress, 0.0), 1.0)) ** 3
