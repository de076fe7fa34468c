"""A lowered graph as the body of a loop: one turn a sample, `hop` turns a frame.

    int run(const void **inputs, void **outputs, void *workspace, int64 samples)

What an operand is decides where it lies in the next turn:

    CALL     where it lay
    FRAME    a frame on, once in `hop` turns
    SAMPLE   a sample on
    STATE    an input and an output that change places: what was written is read in the next turn

At the end the function leaves the addresses of states in the caller's tables, so that the next call
goes on from there. Denormal numbers are zero within it; MXCSR is as before when it returns.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.errors import CompileError
from sparsejit.ir.spec import Choice
from sparsejit.lowering.model import POINTER, LoweredModel, ModelCode
from sparsejit.lowering.probes import Probe
from sparsejit.runtime.program import Program, build
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, dword, rax, rcx, rdi, rsi

# MXCSR: flush results, and take operands, that are denormal as zero (Intel SDM 1, 10.2.3).
_FLUSH_TO_ZERO = 1 << 15 | 1 << 6


class Role(Choice):
    """What an operand of the graph is to the loop."""

    CALL = "call"
    FRAME = "frame"
    SAMPLE = "sample"
    STATE = "state"


@dataclass(frozen=True)
class GraphLoop:
    """The role of every input and output, in order; states in the same order on both sides."""

    hop: int
    inputs: tuple[Role, ...]
    outputs: tuple[Role, ...]

    def states(self) -> Iterator[tuple[int, int]]:
        """Numbers of an input and of the output that changes places with it."""
        reads, writes = (
            [number for number, role in enumerate(roles) if role is Role.STATE]
            for roles in (self.inputs, self.outputs)
        )
        return zip(reads, writes, strict=True)


def build_loop(
    lowered: LoweredModel, loop: GraphLoop, name: str, probe: Probe | None = None
) -> Program:
    """The native function. Raises CompileError for states of two types."""
    graph = lowered.graph
    for read, written in loop.states():
        before, after = graph.inputs[read], graph.outputs[written]
        if before.type != after.type:
            raise CompileError(f"state {before.origin.name} is {before.type}, then {after.type}")
    return build(name, lowered.options.target, _LoopCode(lowered, loop, probe).emit)


class _LoopCode(ModelCode):
    """Appends the function's code: tiles are samples."""

    def __init__(self, lowered: LoweredModel, loop: GraphLoop, probe: Probe | None) -> None:
        super().__init__(lowered, probe)
        self.loop = loop
        slots = range(lowered.loop_offset, lowered.probe_offset, POINTER)
        self.left, self.inputs, self.outputs, self.mxcsr = (Memory(WORKSPACE, n) for n in slots)
        self.flushing = Memory(WORKSPACE, slots[-1] + POINTER // 2)

    def _enter(self, asm: Assembler) -> None:
        super()._enter(asm)
        asm.emit("mov", self.inputs, rdi)
        asm.emit("mov", self.outputs, rsi)
        asm.emit("stmxcsr", self.mxcsr)
        asm.emit("mov", dword(rax), self.mxcsr)
        asm.emit("or", dword(rax), _FLUSH_TO_ZERO)
        asm.emit("mov", self.flushing, dword(rax))
        asm.emit("ldmxcsr", self.flushing)
        self._begin_frame(asm)

    def _begin_frame(self, asm: Assembler) -> None:
        asm.emit("mov", dword(rax), self.loop.hop)
        asm.emit("mov", self.left, rax)

    def _advance(self, asm: Assembler) -> None:
        first_output = len(self.loop.inputs)
        for read, written in self.loop.states():
            before, after = self._slot(read), self._slot(first_output + written)
            asm.emit("mov", rax, before)
            asm.emit("mov", rcx, after)
            asm.emit("mov", after, rax)
            asm.emit("mov", before, rcx)
        self._move_all(asm, Role.SAMPLE)
        same_frame = asm.label("same frame")
        asm.emit("mov", rax, self.left)
        asm.emit("sub", rax, 1)
        asm.emit("mov", self.left, rax)
        asm.jump("jnz", same_frame)
        self._begin_frame(asm)
        self._move_all(asm, Role.FRAME)
        asm.bind(same_frame)

    def _move_all(self, asm: Assembler, role: Role) -> None:
        for number, each in enumerate((*self.loop.inputs, *self.loop.outputs)):
            if each is role:
                self._move_on(asm, number)

    def _end(self, asm: Assembler) -> None:
        asm.emit("ldmxcsr", self.mxcsr)
        asm.emit("mov", rdi, self.inputs)
        asm.emit("mov", rsi, self.outputs)
        for read, written in self.loop.states():
            asm.emit("mov", rax, self._slot(read))
            asm.emit("mov", Memory(rdi, POINTER * read), rax)
            asm.emit("mov", rax, self._slot(len(self.loop.inputs) + written))
            asm.emit("mov", Memory(rsi, POINTER * written), rax)
