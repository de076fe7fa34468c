"""What is known of a value that was quantised and is read as the floats it stands for."""

from dataclasses import dataclass

from sparsejit.ir.graph import Value


@dataclass(frozen=True)
class Quantised:
    """Steps of one scale: those of `source`, or where it is None, of a tensor in the file.

    With `shift` steps added the range of the steps is even about zero, as int8 kernels have it.
    """

    source: Value | None = None
    scale: float = 1.0
    shift: float = 0.0
