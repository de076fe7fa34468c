"""Interleaving of bytes, and parting of float32 elements by parity.

Four registers of bytes become four bytes of each place, as `vpdpbusd` reads them:

    a, b, c, d     = a byte of each of 64 places, four times
    l, m; h, n     = vpunpcklbw; vpunpckhbw of a, b and of c, d
    e0, e1, e2, e3 = vpunpcklwd, vpunpckhwd of l, m and of h, n     four bytes of each of 16 places

Two vectors of float32 become their even and their odd elements:

    AVX-512    vpermt2ps zmm0, zmm30, zmm1          zmm30 = 0, 2 ... 30, kept for the whole kernel
    AVX2       vshufps   ymm0, ymm0, ymm1, 0x88     the even elements of each 128-bit part
               vpermpd   ymm0, ymm0, 0xD8           exchanges the middle quarters
"""

from collections.abc import Iterator, Sequence

import numpy as np

from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Register


def interleaved(
    asm: Assembler, inputs: Sequence[Register], pairs: Sequence[Register]
) -> Iterator[tuple[int, Register]]:
    """Yield the numbers and registers of e0 to e3, each as soon as its code is appended.

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
    if odd is not None:
        asm.emit("vshufps", odd, even, high, 0xDD)
    asm.emit("vshufps", even, even, high, 0x88)
    for half in (even,) if odd is None else (even, odd):
        asm.emit("vpermpd", half, half, 0xD8)
