"""What a sample loop reads of a chunk of frames."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sparsejit.ir.graph import Array


@dataclass(frozen=True, eq=False)
class LoopArrays:
    """Inputs of a loop in their order, C-contiguous: a row a frame, and a row a sample."""

    frames: int
    of_frames: Sequence[Array]
    of_samples: Sequence[Array] = ()

    def loop_arrays(self) -> "LoopArrays":
        return self


class FrameInputs(Protocol):
    """Anything that says what a loop reads of frames."""

    def loop_arrays(self) -> LoopArrays: ...
