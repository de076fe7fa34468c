"""What a step of each family takes in code, by instruction set and the dtype of stored weights.

What it costs in time is a matter of the core: `machine.core.Core`.
"""

from dataclasses import dataclass

from sparsejit.ir.spec import DType
from sparsejit.machine.target import ISA_LEVELS


@dataclass(frozen=True)
class FamilySteps:
    """`code_bytes` of a step; it takes `weights_a_lane` weights in each lane."""

    code_bytes: dict[tuple[str, DType], float]
    weights_a_lane: int = 1


F32, BF16, F16, INT8 = DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16, DType.INT8
FLOATS = (F32, BF16, F16)


def _alike(code_bytes: float, *dtypes: DType) -> dict[tuple[str, DType], float]:
    return {(isa, dtype): code_bytes for isa in ISA_LEVELS for dtype in dtypes}


def _avx512(float32: float, bfloat16: float, float16: float) -> dict[tuple[str, DType], float]:
    return {("avx512", F32): float32, ("avx512", BF16): bfloat16, ("avx512", F16): float16}


def _avx2(float32: float, bfloat16: float, float16: float) -> dict[tuple[str, DType], float]:
    return {("avx2", F32): float32, ("avx2", BF16): bfloat16, ("avx2", F16): float16}


# Loops have hardly any code; that of `broadcast-loop` is of the ends of block rows.
FAMILY_STEPS: dict[str, FamilySteps] = {
    "permute": FamilySteps(_avx512(21, 28, 28) | _avx2(18.5, 27, 24.5)),
    "permute-inline": FamilySteps({("avx512", F32): 25, ("avx2", F32): 18.5}),
    "lane16": FamilySteps({("avx512", F32): 19, ("avx512", BF16): 19}),
    "lookup": FamilySteps(_avx512(0.5, 0.5, 0.5)),
    "broadcast": FamilySteps(_avx512(8.5, 13, 13) | _avx2(8.5, 15, 12)),
    "broadcast-4x4": FamilySteps(_avx512(9.5, 16.5, 14.3) | _avx2(8.8, 14, 12.2)),
    "broadcast-4x1": FamilySteps({("avx2", F32): 20}),
    "broadcast-loop": FamilySteps(_alike(1, *FLOATS)),
    "broadcast-mixed": FamilySteps(_avx512(8.5, 17, 14)),
    "dense": FamilySteps(_alike(0.1, *FLOATS)),
    # Where few outputs share an input its load counts.
    "dense-narrow": FamilySteps(_alike(0, *FLOATS)),
    "dot": FamilySteps(_alike(0.1, *FLOATS)),
    "dot-end": FamilySteps(_alike(6, *FLOATS)),
    # 20 bytes, 5 where folded four times.
    "int8-permute": FamilySteps({("avx512", INT8): 10}, weights_a_lane=4),
    "int8-single": FamilySteps({("avx512", INT8): 10}, weights_a_lane=4),
    # A step is in a loop; the code is what brings inputs together.
    "int8-staged": FamilySteps({("avx512", INT8): 5}, weights_a_lane=4),
    "int8-pairs": FamilySteps(_alike(1, INT8), weights_a_lane=2),
    "immediate": FamilySteps(_alike(16, F32)),
}
