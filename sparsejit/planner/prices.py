"""What a step of each family costs, by instruction set and by the dtype in which weights lie.

Prices are of the core that the built-in rates are of; `cost` makes a time of them.
"""

from dataclasses import dataclass

from sparsejit.ir.spec import DType
from sparsejit.machine.target import ISA_LEVELS


@dataclass(frozen=True)
class StepPrice:
    """Price of one step, and where the figures come from."""

    cycles: float
    code_bytes: float
    source: str


@dataclass(frozen=True)
class FamilyPrices:
    """`steps` by instruction set and stored dtype.

    Code arrives `code_rate` times as fast as `Rates` says, which is of instructions of five bytes:
    longer ones carry more. A step takes `weights_a_lane` weights in each lane.
    """

    steps: dict[tuple[str, DType], StepPrice]
    code_rate: float = 1.0
    weights_a_lane: int = 1


F32, BF16, F16, INT8 = DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16, DType.INT8

FAMILY_PRICES: dict[str, FamilyPrices] = {
    "permute": FamilyPrices(
        {
            ("avx512", F32): StepPrice(0.85, 21, "A in 104 ns"),
            ("avx2", F32): StepPrice(0.78, 18.5, "A in 520 ns"),
            ("avx512", BF16): StepPrice(1.2, 28, "256x256 at 80 % in 235 ns, 1152x384 at 98 %"),
            ("avx2", BF16): StepPrice(1.2, 27, "256x256 at 90 % in 1x8 in 244 ns"),
            ("avx512", F16): StepPrice(1.25, 28, "A unpacked: 181 ns"),
            ("avx2", F16): StepPrice(1.3, 24.5, "256x256 at 90 % in 1x8 in 267 ns"),
        },
        code_rate=1.4,
    ),
    "permute-inline": FamilyPrices(
        {
            ("avx512", F32): StepPrice(0.95, 25, "permute in 0.87 to 1.06 of its time, by place"),
        },
        code_rate=1.4,
    ),
    "lane16": FamilyPrices(
        {
            ("avx512", F32): StepPrice(0.73, 19, "A-lane in 71 ns"),
            ("avx512", BF16): StepPrice(0.73, 19, "the same kernel as float32"),
        },
    ),
    "lookup": FamilyPrices(
        {
            ("avx512", F32): StepPrice(1.7, 0.5, "C90 and C95 in 3140 and 2010 ns at 4.0 GHz"),
            ("avx512", BF16): StepPrice(1.55, 0.5, "C90 and C95 in 2840 and 1740 ns"),
            ("avx512", F16): StepPrice(1.9, 0.5, "C90 and C95 in 3500 and 2130 ns"),
        },
    ),
    "broadcast": FamilyPrices(
        {
            ("avx512", F32): StepPrice(0.62, 8.5, "B: 1560 steps, 13 KB of code in 215-260 ns"),
            ("avx2", F32): StepPrice(0.72, 8.5, "1152x384 and 1024x1024 at 50 to 80 % zero"),
            ("avx512", BF16): StepPrice(0.51, 13, "B: 20 KB of code in 173 ns; 1x16 0.62"),
            ("avx2", BF16): StepPrice(0.66, 15, "256x256 at 80 to 95 % zero"),
            ("avx512", F16): StepPrice(0.77, 13, "B: 19 KB of code in 266 ns; 1x16 0.86"),
            ("avx2", F16): StepPrice(0.61, 12, "256x256 at 80 to 95 % zero"),
        },
        code_rate=1.25,
    ),
    "broadcast-loop": FamilyPrices(
        {
            ("avx512", F32): StepPrice(1.12, 1, "64x64; code is that of the block rows' ends"),
            ("avx2", F32): StepPrice(1.0, 1, "1152x384 at 80 to 95 % zero"),
            ("avx512", BF16): StepPrice(0.88, 1, "1024x1024 at 5 % in 1x16 in 760 ns"),
            ("avx2", BF16): StepPrice(0.95, 1, "256x256 and 1024x1024 at 50 to 95 % zero"),
            ("avx512", F16): StepPrice(1.0, 1, "1024x1024 at 5 % in 1x16 in 855 ns"),
            ("avx2", F16): StepPrice(0.97, 1, "256x256 and 1024x1024 at 50 to 95 % zero"),
        },
    ),
    "broadcast-mixed": FamilyPrices(
        {
            ("avx512", F32): StepPrice(0.62, 8.5, "as in broadcast; 1x16 in 983 ns"),
            ("avx512", BF16): StepPrice(0.51, 17, "1x16 in 758 ns, deck in 1947"),
            ("avx512", F16): StepPrice(0.77, 14, "1x16 in 885 ns"),
        },
    ),
    "dense": FamilyPrices(
        {
            ("avx512", F32): StepPrice(0.6, 0.1, "64x64 in 37 ns; a loop, so hardly any code"),
            ("avx2", F32): StepPrice(0.57, 0.1, "64x64 in 67 ns"),
            ("avx512", BF16): StepPrice(0.65, 0.1, "256x256 in 640 ns"),
            ("avx2", BF16): StepPrice(0.6, 0.1, "256x256 and 1024x1024"),
            ("avx512", F16): StepPrice(0.87, 0.1, "256x256 in 828 ns"),
            ("avx2", F16): StepPrice(0.58, 0.1, "256x256 and 1024x1024"),
        },
    ),
    # Where few outputs share an input its load counts. There dense took 1.3 to 1.4 of its price on
    # the machine that dot was timed on, as others did: dot's prices are its times over that.
    "dense-narrow": FamilyPrices(
        {
            (isa, dtype): StepPrice(cycles, 0, "1 to 64 outputs of 64 inputs")
            for isa, cycles in (("avx512", 0.025), ("avx2", 0.0125))
            for dtype in (F32, BF16, F16)
        },
    ),
    "dot": FamilyPrices(
        {
            ("avx512", F32): StepPrice(0.45, 0.1, "0.53: 1x512 in 37 cycles, 16x256 in 180"),
            ("avx2", F32): StepPrice(0.38, 0.1, "0.45: 1x512 in 55 cycles, 16x256 in 301"),
            ("avx512", BF16): StepPrice(0.6, 0.1, "0.8: 16x64 in 96 cycles, 10x512 in 369"),
            ("avx2", BF16): StepPrice(0.55, 0.1, "0.65: 16x64 in 121 cycles, 10x512 in 546"),
            ("avx512", F16): StepPrice(0.8, 0.1, "1.2: 16x64 in 132 cycles, 10x512 in 536"),
            ("avx2", F16): StepPrice(0.55, 0.1, "0.75: 16x64 in 138 cycles, 10x512 in 662"),
        },
    ),
    "dot-end": FamilyPrices(
        {
            (isa, dtype): StepPrice(cycles, 6, "to add lanes: 1 to 64 rows of 64 inputs")
            for isa, cycles in (("avx512", 1.6), ("avx2", 1.3))
            for dtype in (F32, BF16, F16)
        },
    ),
    "int8-permute": FamilyPrices(
        {("avx512", INT8): StepPrice(1.0, 10, "A in 43 ns; 20 bytes, 5 where folded four times")},
        weights_a_lane=4,
    ),
    "int8-single": FamilyPrices(
        {("avx512", INT8): StepPrice(1.0, 10, "two loads a step, as int8-permute")},
        weights_a_lane=4,
    ),
    "int8-pairs": FamilyPrices(
        {
            ("avx512", INT8): StepPrice(1.5, 1, "A in 610 ns, C90 in 10.9 us"),
            ("avx2", INT8): StepPrice(1.15, 1, "A in 970 ns, C90 in 15.4 us"),
        },
        weights_a_lane=2,
    ),
    "immediate": FamilyPrices(
        {
            (isa, F32): StepPrice(1.0, 16, "mov, vmovd and scalar FMA a weight")
            for isa in ISA_LEVELS
        },
    ),
}
