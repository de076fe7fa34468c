"""Transposition of a square of `lanes` by `lanes` elements that registers hold.

In three (AVX2) or four (AVX-512) rounds every pair of registers exchanges halves. One spare
register is enough: the first result goes there, the second over the first input, and the second
input becomes the spare.
"""

from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Register


def transposed(asm: Assembler, rows: list[Register], spare: Register) -> list[Register]:
    """Transpose in registers, clobbering `spare`; return the registers that hold the columns."""
    lanes = len(rows)
    held = list(rows)

    def trade(first: int, second: int, low: tuple[str, int], high: tuple[str, int]) -> None:
        nonlocal spare
        a, b = held[first], held[second]
        for target, (mnemonic, control) in ((spare, low), (a, high)):
            asm.emit(mnemonic, target, a, b, *([control] if control else []))
        held[first], held[second], spare = spare, a, b

    for row in range(0, lanes, 2):
        trade(row, row + 1, ("vunpcklps", 0), ("vunpckhps", 0))
    for row in range(0, lanes, 4):
        trade(row, row + 2, ("vunpcklpd", 0), ("vunpckhpd", 0))
        trade(row + 1, row + 3, ("vunpcklpd", 0), ("vunpckhpd", 0))
    # Now register 4 g + s holds, in its 128-bit part p, rows 4 g .. 4 g + 3 of column
    # 4 p + (0, 2, 1, 3)[s].
    if lanes == 8:
        for low in range(4):
            trade(low, low + 4, ("vperm2f128", 0x20), ("vperm2f128", 0x31))
        return [held[4 * part + slot] for part in range(2) for slot in (0, 2, 1, 3)]
    for distance, starts in ((4, (0, 8)), (8, (0, 4))):
        for start in starts:
            for slot in range(start, start + 4):
                trade(slot, slot + distance, ("vshuff32x4", 0x88), ("vshuff32x4", 0xDD))
    return [held[4 * part + slot] for part in range(4) for slot in (0, 2, 1, 3)]
