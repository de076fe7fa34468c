"""Prefetching of code before it runs: from beyond L2 it would come a line at a time.

No prefetcher fetches long straight-line code ahead, while a hundred lines that are prefetched as
data come almost as fast as one. They wait in L2, from where code is fetched quickly.
"""

from sparsejit.asm_templates.shared.loops import counted_up
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, Register

_AT_ONCE = 4


def prefetch_code(
    asm: Assembler, first: Label, end: Label, place: Register, last: Register
) -> None:
    """Prefetch the code between two labels unless the model stays in L2; clobbers both registers.
    """
    if not asm.ask_ahead:
        return
    asm.address(place, first)
    asm.address(last, end)
    with counted_up(asm, place, _AT_ONCE * CACHE_LINE_BYTES, last):
        for number in range(_AT_ONCE):
            asm.emit("prefetcht1", Memory(place, number * CACHE_LINE_BYTES))
