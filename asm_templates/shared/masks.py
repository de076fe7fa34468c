"""Masks of a vector's lanes: bits in a k register with AVX-512, lanes of ones with AVX2.

    AVX-512    vmovups zmm1{k7}{z}, [x]         k7 = 0b0111 for three lanes
    AVX2       vmaskmovps ymm1, ymm2, [x]       ymm2 = ones in three lanes, zeros behind
"""

import numpy as np
import numpy.typing as npt

from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import Literal, Memory, Register, dword, k, rax

TAIL_MASK = k(7)  # AVX-512: the mask of the partial vector that is loaded or stored


def set_mask(asm: Assembler, mask: Register, bits: int) -> None:
    """AVX-512: mask = `bits`, at most 16 of them. Clobbers rax."""
    asm.emit("mov", dword(rax), bits)
    asm.emit("kmovw", mask, dword(rax))


def set_tail_mask(asm: Assembler, count: int, mask: Register = TAIL_MASK) -> None:
    """AVX-512: mask = the first `count` lanes. Clobbers rax."""
    set_mask(asm, mask, (1 << count) - 1)


def lane_mask(asm: Assembler, count: int, lanes: int = 8, lane_bytes: int = 4) -> Literal:
    """AVX2: all ones in the first `count` of `lanes` lanes, for masked loads and stores."""
    ones = np.where(np.arange(lanes) < count, -1, 0)
    return Literal(asm.literal(ones.astype(f"i{lane_bytes}")))


def tail_mask(asm: Assembler, count: int, spare: Register) -> Register:
    """Return the register with the mask of the first `count` lanes of float32.

    AVX-512 clobbers rax; AVX2 puts the mask in `spare`.
    """
    if asm.target.isa == "avx512":
        set_tail_mask(asm, count)
        return TAIL_MASK
    asm.emit("vmovups", spare, lane_mask(asm, count))
    return spare


def masked_load(
    register: Register,
    mask: Register,
    place: Memory,
    when: npt.NDArray[np.bool_] | None = None,
) -> Line:
    """Return the line that loads float32 in the lanes of `mask`, and zeros in the others."""
    if mask.kind == "k":
        return line("vmovups", register.masked(mask, zeroing=True), place, when=when)
    return line("vmaskmovps", register, mask, place, when=when)


def load_masked(asm: Assembler, register: Register, mask: Register, place: Memory) -> None:
    """register = the float32 at `place` in the lanes of `mask`, zeros in the others."""
    load = masked_load(register, mask, place)
    asm.emit(load.mnemonic, *load.operands)


def store_masked(asm: Assembler, place: Memory, mask: Register, register: Register) -> None:
    """Store float32 in the lanes of `mask`."""
    if mask.kind == "k":
        asm.emit("vmovups", place.masked(mask), register)
    else:
        asm.emit("vmaskmovps", place, mask, register)
