"""The code of a model whose samples take turns with its last steps (`sample_turns`).

    rbp = region of the current sample, r12 = first region, r13 = end of the last region
"""

from collections.abc import Callable
from functools import partial
from itertools import groupby

from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.asm_templates.shared.loops import counted_up
from sparsejit.lowering.joint_end import JointEnd
from sparsejit.lowering.lowered_model import POINTER, LoweredModel
from sparsejit.lowering.model import ModelCode, move_by_samples
from sparsejit.lowering.sample_turns import SampleTurns
from sparsejit.lowering.threads.crew import ScheduledStep
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, dword, r12, r13, rax, rcx

_FIRST, _END = r12, r13


class TurnsCode(ModelCode):
    """Appends the function's code; a tile is a sample."""

    def __init__(self, lowered: LoweredModel) -> None:
        super().__init__(lowered, None)
        assert lowered.turns is not None and lowered.tile == 1
        self.turns: SampleTurns = lowered.turns

    def run_tiles(self, asm: Assembler, start: Label) -> None:
        """Append a loop over all samples left, at most `turns.samples` of them at a time."""
        done = asm.label("done")
        asm.emit("mov", _FIRST, WORKSPACE)
        asm.emit("mov", rax, self.left)
        asm.emit("cmp", rax, 1)
        asm.jump("jl", done)
        asm.bind(start)
        self._begin(asm)
        self._run_apart(asm)
        self._run_in_turn(asm)
        self._gather_status(asm)
        self._end(asm)
        asm.jump("jg", start)
        asm.bind(done)

    def _begin(self, asm: Assembler) -> None:
        """Set _END from the number of samples left."""
        self._count(asm)
        asm.emit("mov", dword(rcx), self.turns.stride)
        asm.emit("imul", rcx, rax)
        asm.emit("lea", _END, Memory(_FIRST, 0, rcx, 1))

    def _count(self, asm: Assembler) -> None:
        """rax = number of samples that take turns now."""
        fewer = asm.label("fewer samples")
        asm.emit("mov", rax, self.left)
        asm.emit("cmp", rax, self.turns.samples)
        asm.jump("jle", fewer)
        asm.emit("mov", dword(rax), self.turns.samples)
        asm.bind(fewer)

    def _run_apart(self, asm: Assembler) -> None:
        """Append the first steps, run sample by sample; each sets the next sample's pointers."""
        again, behind = asm.label("next sample"), asm.label("samples are through")
        operands = self.lowered.operand_bytes
        asm.bind(again)
        for wave in self.lowered.waves[: self.turns.first]:
            self._run(asm, wave.steps)
        asm.emit("add", WORKSPACE, self.turns.stride)
        asm.emit("cmp", WORKSPACE, _END)
        asm.jump("jae", behind)
        for number, size in enumerate(operands):
            place = POINTER * number
            asm.emit("mov", rax, Memory(WORKSPACE, place - self.turns.stride))
            asm.emit("add", rax, size)
            asm.emit("mov", Memory(WORKSPACE, place), rax)
        asm.emit("xor", dword(rax), dword(rax))
        asm.emit("mov", self.status, rax)
        asm.jump("jmp", again)
        asm.bind(behind)
        asm.emit("mov", WORKSPACE, _FIRST)

    def _run_in_turn(self, asm: Assembler) -> None:
        """Append the last steps, by group, for all samples: one with weights, or those between."""
        behind = asm.label("end of turn")
        for _, group in groupby(self._last_steps(), self._turn_of):
            steps = list(group)
            self.hand_over(asm, steps[0].number, behind)
            self._for_samples(asm, partial(self._run, asm, steps))
        asm.bind(behind)

    def _last_steps(self) -> list[ScheduledStep]:
        return [step for wave in self.lowered.waves[self.turns.first :] for step in wave.steps]

    def _turn_of(self, each: ScheduledStep) -> tuple[int, bool]:
        """Key of the group of a step; steps of a group run one after another for a sample."""
        number, step = each
        end = self.lowered.end
        is_end = end is not None and number >= end.first
        return (1 + number if step.facts.weights else 0), is_end

    def copy_for_end(self, asm: Assembler, end: JointEnd) -> None:
        """Copy the inputs of the joint end for all samples that take turns."""
        self._for_samples(asm, partial(super().copy_for_end, asm, end))

    def _for_samples(self, asm: Assembler, body: Callable[[], None]) -> None:
        """Append code that runs in the region of every sample, and ends in the first region."""
        with counted_up(asm, WORKSPACE, self.turns.stride, _END):
            body()
        asm.emit("mov", WORKSPACE, _FIRST)

    def _gather_status(self, asm: Assembler) -> None:
        """Copy to the first region the status of a sample that found an index out of range."""
        fine = asm.label("indices in range")
        with counted_up(asm, WORKSPACE, self.turns.stride, _END):
            asm.emit("mov", rax, self.status)
            asm.emit("test", rax, rax)
            asm.jump("jz", fine)
            asm.emit("mov", Memory(_FIRST, self.lowered.status_offset), rax)
            asm.bind(fine)
        asm.emit("mov", WORKSPACE, _FIRST)

    def _end(self, asm: Assembler) -> None:
        """Move pointers and the count past the samples of this turn; flags tell if any are left."""
        self._count(asm)
        asm.emit("mov", rcx, self.left)
        asm.emit("sub", rcx, rax)
        asm.emit("mov", self.left, rcx)
        move_by_samples(asm, self.lowered.operand_bytes)
        asm.emit("mov", rax, self.left)
        asm.emit("cmp", rax, 0)
