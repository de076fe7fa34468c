"""The code of one schedule: a native function that walks through its waves.

    int run(const void *const *inputs, void *const *outputs, void *workspace, int64 samples)

    ModelCode     runs all waves for a tile, then for the next tile
    TurnsCode     runs the last waves for several samples before the next wave
    JointCode     runs the waves of a joint end once for several samples
    code_of       the one of these that a schedule needs

Each walks through its waves by `ModelCode.run_steps`, as do the loops of `sample_loop`. The
workspace begins with the pointers of inputs and outputs, then the number of samples left; where the
batch is free, each tile advances the pointers. rbp holds the workspace throughout.

The function returns its status, which the workspace holds after the number of samples: 0, or 1 +
the number of a step that found an index out of range; outputs are undefined then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sparsejit.asm_templates.shared.location import (
    WORKSPACE,
    ByPointer,
    InPool,
    InWorkspace,
    Location,
)
from sparsejit.asm_templates.shared.loops import counted_down, counted_up
from sparsejit.lowering.memory.storage import (
    ConstantBuffer,
    InputBuffer,
    OutputBuffer,
    View,
)
from sparsejit.lowering.memory_plan import SampleTurns
from sparsejit.lowering.model_schedule import POINTER, JointEnd, ModelSchedule
from sparsejit.lowering.probes import Probe
from sparsejit.lowering.step import Locations, SharedBodies, StatusWord, Step
from sparsejit.lowering.threads.waves import ScheduledStep, Wave, emit_wave, merged
from sparsejit.runtime.program import Program, build
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
    r12,
    r13,
    r14,
    r15,
    rax,
    rbp,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    xmm,
    ymm,
)
from sparsejit.x86.routines import pop, push

SAVED = (rbx, rbp, r12, r13, r14, r15)
_FIRST, _END = r12, r13  # regions of samples that take turns
_BLOCK = 32  # bytes of a vector that copies samples

# Appends a wave's code, given as a function, with a loop around it.
Around = Callable[[Assembler, Callable[[], None]], None]


def build_model(
    lowered: ModelSchedule, name: str, probe: Probe | None = None, listed: bool = False
) -> Program:
    """Build the native function for whole tiles; with a probe, one for timing its steps.

    `listed` is as in `build`.
    """
    code = ModelCode(lowered, probe)
    return build(name, lowered.options.target, code.emit, lowered.prefetch_distance, listed)


class ModelCode:
    """Appends the function's code; subclasses change it for loops, turns and shared tiles.

    The code of steps `beside` these is in the same function.
    """

    tile_step = 1  # distance between two tiles that the same thread runs, in tiles

    def __init__(
        self, lowered: ModelSchedule, probe: Probe | None = None, beside: Sequence[Step] = ()
    ) -> None:
        self.lowered, self.graph, self.probe = lowered, lowered.graph, probe
        self.literals: dict[ConstantBuffer, int] = {}
        steps = [each.step for wave in lowered.waves for each in wave.steps]
        is_alone = lowered.options.threads_a_tile == 1
        others = beside if lowered.end is None else lowered.end.lowered.steps
        slots = lowered.operand_offset if is_alone else None
        self.bodies = SharedBodies(steps, slots, others)
        self.scratch = dict(zip(steps, lowered.memory.scratch, strict=True))
        self.left = Memory(WORKSPACE, lowered.left_offset)
        self.status = Memory(WORKSPACE, lowered.status_offset)
        self.joint = Memory(WORKSPACE, lowered.joint_offset)

    @property
    def _pointers(self) -> int:
        return len(self.graph.inputs) + len(self.graph.outputs)

    def emit(self, asm: Assembler) -> None:
        """Append the whole function, except its `vzeroupper` and return."""
        self.enter(asm)
        self.run_tiles(asm, asm.label("tiles"))
        self.leave(asm)

    def leave(self, asm: Assembler) -> None:
        """Restore registers; rax = the status."""
        asm.emit("mov", rax, self.status)
        pop(asm, SAVED)

    def run_tiles(self, asm: Assembler, start: Label) -> None:
        """Append a loop over the whole tiles left; jump to `start` only if at least one is left."""
        done, tile = asm.label("done"), self.lowered.tile
        asm.emit("mov", rax, self.left)
        asm.emit("cmp", rax, tile)
        asm.jump("jl", done)
        asm.bind(start)
        self.run_steps(asm, self.lowered.waves)
        for number in range(len(self.lowered.operand_bytes)):
            self.move_on(asm, number, self.tile_step)
        self.count_down(asm)
        asm.jump("jge", start)
        asm.bind(done)

    def run_steps(
        self,
        asm: Assembler,
        waves: Sequence[Wave],
        around: Around = lambda asm, body: body(),
    ) -> None:
        """Append waves in order, each with `around` it; pointers and samples left do not change.

        Before step `end.first`, the code copies the inputs of the joint end and skips the waves
        left, if the joint end replaces them.
        """
        behind = asm.label("end of steps")
        self._probe(asm, 0, behind)
        for number, wave in enumerate(waves):
            self._hand_over(asm, wave, around, behind)
            if wave.is_shared:
                saved_ns = sum(each.alone_ns - each.ns for each in waves[number:])
                emit_wave(asm, wave, self._run, saved_ns, self.lowered.workers)
            else:
                self.run_wave(asm, wave, around)
            self._probe(asm, number + 1, behind)
        asm.bind(behind)

    def run_wave(self, asm: Assembler, wave: Wave, around: Around) -> None:
        """Append the steps of a wave that one thread runs, all within the loop of `around`."""
        around(asm, partial(self._run, asm, wave.steps))

    def enter(self, asm: Assembler) -> None:
        """Save registers; store pointers, samples left and a status of 0 in the workspace."""
        push(asm, SAVED)
        asm.emit("mov", WORKSPACE, rdx)
        self.copy_pointers(asm)
        asm.emit("mov", self.left, rcx)
        asm.emit("xor", dword(rax), dword(rax))
        asm.emit("mov", self.status, rax)

    def copy_pointers(self, asm: Assembler) -> None:
        """Copy the pointers in the tables at rdi and rsi to the workspace. Clobbers rax."""
        for number in range(self._pointers):
            inputs = len(self.graph.inputs)
            table, place = (rdi, number) if number < inputs else (rsi, number - inputs)
            asm.emit("mov", rax, Memory(table, POINTER * place))
            asm.emit("mov", Memory(WORKSPACE, POINTER * number), rax)

    def count_down(self, asm: Assembler) -> None:
        """Subtract tiles from the samples left; set flags: a tile is left, or not. Clobbers rax."""
        asm.emit("mov", rax, self.left)
        asm.emit("sub", rax, self.tile_step * self.lowered.tile)
        asm.emit("mov", self.left, rax)
        asm.emit("cmp", rax, self.lowered.tile)

    def _hand_over(self, asm: Assembler, wave: Wave, around: Around, behind: Label) -> None:
        """At the first step of the joint end: if it runs, copy its inputs and jump to `behind`."""
        end = self.lowered.end
        if end is None or wave.steps[0].number != end.first:
            return
        alone = asm.label("alone")
        asm.emit("mov", rax, self.joint)
        asm.emit("test", rax, rax)
        asm.jump("jz", alone)
        around(asm, partial(self._copy_for_end, asm, end))
        asm.jump("jmp", behind)
        asm.bind(alone)

    def _copy_for_end(self, asm: Assembler, end: JointEnd) -> None:
        """Copy one sample's inputs of the joint end to where it reads them."""
        for step in end.copies:
            status = StatusWord(self.lowered.status_offset, 0)
            places = self._places(asm, step.reads), self._places(asm, step.writes)
            step.emit(asm, Locations(*places, InWorkspace(0), status))

    def move_on(self, asm: Assembler, number: int, tiles: int = 1) -> None:
        """Advance the pointer of an operand, inputs first, by some tiles. Clobbers rax."""
        advance(asm, number, tiles * self.lowered.tile * self.lowered.operand_bytes[number])

    def _probe(self, asm: Assembler, number: int, end: Label) -> None:
        if self.probe is not None:
            self.probe.emit(asm, number, end)

    def _run(self, asm: Assembler, steps: Sequence[ScheduledStep]) -> None:
        for number, step in steps:
            self.bodies.run(asm, step, self._locations(asm, number, step))

    def _locations(self, asm: Assembler, number: int, step: Step) -> Locations:
        scratch = self.lowered.header_bytes + self.scratch[step]
        status = StatusWord(self.lowered.status_offset, number + 1)
        return Locations(
            self._places(asm, step.reads),
            self._places(asm, step.writes),
            InWorkspace(scratch),
            status,
        )

    def _places(self, asm: Assembler, views: Sequence[View]) -> list[Location]:
        return [self._place(asm, view) for view in views]

    def _place(self, asm: Assembler, view: View) -> Location:
        buffer, inputs = view.buffer, len(self.graph.inputs)
        if isinstance(buffer, InputBuffer):
            return ByPointer(POINTER * buffer.number, view.offset)
        if isinstance(buffer, OutputBuffer):
            return ByPointer(POINTER * (inputs + buffer.number), view.offset)
        if isinstance(buffer, ConstantBuffer):
            if buffer not in self.literals:
                self.literals[buffer] = asm.literal(buffer.read())
            return InPool(self.literals[buffer] + view.offset)
        offset = self.lowered.memory.offsets[buffer]
        return InWorkspace(self.lowered.header_bytes + offset + view.offset)


