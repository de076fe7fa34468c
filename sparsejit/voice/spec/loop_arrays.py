"""Inputs of a sample loop for a chunk of frames."""

from collections.abc import Sequence
from dataclasses import dataclass

from sparsejit.ir.values import Array


@dataclass(frozen=True, eq=False)
class LoopArrays:
    """Inputs of a loop in their order, C-contiguous: a row a frame, and a row a sample."""

    frames: int
    of_frames: Sequence[Array]
    of_samples: Sequence[Array] = ()

    def part(self, first: int, end: int) -> "LoopArrays":
        """The inputs of frames `first` to `end` - 1."""
        of_samples = [
            each[first * len(each) // self.frames : end * len(each) // self.frames]
            for each in self.of_samples
        ]
        return LoopArrays(end - first, [each[first:end] for each in self.of_frames], of_samples)
