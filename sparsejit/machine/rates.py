"""How fast a core is, as a record: measured by `sparsejit calibrate`, or from its data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """How fast a core is: cycles a nanosecond, and bytes a cycle by where they come from.

    `data` and `code` have the keys L1, L2, L3 and memory, and `data` padded L2, where padding lines
    lie in between.
    """

    cycles_per_ns: float
    data: dict[str, float]
    code: dict[str, float]

