"""Errors for operators that cannot be compiled.

    Missing, refuse   the one error that lists them all, with the remedy
    Unmapped          the error of a mapping for operands that it cannot express
"""

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from sparsejit.errors import UnsupportedOperator
from sparsejit.ir.values import Origin


class Missing(NamedTuple):
    """An operator without a mapping, the reason if it is known, and its place in the model."""

    operator: str
    reason: str
    origin: Origin

    def __str__(self) -> str:
        place = ", ".join(part for part in (self.origin.source, self.origin.module) if part)
        line = f"  {self.operator}"
        if self.reason:
            line += f" ({self.reason})"
        if place:
            line += f"  # {place}"
        return line + (f": {self.origin.code}" if self.origin.code else "")


LEAVE_TO_TORCH = 'leave them to torch with torch.compile(model, backend="sparsejit")'


def refuse(missing: Sequence[Missing], remedy: str = LEAVE_TO_TORCH) -> NoReturn:
    """Raise UnsupportedOperator with a line for each missing operator, and the remedy."""
    count = f"{len(missing)} operators" if len(missing) > 1 else "1 operator"
    lines = "\n".join(map(str, missing))
    raise UnsupportedOperator(f"{count} of this model cannot be compiled:\n{lines}\n{remedy}")


class Unmapped(Exception):
    """A mapping cannot express these operands; the text says why."""