class TurnsCode(ModelCode):
    """Appends the function's code, whose last steps each run for several samples in turn.

    A tile is a sample.

    rbp = region of the current sample, r12 = first region, r13 = end of the last region
    """

    def __init__(self, lowered: ModelSchedule) -> None:
        super().__init__(lowered)
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
        in_turn = merged(self.lowered.waves[self.turns.first :], self._turn_of)
        self.run_steps(asm, in_turn, self._for_samples)
        self._gather_status(asm)
        self._end(asm)
        asm.jump("jg", start)
        asm.bind(done)

    def _begin(self, asm: Assembler) -> None:
        """_END = the end of the region of the last sample that takes turns now."""
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
        asm.bind(again)
        self.run_steps(asm, self.lowered.waves[: self.turns.first])
        asm.emit("add", WORKSPACE, self.turns.stride)
        asm.emit("cmp", WORKSPACE, _END)
        asm.jump("jae", behind)
        for number, size in enumerate(self.lowered.operand_bytes):
            place = POINTER * number
            asm.emit("mov", rax, Memory(WORKSPACE, place - self.turns.stride))
            asm.emit("add", rax, size)
            asm.emit("mov", Memory(WORKSPACE, place), rax)
        asm.emit("xor", dword(rax), dword(rax))
        asm.emit("mov", self.status, rax)
        asm.jump("jmp", again)
        asm.bind(behind)
        asm.emit("mov", WORKSPACE, _FIRST)

    def _turn_of(self, each: ScheduledStep) -> tuple[int, bool]:
        """Key of the wave of a step: one with weights has its own; steps between share one."""
        number, step = each
        end = self.lowered.end
        is_end = end is not None and number >= end.first
        return (1 + number if step.facts.weights else 0), is_end

    def _for_samples(self, asm: Assembler, body: Callable[[], None]) -> None:
        """Append code that runs in the region of every sample, and ends in the first region."""
        with counted_up(asm, WORKSPACE, self.turns.stride, _END):
            body()
        asm.emit("mov", WORKSPACE, _FIRST)

    def _gather_status(self, asm: Assembler) -> None:
        """Copy to the first region the status of a sample that found an index out of range."""
        status = Memory(_FIRST, self.lowered.status_offset)
        self._for_samples(asm, lambda: gather_status(asm, self.status, rax, status))

    def _end(self, asm: Assembler) -> None:
        """Move pointers and the count past the samples of this turn; flags tell if any are left."""
        self._count(asm)
        asm.emit("mov", rcx, self.left)
        asm.emit("sub", rcx, rax)
        asm.emit("mov", self.left, rcx)
        move_by_samples(asm, self.lowered.operand_bytes)
        asm.emit("mov", rax, self.left)
        asm.emit("cmp", rax, 0)


