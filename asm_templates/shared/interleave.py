"""Reordering of elements in registers: interleaving, parting by parity, transposition.

    interleaved        bytes of four registers, four bytes of each place side by side
    part_by_parity     the even and the odd elements of two vectors of float32
    part_in_lanes      the same on AVX2, in another order; `order_parts`: in the order of memory
    pair_vectors       two vectors of float32 as pairs of bfloat16
    transposed         a square of `lanes` by `lanes` elements

Four registers of bytes become four bytes of each place, as `vpdpbusd` reads them:

    a, b, c, d     = a byte of each of 64 places, four times
    l, m; h, n     = vpunpcklbw; vpunpckhbw of a, b and of c, d
    e0, e1, e2, e3 = vpunpcklwd, vpunpckhwd of l, m and of h, n     four bytes of each of 16 places

Two vectors of float32 become their even and their odd elements:

    AVX-512    vpermt2ps zmm0, zmm30, zmm1          zmm30 = 0, 2 ... 30, kept for the whole kernel
    AVX2       vshufps   ymm0, ymm0, ymm1, 0x88     the even elements of each 128-bit part
               vpermpd   ymm0, ymm0, 0xD8           exchanges the middle quarters

For the transposition, in three (AVX2) or four (AVX-512) rounds every pair of registers exchanges
halves. One spare register is enough: the first result goes there, the second over the first input,
and the second input becomes the spare.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Register


def interleaved(
    asm: Assembler, inputs: Sequence[Register], pairs: Sequence[Register]
) -> Iterator[tuple[int, Register]]:
    """Append the interleaving of four registers of bytes; yield each result's number and register.

    The results e0 to e3 (see the top of this file) are yielded as soon as their code is appended.
    They overwrite the inputs. Clobbers the four `pairs`.
    """
    for number, pair in enumerate(pairs):
        which = "vpunpckhbw" if number // 2 else "vpunpcklbw"
        asm.emit(which, pair, *inputs[number % 2 * 2 :][:2])
    for number, four in enumerate(inputs):
        which = "vpunpckhwd" if number % 2 else "vpunpcklwd"
        asm.emit(which, four, *pairs[number // 2 * 2 :][:2])
        yield number, four


def load_parities(asm: Assembler, patterns: Sequence[Register]) -> None:
    """AVX-512: load the indices of the even elements of two vectors, and of the odd ones."""
    for first, pattern in enumerate(patterns):
        indices = np.arange(first, 2 * asm.target.lanes, 2, dtype=np.int32)
        asm.emit("vmovups", pattern, Literal(asm.literal(indices)))


def part_by_parity(
    asm: Assembler,
    even: Register,
    high: Register,
    patterns: Sequence[Register],
    odd: Register | None = None,
    odd_first: bool = True,
) -> None:
    """even = the even elements of vectors `even` and `high`; odd = the odd ones, unless it is None.

    AVX-512 reads the `patterns` of `load_parities`; `odd_first` is the order of its permutations.
    """
    if asm.target.isa == "avx512":
        moves = [(even, patterns[0])]
        if odd is not None:
            asm.emit("vmovaps", odd, even)
            moves.insert(0 if odd_first else 1, (odd, patterns[1]))
        for register, pattern in moves:
            asm.emit("vpermt2ps", register, pattern, high)
        return
    part_in_lanes(asm, even, high, odd)
    for half in (even,) if odd is None else (even, odd):
        order_parts(asm, half)


def part_in_lanes(
    asm: Assembler, even: Register, high: Register, odd: Register | None = None
) -> None:
    """AVX2: part elements by parity, in an order that `order_parts` reverses.

    The 128-bit halves stay in place: elements 0, 2, 8, 10, 4, 6, 12, 14, and the odd ones alike.
    """
    if odd is not None:
        asm.emit("vshufps", odd, even, high, 0xDD)
    asm.emit("vshufps", even, even, high, 0x88)


def order_parts(asm: Assembler, register: Register) -> None:
    """AVX2: bring elements that `part_in_lanes` parted into the order of memory."""
    asm.emit("vpermpd", register, register, 0xD8)


def load_order_of_pairs(asm: Assembler, order: Register) -> None:
    """AVX-512: load the order in which `pair_vectors` interleaves two vectors."""
    places = np.arange(2 * asm.target.lanes).reshape(2, -1).T.astype(np.uint16)
    asm.emit("vmovdqu64", order, Literal(asm.literal(places.ravel())))


def pair_vectors(asm: Assembler, low: Register, high: Register, order: Register) -> None:
    """low = the elements of both vectors of float32 side by side, rounded to bfloat16.

    The order is of `load_order_of_pairs`. Needs AVX512_BF16, which takes denormals for 0.
    """
    asm.emit("vcvtne2ps2bf16", low, high, low)
    asm.emit("vpermw", low, order, low)


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
