"""The code of a model whose last layers run once for several samples (`joint_end`).

    while samples are left:
        take the samples left, at most `end.samples`
        fewer than `end.fewest`: the whole model, one sample after another
        otherwise: the trunk, one sample after another; then the end, once
"""

from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.lowering.batch_rest import copy_samples
from sparsejit.lowering.joint_end import JointEnd
from sparsejit.lowering.lowered_model import POINTER, LoweredModel
from sparsejit.lowering.model import ModelCode
from sparsejit.lowering.turns_code import TurnsCode
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, Register, dword, rax, rcx, rdi, rdx, rsi


def code_of(lowered: LoweredModel) -> "ModelCode | JointCode":
    """The object that appends the code of a model."""
    each = TurnsCode(lowered) if lowered.turns else ModelCode(lowered, None)
    return each if lowered.end is None else JointCode(each, lowered.end)


class JointCode:
    """Appends the function's code; `each` appends the code of one sample after another."""

    def __init__(self, each: ModelCode, end: JointEnd) -> None:
        self._each, self._end = each, end
        self._several = ModelCode(end.lowered, None, each.lowered.steps)
        self._lowered = each.lowered
        self._left, self._joint = each.left, each.joint
        self._to_come = Memory(WORKSPACE, self._lowered.joint_offset + POINTER)
        self.enter, self.leave = each.enter, each.leave

    def run_tiles(self, asm: Assembler, start: Label) -> None:
        """Append a loop over all samples left."""
        done = asm.label("no more samples")
        asm.emit("mov", rax, self._left)
        asm.emit("mov", self._to_come, rax)
        asm.bind(start)
        self._begin(asm, done)
        self._each.run_tiles(asm, asm.label("samples"))
        asm.emit("mov", rax, self._joint)
        asm.emit("test", rax, rax)
        asm.jump("jz", start)
        self._fill(asm)
        self._run_end(asm)
        self._bring_results(asm)
        asm.jump("jmp", start)
        asm.bind(done)

    def _begin(self, asm: Assembler, done: Label) -> None:
        """Set the number of the next samples, whether they run the end, and its input pointers."""
        fits, few = asm.label("all that are left"), asm.label("few samples")
        asm.emit("mov", rax, self._to_come)
        asm.emit("cmp", rax, 1)
        asm.jump("jl", done)
        asm.emit("mov", rcx, rax)
        asm.emit("cmp", rax, self._end.samples)
        asm.jump("jle", fits)
        asm.emit("mov", dword(rax), self._end.samples)
        asm.bind(fits)
        asm.emit("sub", rcx, rax)
        asm.emit("mov", self._to_come, rcx)
        asm.emit("mov", self._left, rax)
        asm.emit("xor", dword(rcx), dword(rcx))
        asm.emit("cmp", rax, self._end.fewest)
        asm.jump("jl", few)
        asm.emit("mov", rcx, rax)
        asm.bind(few)
        asm.emit("mov", self._joint, rcx)
        first = len(self._lowered.input_bytes) + len(self._lowered.output_bytes)
        for number, _ in enumerate(self._end.copies):
            asm.emit("lea", rax, self._place(number))
            asm.emit("mov", Memory(WORKSPACE, POINTER * (first + number)), rax)

    def _fill(self, asm: Assembler) -> None:
        """Fill the places of missing samples of the end with copies of the last sample."""
        full = asm.label("no sample lacks")
        asm.emit("mov", rax, self._joint)
        asm.emit("cmp", rax, self._end.samples)
        asm.jump("jge", full)
        for number, size in enumerate(self._end.lowered.input_bytes):
            asm.emit("lea", rdi, self._place(number))
            self._move(asm, rdi, size)
            asm.emit("lea", rsi, Memory(rdi, -size))
            asm.emit("mov", dword(rdx), self._end.samples)
            asm.emit("sub", rdx, self._joint)
            copy_samples(asm, size)
        asm.bind(full)

    def _run_end(self, asm: Assembler) -> None:
        """Append the steps of the end, which run in a workspace of their own."""
        several, offset = self._several, self._lowered.end_offset + self._end.places[-1]
        asm.emit("lea", WORKSPACE, Memory(WORKSPACE, offset))
        for number, place in enumerate(self._end.places[:-1]):
            asm.emit("lea", rax, Memory(WORKSPACE, place - self._end.places[-1]))
            asm.emit("mov", Memory(WORKSPACE, POINTER * number), rax)
        several.run_steps(asm)
        asm.emit("lea", WORKSPACE, Memory(WORKSPACE, -offset))

    def _bring_results(self, asm: Assembler) -> None:
        """Copy results to the caller's outputs, whose pointers are past these samples already."""
        inputs, made = len(self._lowered.input_bytes), len(self._end.copies)
        for place, number in enumerate(self._end.outputs):
            size = self._lowered.output_bytes[number]
            asm.emit("mov", rdi, Memory(WORKSPACE, POINTER * (inputs + number)))
            self._move(asm, rdi, -size)
            asm.emit("lea", rsi, self._place(made + place))
            asm.emit("mov", rdx, self._joint)
            copy_samples(asm, size)

    def _place(self, number: int) -> Memory:
        """Memory operand at the start of an operand of the end, inputs first."""
        return Memory(WORKSPACE, self._lowered.end_offset + self._end.places[number])

    def _move(self, asm: Assembler, register: Register, size: int) -> None:
        """Advance a pointer by the samples of this end, `size` bytes each. Clobbers rcx."""
        asm.emit("mov", rcx, self._joint)
        asm.emit("imul", rcx, rcx, size)
        asm.emit("add", register, rcx)