class JointCode:
    """Appends the function's code; `each` appends the code of one sample after another.

    while samples are left:
        take the samples left, at most `end.samples`
        fewer than `end.fewest`: the whole model, one sample after another
        otherwise: the trunk, one sample after another; then the end, once
    """

    def __init__(self, each: ModelCode, end: JointEnd) -> None:
        self._each, self._end = each, end
        self._several = ModelCode(end.lowered, beside=each.lowered.steps)
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
        several.run_steps(asm, several.lowered.waves)
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


def code_of(lowered: ModelSchedule) -> ModelCode | JointCode:
    """The object that appends the code of a schedule."""
    each = TurnsCode(lowered) if lowered.turns else ModelCode(lowered)
    return each if lowered.end is None else JointCode(each, lowered.end)


def advance(asm: Assembler, number: int, size: int) -> None:
    """Advance the pointer of an operand by some bytes. Clobbers rax."""
    slot = Memory(WORKSPACE, POINTER * number)
    asm.emit("mov", rax, slot)
    asm.emit("add", rax, size)
    asm.emit("mov", slot, rax)


def swap(asm: Assembler, one: int, other: int) -> None:
    """Swap the pointers of two operands. Clobbers rax, rcx."""
    first, second = Memory(WORKSPACE, POINTER * one), Memory(WORKSPACE, POINTER * other)
    asm.emit("mov", rax, first)
    asm.emit("mov", rcx, second)
    asm.emit("mov", second, rax)
    asm.emit("mov", first, rcx)


