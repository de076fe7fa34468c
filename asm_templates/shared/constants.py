"""Constants in every lane of a vector, read from the pool behind the code."""

from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, Operand, Register


def shared_constant(asm: Assembler, value: float, uses: int, holder: Register) -> Operand:
    """An operand with `value` in every lane: `holder`, filled here, where it is used repeatedly.

    Read from memory for each vector, the constants alone keep both load ports busier than the
    arithmetic keeps its own.
    """
    if uses == 1:
        return asm.constant(value)
    load_constant(asm, holder, value)
    return holder


def load_constant(asm: Assembler, register: Register, value: float) -> None:
    """register = `value` in every lane."""
    constant = asm.constant(value)
    if constant.broadcast:
        asm.emit("vbroadcastss", register, Literal(constant.offset))
    else:
        asm.emit("vmovups", register, constant)
