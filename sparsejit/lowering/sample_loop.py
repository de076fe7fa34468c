"""A lowered graph as the body of a loop.

    build_loop     a native function: a turn for each sample, `hop` turns for each frame
    lower_turns    a step of a model: the operator `Turns`

The function of a voice is:

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
next call continues from there. It returns the status (as in `model_code`) of the last stream whose
status is not 0, else 0. Denormal numbers count as zero within it; it restores MXCSR.

The step of the operator `Turns` runs its body's kernels with their own workspace, which lies in the
scratch memory of the step:

    states                       swap buffers: a turn reads the states that the last one wrote
    sequences, stacked results   advance by the part of one turn
    other operands               stay where they are

Where turns read states alone, one that leaves them as they were is the last: all others would too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.errors import CompileError
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.turns import Turns
from sparsejit.ir.spec import Choice
from sparsejit.ir.values import Value
from sparsejit.lowering.context import Lowering, lowers
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.memory.storage import View
from sparsejit.lowering.model_code import SAVED, Around, ModelCode, advance, gather_status, swap
from sparsejit.lowering.model_schedule import POINTER, ModelSchedule
from sparsejit.lowering.probes import Probe
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.lowering.threads.waves import ScheduledStep, Wave, merged
from sparsejit.passes.default import run_passes
from sparsejit.planner.cheapest_row import record_all
from sparsejit.runtime.program import Program, build
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, dword, r12, r13, rax, rbx, rcx, rdi, rdx, rsi
from sparsejit.x86.routines import flush_denormals, pop, push

_FIRST = r12  # the workspace of the first stream, throughout


@dataclass(frozen=True)
class StreamHeader:
    """Offsets in a stream's workspace of the addresses that a caller writes, in bytes.

    `inputs`, `outputs`: for the address of the stream's table of operands' addresses; `next`: for
    the address of the next stream's workspace; the first's follows the last's.
    """

    inputs: int
    outputs: int
    next: int


def stream_header(lowered: ModelSchedule) -> StreamHeader:
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
    lowered: ModelSchedule, loop: GraphLoop, name: str, probe: Probe | None = None
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
    """Appends the code of a loop over samples, for one or more streams.

    A tile is a sample. The first stream's workspace has the loop's counters.
    """

    def __init__(self, lowered: ModelSchedule, loop: GraphLoop, probe: Probe | None) -> None:
        super().__init__(lowered, probe)
        self.loop = loop
        self.waves = merged(lowered.waves, self._wave_of)
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
        flush_denormals(asm, self.mxcsr, self.flushing)
        self._begin_frame(asm)
        self._for_streams(asm, lambda: self._take_operands(asm))
        again, done = asm.label("next sample"), asm.label("done")
        asm.emit("mov", rax, self.left)
        asm.emit("cmp", rax, 0)
        asm.jump("jle", done)
        asm.bind(again)
        self.run_steps(asm, self.waves, self._for_streams)
        self._for_streams(asm, lambda: self._next_sample(asm))
        self._count_frames(asm)
        self.count_down(asm)
        asm.jump("jge", again)
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

    def run_wave(self, asm: Assembler, wave: Wave, around: Around) -> None:
        """Append the steps of a wave that compute a sample of every stream."""
        if wave.steps[0].step.parts:
            self._product_in_parts(asm, *wave.steps[0])
        else:
            super().run_wave(asm, wave, around)

    def _wave_of(self, each: ScheduledStep) -> int:
        """Key of the wave of a step, which is a loop over streams: its own number, or -1.

        Consecutive steps between products are small and share a loop, so that a step's results are
        still in the cache for the next. A probe times each step, which then has its own loop.
        """
        is_product = each.step.facts.plan is not None
        return each.number if is_product or self.probe is not None else -1

    def _product_in_parts(self, asm: Assembler, number: int, step: Step) -> None:
        """Append a product in parts; a single stream runs it whole if that gives the same bits."""
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
            swap(asm, read, first_output + written)
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
            asm.emit("mov", rax, Memory(WORKSPACE, POINTER * read))
            asm.emit("mov", Memory(rdi, POINTER * read), rax)
            asm.emit("mov", rax, Memory(WORKSPACE, POINTER * (len(self.loop.inputs) + written)))
            asm.emit("mov", Memory(rsi, POINTER * written), rax)
        gather_status(asm, self.status, rax, rcx)


@lowers(Turns)
def lower_turns(low: Lowering, node: Node) -> None:
    """Append copies of the initial states, then one step that contains the body's kernels."""
    op = node.op
    assert isinstance(op, Turns)
    body = run_passes(op.body(node, low.graph.constants))
    options = replace(low.options, threads=1, shares_tiles=False)
    inside = lower_model(body, options, kept=low.kept)
    record_all(inside.decisions)
    given, lead = _inputs(low, op, node), op.states + op.sequences
    pairs = [_state(low, value) for value in given[: op.states]]
    stacked = [low.dense_result(value) for value in node.outputs[op.states :]]
    for value, pair in zip(node.outputs, pairs, strict=False):
        low.bind(value, pair[op.count % 2])
    firsts, seconds = [first for first, _ in pairs], [second for _, second in pairs]
    reads = (*firsts, *map(low.contiguous, given[op.states :]))
    writes = (*seconds, *stacked, *firsts)
    parts = [value.type.bytes // op.count for value in given[op.states : lead]]
    parts_made = [view.type.bytes // op.count for view in stacked]
    emit = partial(_emit_turns, inside, op, parts, parts_made)
    origin, facts = node.outputs[0].origin, _facts(op, inside)
    low.add(Step("turns", origin, reads, writes, emit, facts, inside.workspace_bytes))


def _inputs(low: Lowering, op: Turns, node: Node) -> list[Value]:
    """The operands that are inputs of the body: states, sequences and others not constant."""
    lead, known = op.states + op.sequences, low.graph.constants
    pairs = enumerate(node.inputs)
    return [value for number, value in pairs if number < lead or value not in known]


def _state(low: Lowering, value: Value) -> tuple[View, View]:
    """Two buffers for a state; the initial state is copied to the first."""
    first, second = low.temporary(value.type), low.temporary(value.type)
    low.copy(low.view(value), first, value.origin)
    return first, second


def _facts(op: Turns, inside: ModelSchedule) -> Facts:
    """Facts of the kernels of all turns."""
    each = [step.facts for step in inside.steps]
    kernels = ", ".join(step.kernel for step in inside.steps)
    most = "up to " if _ends_unchanged(op, inside) else ""
    return Facts(
        f"{most}{op.count} turns of: {kernels}",
        predicted_ns=op.count * inside.ns,
        nnz=sum(one.nnz for one in each),
        weights=sum(one.weights for one in each),
        weight_bytes=sum(one.weight_bytes for one in each),
        code_bytes=sum(one.code_bytes for one in each),
        effective_flops=op.count * sum(one.effective_flops for one in each),
        flops=op.count * sum(one.flops for one in each),
    )


# Most bytes of states that are compared after each turn.
_MOST_COMPARED = 1 << 12
_WORD = 4


def _ends_unchanged(op: Turns, inside: ModelSchedule) -> bool:
    """Whether a turn that changes no state ends the loop: turns have no numbers of their own."""
    sizes = [value.type.bytes for value in inside.graph.outputs]
    is_alone = op.sequences == 0 and len(op.results) == op.states
    return is_alone and sum(sizes) <= _MOST_COMPARED and not any(size % _WORD for size in sizes)


def _emit_end_if_unchanged(asm: Assembler, sizes: Sequence[int], inputs: int, end: Label) -> None:
    """Append a jump to `end`, taken if no state of these sizes was changed by the last turn.

    Clobbers rax, rcx, rdx, rdi and rsi.
    """
    changed = asm.label("changed")
    for state, size in enumerate(sizes):
        if not size:
            continue
        asm.emit("mov", rsi, Memory(WORKSPACE, POINTER * state))
        asm.emit("mov", rdi, Memory(WORKSPACE, POINTER * (inputs + state)))
        again = asm.label("again")
        asm.emit("xor", dword(rcx), dword(rcx))
        asm.bind(again)
        asm.emit("mov", dword(rax), Memory(rsi, 0, rcx, 1))
        asm.emit("mov", dword(rdx), Memory(rdi, 0, rcx, 1))
        asm.emit("cmp", dword(rax), dword(rdx))
        asm.jump("jne", changed)
        asm.emit("add", rcx, _WORD)
        asm.emit("cmp", rcx, size)
        asm.jump("jb", again)
    asm.jump("jmp", end)
    asm.bind(changed)


def _emit_turns(
    inside: ModelSchedule,
    op: Turns,
    parts: Sequence[int],
    parts_made: Sequence[int],
    asm: Assembler,
    at: Locations,
) -> None:
    """Append the loop over all turns.

    parts, parts_made: bytes of each sequence, and stacked result, for one turn. Registers held
    across a turn: rbp: the body's workspace; r12: the model's; rbx: turns left.
    """
    code, inputs = ModelCode(inside), len(inside.graph.inputs)
    outside, within, held = r12, r13, (rbx, WORKSPACE, r12, r13)
    push(asm, held)
    at.scratch.point(asm, within)
    for number, place in enumerate((*at.reads, *at.writes[: len(inside.graph.outputs)])):
        place.point(asm, rax)
        asm.emit("mov", Memory(within, POINTER * number), rax)
    asm.emit("xor", dword(rax), dword(rax))
    asm.emit("mov", Memory(within, inside.status_offset), rax)
    asm.emit("mov", outside, WORKSPACE)
    asm.emit("mov", WORKSPACE, within)
    end = asm.label("end of turns")
    moving = (*enumerate(parts, op.states), *enumerate(parts_made, inputs + op.states))
    with counted_down(asm, rbx, op.count):
        code.run_steps(asm, inside.waves)
        if _ends_unchanged(op, inside):
            sizes = [value.type.bytes for value in inside.graph.outputs]
            _emit_end_if_unchanged(asm, sizes, inputs, end)
        for state in range(op.states):
            swap(asm, state, inputs + state)
        for number, size in moving:
            advance(asm, number, size)
    asm.bind(end)
    asm.emit("mov", rcx, Memory(WORKSPACE, inside.status_offset))
    asm.emit("mov", WORKSPACE, outside)
    at.status.report_where(asm, rcx)
    pop(asm, held)
