"""Rules for time: the frames of its operands that an operator reads for a frame of its result.

    Apart      each frame by itself, as the samples of a batch
    Shifted    frames moved along the axis: added before the first one, or left out
    Window     a window of frames for each result, which needs the frames before a step
    Overlap    results of each frame that overlap and are added
    Grouped    frames joined by a reshape, a fixed number at a time
    Appended   operands one after the other along time
    Carried    a recurrence, which needs its last state
    Attended   attention among frames, which a mask keeps near each other
    Whole      all frames at once

`Operator.time_rule` returns one of them, and `passes.steps` makes the function of a step by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TimeRule:
    """A rule; `op` is the operator of a step where it differs from the model's."""


@dataclass(frozen=True)
class Apart(TimeRule):
    """Each frame by itself, where the operator does not mix samples on that axis."""


@dataclass(frozen=True)
class Shifted(TimeRule):
    """Result frame j is frame j - `before` of the operand; frames before the first are `fill`.

    `after` are the frames added behind the last one; both are negative for frames left out. `op`
    is applied to the frames that a step has.
    """

    before: int
    after: int
    fill: float = 0.0
    op: Any = None


@dataclass(frozen=True)
class Window(TimeRule):
    """Result frame j reads frames j * `stride` - `before` to that plus `reach` - 1.

    Frames before the first one are `fill`. `op` computes all windows of the frames that it gets.
    """

    reach: int
    stride: int
    before: int
    fill: float
    op: Any


@dataclass(frozen=True)
class Overlap(TimeRule):
    """Frame i adds to result frames i * `stride` - `before` to that plus `reach` - 1.

    `op` computes all result frames from the first one that frame 0 adds to. It reads the first two
    operands alone; the third one is added to the channels of the sum.
    """

    reach: int
    stride: int
    before: int
    op: Any


@dataclass(frozen=True)
class Grouped(TimeRule):
    """The result has a frame for each `frames` of the operand."""

    frames: int


@dataclass(frozen=True)
class Appended(TimeRule):
    """The operands lie one after the other along time."""


@dataclass(frozen=True)
class Carried(TimeRule):
    """Operand `states[i][0]` is a state; result `states[i][1]` has its value after the last frame.

    All other operands with time have it on axis 0, and so have all other results.
    """

    states: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Attended(TimeRule):
    """Queries, keys and values have time on the last axis but one, and a mask forbids keys."""

    scale: float


@dataclass(frozen=True)
class Whole(TimeRule):
    """All frames at once; `why` is the predicate of the message, `remedy` the advice."""

    why: str
    remedy: str
