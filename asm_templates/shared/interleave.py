"""Interleaving of four registers of bytes: four bytes of each place, as `vpdpbusd` reads them.

    a, b, c, d     = a byte of each of 64 places, four times
    l, m; h, n     = vpunpcklbw; vpunpckhbw of a, b and of c, d
    e0, e1, e2, e3 = vpunpcklwd, vpunpckhwd of l, m and of h, n     four bytes of each of 16 places
"""

from collections.abc import Iterator, Sequence

from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Register


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
