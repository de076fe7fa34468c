"""A lowered graph as the body of a loop: a turn for each sample, `hop` turns for each frame.

    int run(void *first, int64 samples)

The loop runs one or more streams. Every stream has a workspace with the addresses of its operands'
tables (`StreamHeader`); the workspaces form a ring. A turn computes a sample of each stream: a
product, or a part of one, runs for all streams before the next step, so that its weights are still
in the cache. A stream's samples do not depend on the other streams in the ring.

The role of an operand decides its address in the next turn:

    CALL     the same
    FRAME    advanced by a frame, once in `hop` turns
    SAMPLE   advanced by a sample
    STATE    an input and an output swap addresses: the next turn reads the state just written

At the end the function writes the addresses of states to the tables of each stream, so that the
next call continues from there. It returns the status (as in `model`) of the last stream whose
status is not 0, else 0. Denormal numbers count as zero within it; it restores MXCSR.
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

# MXCSR: denormal results and operands become zero (Intel SDM 1, 10.2.3).
_FLUSH_TO_ZERO = 1 << 15 | 1 << 6


@dataclass(frozen=True)
class StreamHeader:
    """Offsets in a stream's workspace of the addresses that a caller writes, in bytes.

    `inputs`, `outputs`: for the address of the stream's table of operands' addresses; `next`: for
    the address of the next stream's workspace; the first's follows the last's.
    """

    inputs: int
    outputs: int
    next: int


def stream_header(lowered: LoweredModel) -> StreamHeader:
    """Offsets of the header in the workspaces of a lowered graph."""
    return StreamHeader(*(lowered.loop_offset + POINTER * slot for slot in range(3)))


class Role(Choice):
    """Role of an operand of the graph in the loop."""

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
        """The number of each state's input, with the number of the output it swaps with."""
        reads, writes = (
            [number for number, role in enumerate(roles) if role is Role.STATE]
            for roles in (self.inputs, self.outputs)
        )
        return zip(reads, writes, strict=True)


def build_loop(
    lowered: LoweredModel, loop: GraphLoop, name: str, probe: Probe | None = None
) -> Program:
    """Build the native function. Raises CompileError if a state's input and output types differ."""
    graph = lowered.graph
    for read, written in loop.states():
        before, after = graph.inputs[read], graph.outputs[written]
        if before.type != after.type:
            raise CompileError(
                f"give state {before.origin.name} one type: it is read as {before.type} and "
                f"written as {after.type}"
            )
    return build(name, lowered.options.target, _LoopCode(lowered, loop, probe).emit)


class _LoopCode(ModelCode):
    """Appends the function's code; a tile is a sample. The first workspace has the counters."""

    def __init__(self, lowered: LoweredModel, loop: GraphLoop, probe: Probe | None) -> None:
        super().__init__(lowered, probe)
        self.loop = loop
        slots = range(lowered.loop_offset, lowered.operand_offset, POINTER)
        self.inputs, self.outputs, self.next, self.turns, self.mxcsr = (
            Memory(WORKSPACE, slot) for slot in slots
        )
        self.flushing = Memory(WORKSPACE, slots[-1] + POINTER // 2)

    def emit(self, asm: Assembler) -> None:
        """Append the whole function, except its `vzeroupper` and return."""
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
        """Append code that runs `body` for every stream; rbp is the first workspace afterwards."""
        again = asm.label("next stream")
        asm.bind(again)
        body()
        asm.emit("mov", WORKSPACE, self.next)
        asm.emit("cmp", WORKSPACE, _FIRST)
        asm.jump("jne", again)

    def _turn(self, asm: Assembler, end: Label) -> None:
        """Append the steps that compute a sample of every stream."""
        self._probe(asm, 0, end)
        for _, group in groupby(range(len(self.lowered.steps)), self._loop_of):
            numbers = list(group)
            if self.lowered.steps[numbers[0]].parts:
                self._product_in_parts(asm, numbers[0])
            else:
                self._for_streams(asm, partial(self._steps, asm, numbers))
            self._probe(asm, numbers[-1] + 1, end)

    def _loop_of(self, number: int) -> int:
        """Key of the loop over streams that a step is in: its own number, or -1.

        Consecutive steps between products are small and share a loop, so that a step's results are
        still in the cache for the next. A probe times each step, which then has its own loop.
        """
        is_product = self.lowered.steps[number].facts.plan is not None
        return number if is_product or self.probe is not None else -1

    def _steps(self, asm: Assembler, numbers: Sequence[int]) -> None:
        for number in numbers:
            step = self.lowered.steps[number]
            self.bodies.run(asm, step, self._locations(asm, number, step))

    def _product_in_parts(self, asm: Assembler, number: int) -> None:
        """Append a product in parts; a single stream runs it whole if that gives the same bits."""
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
        """Copy a stream's pointers to its workspace, and set its status to 0."""
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
        """Write a stream's state addresses to its tables; rcx = its status, where that is not 0."""
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
