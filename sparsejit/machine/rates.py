"""How fast a core is, as a record: measured by `sparsejit calibrate`, or built in."""

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


# One Zen 5 core: L1 gives 128 bytes a cycle, L2 45 to 63, L3 26 to 31; straight-line code arrives
# at only 10 to 14 bytes a cycle from L2 and 7 from L3. With padding lines L2 gives 64.
BUILT_IN_RATES = Rates(
    cycles_per_ns=4.2,
    data={"L1": 128.0, "padded L2": 64.0, "L2": 54.0, "L3": 28.0, "memory": 8.0},
    code={"L1": 32.0, "L2": 12.0, "L3": 7.0, "memory": 4.0},
)

# Whose they are.
BUILT_IN_CORE = "Zen 5"
