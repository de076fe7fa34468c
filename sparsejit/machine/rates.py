"""Record of a core's speed: measured by `sparsejit calibrate`, or from the core's data."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """Speed of a core: cycles a nanosecond, and bytes a cycle by the cache that they come from.

    `data` and `code` have the keys L1, L2, L3 and memory. `data` also has padded L2, for streams
    with padding lines in between.
    """

    cycles_per_ns: float
    data: dict[str, float]
    code: dict[str, float]

