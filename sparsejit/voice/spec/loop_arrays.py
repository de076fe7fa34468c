"""What a sample loop reads of a chunk of frames."""

from collections.abc import Sequence
from dataclasses import dataclass

from sparsejit.ir.graph import Array


@dataclass(frozen=True, eq=False)
class LoopArrays:
    """Inputs of a loop in their order, C-contiguous: a row a frame, and a row a sample."""

    frames: int
    of_frames: Sequence[Array]
    of_samples: Sequence[Array] = ()
