"""Sums over the lanes of several registers at once, which end as the lanes of one.

    a7 .. a1 a0   b7 .. b1 b0      trade halves, add:  each round halves registers and terms
    low halves    high halves      unpack by 1, by 2, then by parts of 128 bits
"""

from sparsejit.asm_templates.shared.rows import vector
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Register

# Instructions for the low and the high halves, and their control byte; 0 where they have none.
_Halves = tuple[tuple[str, int], tuple[str, int]]
_UNPACK: tuple[_Halves, ...] = (
    (("vunpcklps", 0), ("vunpckhps", 0)),
    (("vunpcklpd", 0), ("vunpckhpd", 0)),
)
_PARTS: dict[str, tuple[_Halves, ...]] = {
    "avx512": ((("vshuff32x4", 0x88), ("vshuff32x4", 0xDD)),) * 2,
    "avx2": ((("vperm2f128", 0x20), ("vperm2f128", 0x31)),),
}


def add_lanes(asm: Assembler, registers: list[Register], spare: int) -> Register:
    """A register whose lane n is the sum of the n-th register's lanes; at most `lanes` of them.

    Lanes beyond hold something else. Clobbers the registers and vector register `spare`.
    """
    held, other = list(registers), vector(asm, spare)
    for low, high in (*_UNPACK, *_PARTS[asm.target.isa]):
        for first, second in zip(held[::2], [*held[1::2], held[-1]], strict=False):
            for target, (mnemonic, control) in ((other, low), (first, high)):
                asm.emit(mnemonic, target, first, second, *([control] if control else []))
            asm.emit("vaddps", first, first, other)
        held = held[::2]
    return held[0]
