"""Steps of a decoder, each of which draws the token that the next one reads.

The memory of a draw, aligned to 8 bytes:

    parameters | seed | number of the next draw | n | tokens at which to stop: n | scratch

The parameters are `emit_token_draw`'s.
"""

from __future__ import annotations

from typing import NamedTuple

from sparsejit.asm_templates.pointwise.class_draw import emit_random_uniform
from sparsejit.asm_templates.pointwise.token_draw import emit_token_draw, token_scratch_bytes
from sparsejit.runtime.state_step import StepPlaces
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, dword, rax, rcx, rdi, rdx, rsi

# Offsets in the memory of a draw, in bytes.
SEED, NUMBER, STOP_COUNT, STOPS = 16, 24, 32, 40
NO_TOKEN = -1  # the status of a step whose logits give no token
_WORD = 8


class TokenLoop(NamedTuple):
    """The operands of a step between which tokens pass.

    Attributes:
        token: number of the input for it, whose data are int64 side by side; the token that a step
            draws goes behind the one that it has read
        logits: number of the output from which it is drawn, float32
        classes: the number of logits
    """

    token: int
    logits: int
    classes: int

    def draw_bytes(self, stops: int) -> int:
        """Return the size of a draw's memory in bytes, with room for tokens at which to stop."""
        return STOPS + _WORD * stops + token_scratch_bytes(self.classes)

    def emit(self, asm: Assembler, places: StepPlaces, end: Label) -> None:
        """Append the draw after a step; `places.argument` is the address of the draw's memory.

        Jumps to `end` with status NO_TOKEN, or with 0 after a token at which to stop.
        """
        asm.emit("mov", rcx, places.argument)
        asm.emit("mov", rdi, Memory(rcx, SEED))
        asm.emit("mov", rsi, Memory(rcx, NUMBER))
        emit_random_uniform(asm)
        asm.emit("mov", rcx, places.argument)
        asm.emit("mov", rdx, Memory(rcx, STOP_COUNT))
        asm.emit("lea", rdx, Memory(rcx, STOPS, rdx, _WORD))
        asm.emit("mov", rdi, places.outputs[self.logits])
        emit_token_draw(asm, self.classes)
        asm.emit("test", rax, rax)
        asm.jump("js", end)
        asm.emit("mov", rdi, places.inputs[self.token])
        asm.emit("mov", Memory(rdi, _WORD), rax)
        asm.emit("mov", rdi, Memory(rcx, NUMBER))
        asm.emit("add", rdi, 1)
        asm.emit("mov", Memory(rcx, NUMBER), rdi)
        _emit_stop(asm, end)


def _emit_stop(asm: Assembler, end: Label) -> None:
    """Jump to `end`, with status 0, if the token in rax is one at which to stop; rcx: the draw."""
    again, none = asm.label("next stop"), asm.label("no stop")
    asm.emit("mov", rdx, rax)
    asm.emit("xor", dword(rax), dword(rax))
    asm.emit("mov", rsi, Memory(rcx, STOP_COUNT))
    asm.bind(again)
    asm.emit("sub", rsi, 1)
    asm.jump("js", none)
    asm.emit("cmp", rdx, Memory(rcx, STOPS, rsi, _WORD))
    asm.jump("je", end)
    asm.jump("jmp", again)
    asm.bind(none)
