"""Bits of CPUID for instruction sets, for code that must check the processor by itself.

Source: Intel Software Developer's Manual, volume 2A, CPUID; volume 1, 13.3 for XCR0.
"""

from typing import NamedTuple

from sparsejit.machine.target import INSTRUCTION_SETS


class CpuidRegister(NamedTuple):
    """A register that CPUID fills for eax = `leaf` and ecx = `subleaf`."""

    leaf: int
    subleaf: int
    name: str


_1C = CpuidRegister(1, 0, "ecx")
_7B, _7C, _7D = (CpuidRegister(7, 0, name) for name in ("ebx", "ecx", "edx"))
_71A = CpuidRegister(7, 1, "eax")

# The highest leaf in use; CPUID's leaf 0 returns a processor's highest leaf in eax.
HIGHEST_LEAF = 7
# The operating system lets XGETBV run, which tells whether it saves the vector registers.
OSXSAVE = (_1C, 27)
# XCR0: xmm and ymm; for AVX-512 also k registers, upper halves of zmm0-15, and zmm16-31.
YMM_STATE, ZMM_STATE = 0x06, 0xE6
TILE_STATE = 0x60000  # AMX: the tiles' configuration, and the tiles

CPUID_BITS: dict[str, tuple[CpuidRegister, int]] = {
    "avx": (_1C, 28),
    "fma": (_1C, 12),
    "f16c": (_1C, 29),
    "bmi1": (_7B, 3),
    "avx2": (_7B, 5),
    "bmi2": (_7B, 8),
    "avx512f": (_7B, 16),
    "avx512dq": (_7B, 17),
    "avx512ifma": (_7B, 21),
    "avx512cd": (_7B, 28),
    "avx512bw": (_7B, 30),
    "avx512vl": (_7B, 31),
    "avx512vbmi": (_7C, 1),
    "avx512_vbmi2": (_7C, 6),
    "avx512_vnni": (_7C, 11),
    "avx512_bitalg": (_7C, 12),
    "avx512_vpopcntdq": (_7C, 14),
    "amx_bf16": (_7D, 22),
    "avx512_fp16": (_7D, 23),
    "amx_tile": (_7D, 24),
    "amx_int8": (_7D, 25),
    "avx_vnni": (_71A, 4),
    "avx512_bf16": (_71A, 5),
}
assert CPUID_BITS.keys() == INSTRUCTION_SETS


def questions(instruction_sets: frozenset[str]) -> dict[CpuidRegister, int]:
    """Return the bits that must be set in each register if all of these sets are there."""
    masks: dict[CpuidRegister, int] = {}
    for register, bit in (OSXSAVE, *(CPUID_BITS[name] for name in instruction_sets)):
        masks[register] = masks.get(register, 0) | 1 << bit
    return dict(sorted(masks.items()))


def saved_state(instruction_sets: frozenset[str]) -> int:
    """Return the bits of XCR0 that must be set for these sets."""
    state = ZMM_STATE if any(name.startswith("avx512") for name in instruction_sets) else YMM_STATE
    return state | (TILE_STATE if "amx_tile" in instruction_sets else 0)
