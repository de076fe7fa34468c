"""Settings of a voice's training."""

import math
from dataclasses import dataclass

from sparsejit.errors import InvalidInput
from sparsejit.prune import CubicSchedule, Pruner
from sparsejit.voice.features import HOP_LENGTH
from sparsejit.voice.spec.voice_spec import check_temperature
from sparsejit.voice.weights import DENSE_LAYERS, PRUNED, RECURRENT

# The pruner keeps blocks of eight units of one gate.
UNITS_A_BLOCK = 8
MOST_UNITS = 4096
PRECISIONS = ("highest", "medium")


@dataclass(frozen=True)
class TrainingPlan:
    """Settings of a training: size, length and pruning; the unit of time is a sample of audio.

    Pruning runs between the fractions `prune_start` and `prune_end` of `samples`; the learning
    rate falls over all of it on a cosine. `amount` is the share of the recurrent matrix that is
    pruned, `dense_amount` of the dense layers, the same where None; 0 prunes nothing. `per_gate`
    gives each gate the same density; else all rows of the recurrent matrix are ranked together.
    From the fraction `int8_start` on products are rounded as int8 kernels round them; 1 is never.
    `product_precision` is torch's, "highest" or "medium": the latter rounds the inputs of products
    to bfloat16, faster on some processors and slower on others.

    Raises InvalidInput for settings that cannot be trained, pruned or spoken.
    """

    hidden_size: int = 384
    samples: int = 190_000_000
    streams: int = 16
    frames: int = 2
    learning_rate: float = 1.5e-3
    final_learning_rate: float = 5e-5
    warm_up_steps: int = 200
    amount: float = 0.95
    dense_amount: float | None = None
    pattern: str = "lane16"
    per_gate: bool = True
    prune_start: float = 0.15
    prune_end: float = 0.6
    int8_start: float = 0.85
    product_precision: str = "highest"
    temperature: float = 0.9
    seed: int = 0

    def __post_init__(self) -> None:
        if self.hidden_size % UNITS_A_BLOCK or not 0 < self.hidden_size <= MOST_UNITS:
            raise InvalidInput(
                f"hidden_size is {self.hidden_size}; give a multiple of {UNITS_A_BLOCK} "
                f"from {UNITS_A_BLOCK} to {MOST_UNITS}: pruning takes blocks of "
                f"{UNITS_A_BLOCK} units"
            )
        if self.streams < 1 or self.frames < 1:
            raise InvalidInput(
                f"{self.streams} streams of {self.frames} frames a step train nothing; give 1 or "
                "more of both"
            )
        check_temperature(self.temperature)
        if not 0 < self.prune_start < self.prune_end <= 1:
            raise InvalidInput(
                f"pruning from {self.prune_start} to {self.prune_end} of the training is "
                "not an interval in (0, 1]; give prune_start < prune_end"
            )
        if not 0 <= self.int8_start <= 1:
            raise InvalidInput(
                f"int8_start is {self.int8_start}; give the fraction of the training, 0 to 1, "
                "after which products are rounded"
            )
        if self.product_precision not in PRECISIONS:
            raise InvalidInput(
                f"product_precision is {self.product_precision!r}; give one of "
                f"{', '.join(PRECISIONS)}"
            )
        if self.samples < self.samples_a_step:
            raise InvalidInput(
                f"{self.samples} samples are less than one step; give {self.samples_a_step} or more"
            )
        self.pruner()  # checks the amounts and the pattern

    @property
    def samples_a_step(self) -> int:
        return self.streams * self.frames * HOP_LENGTH

    @property
    def steps(self) -> int:
        return self.samples // self.samples_a_step

    def learning_rate_at(self, step: int) -> float:
        warm_up = min(1.0, (step + 1) / self.warm_up_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        span = self.learning_rate - self.final_learning_rate
        return warm_up * (self.final_learning_rate + span * cosine)

    def rounds_at(self, step: int) -> bool:
        """Whether products are rounded to int8 at this step."""
        return step >= self.int8_start * self.steps

    def pruner(self) -> Pruner:
        start, end = (int(part * self.steps) for part in (self.prune_start, self.prune_end))
        dense = self.amount if self.dense_amount is None else self.dense_amount
        return Pruner(
            {RECURRENT: self.amount, **dict.fromkeys(DENSE_LAYERS, dense)},
            self.pattern,
            targets=PRUNED,
            schedule=CubicSchedule(start=start, end=max(end, start + 1), every=100),
            per_gate=self.per_gate,
        )
