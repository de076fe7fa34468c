"""A lowered graph as the body of a loop: one turn a sample, `hop` turns a frame, for any streams.

    int run(void *first, int64 samples)

Every stream has a workspace, which says where its operands are (`StreamHeader`); they form a ring.
A turn makes a sample of each: a product, or part of one, runs for all streams before what follows,
so that its weights are still near. A stream's samples do not depend on who else is in the ring.

What an operand is decides where it lies in the next turn:

    CALL     where it lay
    FRAME    a frame on, once in `hop` turns
    SAMPLE   a sample on
    STATE    an input and an output that change places: what was written is read in the next turn

At the end the function leaves the addresses of states in the tables of each stream, so that the
next call goes on from there. The result is that of `model`, of the last stream that has one but 0.
Denormal numbers are zero within it; MXCSR is as before when it returns.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.errors import CompileError
from sparsejit.ir.spec import Choice
from sparsejit.lowering.lowered_model import POINTER, LoweredModel
from sparsejit.lowering.model import SAVED, ModelCode
from sparsejit.lowering.probes import Probe
from sparsejit.runtime.program import Program, build
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, dword, r12, rax, rcx, rdi, rsi
from sparsejit.x86.stack import pop, push

_FIRST = r12  # the workspace of the first stream, throughout

# MXCSR: flush results, and take operands, that are denormal as zero (Intel SDM 1, 10.2.3).
_FLUSH_TO_ZERO = 1 << 15 | 1 << 6


@dataclass(frozen=True)
class StreamHeader:
    """Where a caller writes what into a stream's workspace: bytes from its first.

    `inputs`, `outputs`: the address of the stream's table of operands' addresses; `next`: that of
    the next stream's workspace, the last having the first's.
    """

    inputs: int
    outputs: int
    next: int


def stream_header(lowered: LoweredModel) -> StreamHeader:
    """Where it lies in the workspaces of a lowered graph."""
    return StreamHeader(*(lowered.loop_offset + POINTER * slot for slot in range(3)))


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
    """Appends the function's code: tiles are samples. The first stream keeps what all share."""

    def __init__(self, lowered: LoweredModel, loop: GraphLoop, probe: Probe | None) -> None:
        super().__init__(lowered, probe)
        self.loop = loop
        slots = range(lowered.loop_offset, lowered.operand_offset, POINTER)
        self.inputs, self.outputs, self.next, self.turns, self.mxcsr = (
            Memory(WORKSPACE, slot) for slot in slots
        )
        self.flushing = Memory(WORKSPACE, slots[-1] + POINTER // 2)

    def emit(self, asm: Assembler) -> None:
        """The whole function but for its `vzeroupper` and return."""
        push(asm, SAVED)
        asm.emit("mov", _FIRST, rdi)
        asm.emit("mov", WORKSPACE, _FIRST)
        asm.emit("mov", self.left, rsi)
        self._flush_denormals(asm)
        self._begin_frame(asm)
        self._for_streams(asm, lambda: self._take_operands(asm))
        again, end, done = (asm.label(name) for name in ("next sample", "end of turn", "done"))
        asm.emit("mov", rax, self.left)
        asm.emit("cmp", rax, 0)
        asm.jump("jle", done)
        asm.bind(again)
        self._turn(asm, end)
        asm.bind(end)
        self._for_streams(asm, lambda: self._next_sample(asm))
        self._count_frames(asm)
        self._repeat(asm, again)
        asm.bind(done)
        asm.emit("ldmxcsr", self.mxcsr)
        asm.emit("xor", dword(rcx), dword(rcx))
        self._for_streams(asm, lambda: self._leave_states(asm))
        asm.emit("mov", rax, rcx)
        pop(asm, SAVED)

    def _for_streams(self, asm: Assembler, body: Callable[[], None]) -> None:
        """Code that runs for every stream, from the first on, and ends at the first."""
        again = asm.label("next stream")
        asm.bind(again)
        body()
        asm.emit("mov", WORKSPACE, self.next)
        asm.emit("cmp", WORKSPACE, _FIRST)
        asm.jump("jne", again)

    def _turn(self, asm: Assembler, end: Label) -> None:
        """A sample of every stream."""
        self._probe(asm, 0, end)
        for _, group in groupby(range(len(self.lowered.steps)), self._loop_of):
            numbers = list(group)
            if self.lowered.steps[numbers[0]].parts:
                self._product_in_parts(asm, numbers[0])
            else:
                self._for_streams(asm, partial(self._steps, asm, numbers))
            self._probe(asm, numbers[-1] + 1, end)

    def _loop_of(self, number: int) -> int:
        """Which loop over streams a step is in: that of its number, or -1.

        What stands between products is small and runs together, so that what one step leaves for
        the next stays near; but for a probe, which times each.
        """
        is_product = self.lowered.steps[number].facts.plan is not None
        return number if is_product or self.probe is not None else -1

    def _steps(self, asm: Assembler, numbers: Sequence[int]) -> None:
        for number in numbers:
            step = self.lowered.steps[number]
            self.bodies.run(asm, step, self._locations(asm, number, step))

    def _product_in_parts(self, asm: Assembler, number: int) -> None:
        """A stream alone runs the whole product where that has the same bits: it is planned so."""
        step = self.lowered.steps[number]
        at = self._locations(asm, number, step)
        several, end = asm.label("several streams"), asm.label("end of product")
        if step.parts_are_exact:
            asm.emit("cmp", _FIRST, self.next)
            asm.jump("jne", several)
            step.emit(asm, at)
            asm.jump("jmp", end)
        asm.bind(several)
        for part in step.parts:
            self._for_streams(asm, partial(part, asm, at))
        asm.bind(end)

    def _flush_denormals(self, asm: Assembler) -> None:
        asm.emit("stmxcsr", self.mxcsr)
        asm.emit("mov", dword(rax), self.mxcsr)
        asm.emit("or", dword(rax), _FLUSH_TO_ZERO)
        asm.emit("mov", self.flushing, dword(rax))
        asm.emit("ldmxcsr", self.flushing)

    def _take_operands(self, asm: Assembler) -> None:
        """Bring a stream's pointers to where kernels look for them."""
        asm.emit("mov", rdi, self.inputs)
        asm.emit("mov", rsi, self.outputs)
        self.copy_pointers(asm)
        asm.emit("xor", dword(rax), dword(rax))
        asm.emit("mov", self.status, rax)

    def _next_sample(self, asm: Assembler) -> None:
        first_output = len(self.loop.inputs)
        for read, written in self.loop.states():
            before, after = self._slot(read), self._slot(first_output + written)
            asm.emit("mov", rax, before)
            asm.emit("mov", rcx, after)
            asm.emit("mov", after, rax)
            asm.emit("mov", before, rcx)
        self._move_all(asm, Role.SAMPLE)

    def _count_frames(self, asm: Assembler) -> None:
        same_frame = asm.label("same frame")
        asm.emit("mov", rax, self.turns)
        asm.emit("sub", rax, 1)
        asm.emit("mov", self.turns, rax)
        asm.jump("jnz", same_frame)
        self._begin_frame(asm)
        self._for_streams(asm, lambda: self._move_all(asm, Role.FRAME))
        asm.bind(same_frame)

    def _begin_frame(self, asm: Assembler) -> None:
        asm.emit("mov", dword(rax), self.loop.hop)
        asm.emit("mov", self.turns, rax)

    def _move_all(self, asm: Assembler, role: Role) -> None:
        for number, each in enumerate((*self.loop.inputs, *self.loop.outputs)):
            if each is role:
                self.move_on(asm, number)

    def _leave_states(self, asm: Assembler) -> None:
        """A stream's states to its tables; rcx = its status, where that is not 0."""
        asm.emit("mov", rdi, self.inputs)
        asm.emit("mov", rsi, self.outputs)
        for read, written in self.loop.states():
            asm.emit("mov", rax, self._slot(read))
            asm.emit("mov", Memory(rdi, POINTER * read), rax)
            asm.emit("mov", rax, self._slot(len(self.loop.inputs) + written))
            asm.emit("mov", Memory(rsi, POINTER * written), rax)
        fine = asm.label("indices in range")
        asm.emit("mov", rax, self.status)
        asm.emit("test", rax, rax)
        asm.jump("jz", fine)
        asm.emit("mov", rcx, rax)
        asm.bind(fine)