def gather_status(
    asm: Assembler, status: Memory, through: Register, into: Register | Memory
) -> None:
    """Copy a status to `into` by a register, if it is not 0."""
    fine = asm.label("indices in range")
    asm.emit("mov", through, status)
    asm.emit("test", through, through)
    asm.jump("jz", fine)
    asm.emit("mov", into, through)
    asm.bind(fine)


def move_by_samples(asm: Assembler, operand_bytes: Sequence[int]) -> None:
    """Advance operands' pointers by rax samples, given each one's bytes a sample. Clobbers rcx."""
    for number, size in enumerate(operand_bytes):
        slot = Memory(WORKSPACE, POINTER * number)
        asm.emit("mov", dword(rcx), size)
        asm.emit("imul", rcx, rax)
        asm.emit("add", rcx, slot)
        asm.emit("mov", slot, rcx)


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
            _pass(asm, _BLOCK)
    for part, mnemonic, register in _PARTS:
        while rest >= part:
            _copy_part(asm, mnemonic, register)
            _pass(asm, part)
            rest -= part
    for _ in range(rest):
        asm.emit("vpinsrb", xmm(0), xmm(0), Memory(rsi), 0)
        asm.emit("vpextrb", Memory(rdi), xmm(0), 0)
        _pass(asm, 1)


_PARTS: tuple[tuple[int, str, Register], ...] = (
    (16, "vmovups", xmm(0)),
    (8, "mov", rax),
    (4, "mov", dword(rax)),
)


def _copy_part(asm: Assembler, mnemonic: str, register: Register) -> None:
    asm.emit(mnemonic, register, Memory(rsi))
    asm.emit(mnemonic, Memory(rdi), register)


def _pass(asm: Assembler, size: int) -> None:
    for register in (rsi, rdi):
        asm.emit("add", register, size)
