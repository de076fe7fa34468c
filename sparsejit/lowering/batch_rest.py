"""Run the samples left after the last whole tile as one more tile, with the same bits as any tile.

    the batch has a tile or more    the tile that ends where the batch ends; some samples run again
    it has less                     a tile of copies, in which the last sample fills the places left

Copies of inputs, and the outputs computed from them, lie in a copy buffer behind the workspace:

    the caller's addresses of outputs | inputs | outputs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.lowering.lowered_model import POINTER, LoweredModel
from sparsejit.lowering.memory_plan import aligned
from sparsejit.lowering.model import move_by_samples
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, Register, dword, rax, rcx, rdi, rdx, rsi, xmm, ymm

_BLOCK = 32  # bytes of a vector that copies samples


@dataclass(frozen=True)
class BatchRest:
    """Code around a tile's code, which runs the samples left after the last whole tile.

    inputs, outputs: bytes of a sample in each operand; 0 for an operand that all samples share.
    tile: samples of a run.
    fewest: the least number of samples left that this tile runs; a smaller tile runs fewer.
    left: the word of the workspace that counts the samples left.
    whole, copied: words with the number of samples in the batch, and copied to a tile (else 0).
    room: offset of the copy buffer from the workspace, in bytes.
    """

    inputs: Sequence[int]
    outputs: Sequence[int]
    tile: int
    fewest: int
    left: Memory
    whole: Memory
    copied: Memory
    room: int

    @classmethod
    def of(cls, lowered: LoweredModel, fewest: int, room: int) -> BatchRest:
        """The code for the rest of a model's batch, with its copy buffer at offset `room`."""
        left, whole, copied = (
            Memory(WORKSPACE, place)
            for place in (lowered.left_offset, lowered.loop_offset, lowered.loop_offset + POINTER)
        )
        operands = lowered.input_bytes, lowered.output_bytes
        return cls(*operands, lowered.tile, fewest, left, whole, copied, room)

    @property
    def room_bytes(self) -> int:
        """Bytes of the copy buffer."""
        return self._places[-1] - self.room

    @property
    def _places(self) -> list[int]:
        """Offsets of the copies of operands, inputs first, and of the end of the last one."""
        place = aligned(self.room + POINTER * len(self.outputs))
        places = [place]
        for each in (*self.inputs, *self.outputs):
            place = aligned(place + self.tile * each)
            places.append(place)
        return places

    def begin(self, asm: Assembler) -> None:
        """Store the batch's number of samples, in rcx; zero the number of copies. Clobbers rax."""
        asm.emit("mov", self.whole, rcx)
        asm.emit("xor", dword(rax), dword(rax))
        asm.emit("mov", self.copied, rax)

    def prepare(self, asm: Assembler, run: Label) -> None:
        """If `fewest` samples or more are left, prepare a tile of them and jump to `run`.

        Clobbers rax, rcx, rdx, rsi, rdi, vector 0.
        """
        few, copies, ready = map(asm.label, ("few are left", "copies", "tile of the rest"))
        asm.emit("mov", rax, self.left)
        asm.emit("cmp", rax, self.fewest)
        asm.jump("jl", few)
        asm.emit("mov", rcx, self.whole)
        asm.emit("cmp", rcx, self.tile)
        asm.jump("jl", copies)
        asm.emit("sub", rax, self.tile)
        move_by_samples(asm, (*self.inputs, *self.outputs))
        asm.jump("jmp", ready)
        asm.bind(copies)
        self._copy(asm)
        asm.bind(ready)
        asm.emit("mov", dword(rax), self.tile)
        asm.emit("mov", self.left, rax)
        asm.jump("jmp", run)
        asm.bind(few)

    def finish(self, asm: Assembler) -> None:
        """After the last tile: copy outputs computed from copies to the caller's arrays.

        Clobbers the registers that `prepare` clobbers.
        """
        in_place = asm.label("in place")
        asm.emit("mov", rdx, self.copied)
        asm.emit("test", rdx, rdx)
        asm.jump("jz", in_place)
        for number, size in enumerate(self.outputs):
            asm.emit("mov", rdi, Memory(WORKSPACE, self.room + POINTER * number))
            asm.emit("lea", rsi, Memory(WORKSPACE, self._places[len(self.inputs) + number]))
            asm.emit("mov", rdx, self.copied)
            copy_samples(asm, size)
        asm.emit("xor", dword(rax), dword(rax))
        asm.emit("mov", self.copied, rax)
        asm.emit("mov", self.left, rax)
        asm.bind(in_place)

    def _copy(self, asm: Assembler) -> None:
        """Copy rax samples of every input; repeat the last to fill the tile; redirect outputs."""
        asm.emit("mov", self.copied, rax)
        for number, size in enumerate(self.inputs):
            slot = Memory(WORKSPACE, POINTER * number)
            if not size:
                continue
            asm.emit("mov", rsi, slot)
            asm.emit("lea", rdi, Memory(WORKSPACE, self._places[number]))
            asm.emit("mov", slot, rdi)
            asm.emit("mov", rdx, self.copied)
            copy_samples(asm, size)
            asm.emit("mov", dword(rdx), self.tile)
            asm.emit("sub", rdx, self.copied)
            asm.emit("lea", rsi, Memory(rdi, -size))
            copy_samples(asm, size)
        for number in range(len(self.outputs)):
            slot = Memory(WORKSPACE, POINTER * (len(self.inputs) + number))
            asm.emit("mov", rax, slot)
            asm.emit("mov", Memory(WORKSPACE, self.room + POINTER * number), rax)
            asm.emit("lea", rax, Memory(WORKSPACE, self._places[len(self.inputs) + number]))
            asm.emit("mov", slot, rax)


def copy_samples(asm: Assembler, size: int) -> None:
    """Copy rdx > 0 samples of `size` bytes from rsi to rdi, and advance both registers.

    The source may be a sample that this loop has just written. Clobbers rax, rcx, rdx, vector 0.
    """
    with counted_down(asm, rdx):
        _copy_sample(asm, size)


def _copy_sample(asm: Assembler, size: int) -> None:
    blocks, rest = divmod(size, _BLOCK)
    if blocks:
        asm.emit("mov", dword(rcx), blocks)
        with counted_down(asm, rcx):
            _copy_part(asm, "vmovups", ymm(0))
            _move_on(asm, _BLOCK)
    for part, mnemonic, register in _PARTS:
        while rest >= part:
            _copy_part(asm, mnemonic, register)
            _move_on(asm, part)
            rest -= part
    for _ in range(rest):
        asm.emit("vpinsrb", xmm(0), xmm(0), Memory(rsi), 0)
        asm.emit("vpextrb", Memory(rdi), xmm(0), 0)
        _move_on(asm, 1)


_PARTS: tuple[tuple[int, str, Register], ...] = (
    (16, "vmovups", xmm(0)),
    (8, "mov", rax),
    (4, "mov", dword(rax)),
)


def _copy_part(asm: Assembler, mnemonic: str, register: Register) -> None:
    asm.emit(mnemonic, register, Memory(rsi))
    asm.emit(mnemonic, Memory(rdi), register)


def _move_on(asm: Assembler, size: int) -> None:
    for register in (rsi, rdi):
        asm.emit("add", register, size)
