"""A graph lowered: kernels in order, one workspace; and all of it as one native function.

    int run(const void *const *inputs, void *const *outputs, void *workspace, int64 samples)

The workspace begins with the pointers of inputs and outputs, then the number of samples left; where
the batch is free, each tile moves the pointers on. rbp holds the workspace throughout.

The result, which the workspace holds behind the samples too, is 0, or 1 + the number of a step that
found an index out of range; what outputs hold then means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparsejit.asm_templates.shared.location import (
    WORKSPACE,
    ByPointer,
    InPool,
    InWorkspace,
    Location,
)
from sparsejit.ir.graph import Graph, Node, Value
from sparsejit.ir.ops.selection import Embedding, EmbeddingBag
from sparsejit.lowering.context import Lowering, ModelOptions, Progress
from sparsejit.lowering.empty import is_empty
from sparsejit.lowering.kept_weights import KeptWeights
from sparsejit.lowering.memory.storage import (
    ConstantBuffer,
    InputBuffer,
    OutputBuffer,
    View,
)
from sparsejit.lowering.memory_plan import MemoryPlan, plan_memory, plan_regions
from sparsejit.lowering.probes import Probe
from sparsejit.lowering.registry import LOWERINGS
from sparsejit.lowering.sample_turns import (
    MOST_IN_TURN,
    SampleTurns,
    bytes_of_turns,
    first_of_turns,
)
from sparsejit.lowering.shared_bodies import OPERAND_SLOTS, SharedBodies
from sparsejit.lowering.step import Locations, StatusWord, Step
from sparsejit.lowering.threads.crew import ScheduledStep
from sparsejit.lowering.threads.wave_code import emit_wave
from sparsejit.lowering.threads.waves import Wave, schedule
from sparsejit.planner.layer_planner import weight_bytes
from sparsejit.planner.sharing import WavePrices
from sparsejit.runtime.program import Program, build
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import (
    Memory,
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
)
from sparsejit.x86.stack import pop, push

SAVED = (rbx, rbp, r12, r13, r14, r15)
POINTER = 8  # bytes
LOOP_SLOTS = 5


@dataclass(frozen=True)
class LoweredModel:
    """What is left to emit. A run of it takes `tile` samples, 1 where the batch is fixed.

    Where there is a `turns`, that many samples take turns with the last steps (`sample_turns`).
    """

    graph: Graph
    options: ModelOptions
    steps: tuple[Step, ...]
    waves: tuple[Wave, ...]
    memory: MemoryPlan
    tile: int
    turns: SampleTurns | None = None

    @property
    def ns(self) -> float:
        """What a tile should take."""
        return sum(wave.ns for wave in self.waves)

    @property
    def input_bytes(self) -> list[int]:
        """What a sample takes in each input; 0 where all samples have it in common."""
        return [
            0 if self.graph.is_shared(number) else value.type.bytes // self.tile
            for number, value in enumerate(self.graph.inputs)
        ]

    @property
    def output_bytes(self) -> list[int]:
        """What a sample takes in each output."""
        return [value.type.bytes // self.tile for value in self.graph.outputs]

    @property
    def header_bytes(self) -> int:
        """Before the first buffer: pointers, samples, status, what loops and probes keep."""
        return _header_bytes(self.graph, self.waves)

    @property
    def workspace_bytes(self) -> int:
        """What a thread needs that runs a tile, 64-byte aligned."""
        return self.header_bytes + self.memory.bytes

    @property
    def ask_ahead(self) -> int:
        """How far ahead its code is to be asked for: not where it stays in L2 from call to call."""
        return self.options.planner.ask_ahead

    @property
    def left_offset(self) -> int:
        """Where the number of samples left is kept, as int64."""
        return POINTER * (len(self.graph.inputs) + len(self.graph.outputs))

    @property
    def status_offset(self) -> int:
        """Where the function leaves its result as int64."""
        return self.left_offset + POINTER

    @property
    def loop_offset(self) -> int:
        """Where `LOOP_SLOTS` int64 slots begin, for `loop`."""
        return self.status_offset + POINTER

    @property
    def operand_offset(self) -> int:
        """Where steps that share code leave the addresses of their operands."""
        return self.loop_offset + POINTER * LOOP_SLOTS

    @property
    def probe_offset(self) -> int:
        """Where they begin."""
        return self.operand_offset + POINTER * OPERAND_SLOTS


def lower_model(
    graph: Graph,
    options: ModelOptions,
    progress: Progress = lambda stage, share: None,
    tile: int | None = None,
    kept: KeptWeights | None = None,
) -> LoweredModel:
    """Choose a kernel for every node and a place for every buffer.

    The graph is of `tile` samples where the batch is free; `kept` is what other code of the model
    made of its weights. Raises InvalidInput or CompileError for
    what no kernel can do.
    """
    if not options.weight_bytes:
        matrices = [array for array in graph.constants.values() if array.ndim > 1]
        found = sum(weight_bytes(int(np.count_nonzero(each)), each.nbytes) for each in matrices)
        options = replace(options, weight_bytes=found - unread_bytes(graph))
    low = Lowering(graph, options, kept)
    for number, node in enumerate(graph.nodes):
        progress(f"choosing a kernel for {node.outputs[0].origin.name}", number / len(graph.nodes))
        if not is_empty(low, node):
            LOWERINGS[type(node.op)](low, node)
    for number, value in enumerate(graph.outputs):
        if not value.type.size:
            continue
        view = low.view(value)
        if not _is_there(view, number):
            wanted = View.whole(OutputBuffer(value.type.bytes, number), value.type)
            low.copy(view, wanted, value.origin)
    waves = schedule(low.steps, options.threads_a_tile, WavePrices.on(options.target))
    steps, run = tuple(low.steps), [[[t.step for t in each] for each in w.threads] for w in waves]
    first = first_of_turns(steps, options) if tile == 1 else None
    if first is None:
        return LoweredModel(graph, options, steps, waves, plan_memory(run), tile or 1)
    header, most_bytes = _header_bytes(graph, waves), bytes_of_turns(options)
    regions = plan_regions(run, first, header, most_bytes, MOST_IN_TURN)
    turns = SampleTurns(first, regions.samples, regions.stride)
    return LoweredModel(graph, options, steps, waves, regions.plan, 1, turns)


def _header_bytes(graph: Graph, waves: Sequence[Wave]) -> int:
    probe_slots = len(waves) + 2
    fixed = 2 + LOOP_SLOTS + OPERAND_SLOTS
    slots = len(graph.inputs) + len(graph.outputs) + fixed + probe_slots
    return -(-slots * POINTER // 64) * 64


def unread_bytes(graph: Graph) -> int:
    """Bytes of tables that are only looked up in, about what a call does not touch."""
    readers: dict[Value, list[Node]] = {value: [] for value in graph.constants}
    for node in graph.nodes:
        for value in node.inputs:
            readers.get(value, []).append(node)
    total = 0
    for value, nodes in readers.items():
        if nodes and value not in graph.outputs and all(_looks_up(n, value) for n in nodes):
            rows = sum(node.inputs[0].type.size for node in nodes)
            array = graph.constants[value]
            held = weight_bytes(int(np.count_nonzero(array)), array.nbytes)
            total += max(0, held - rows * array.nbytes // max(1, len(array)))
    return total


def _looks_up(node: Node, table: Value) -> bool:
    return isinstance(node.op, Embedding | EmbeddingBag) and node.inputs[1] is table


def _is_there(view: View, number: int) -> bool:
    """Whether a value lies in the caller's array for that output already, all of it in order."""
    buffer = view.buffer
    return isinstance(buffer, OutputBuffer) and buffer.number == number and view.is_whole


def build_model(
    lowered: LoweredModel, name: str, probe: Probe | None = None, listed: bool = False
) -> Program:
    """The native function for whole tiles; with a probe, one for timing its steps.

    `listed` is as in `build`.
    """
    code = ModelCode(lowered, probe)
    return build(name, lowered.options.target, code.emit, lowered.ask_ahead, listed)


class ModelCode:
    """Appends the function's code, which `loop` has otherwise."""

    tile_step = 1  # from a tile to the next that the same code runs

    def __init__(self, lowered: LoweredModel, probe: Probe | None) -> None:
        self.lowered, self.graph, self.probe = lowered, lowered.graph, probe
        self.literals: dict[ConstantBuffer, int] = {}
        steps = [each.step for wave in lowered.waves for each in wave.steps]
        is_alone = lowered.options.threads_a_tile == 1
        self.bodies = SharedBodies(steps, lowered.operand_offset if is_alone else None)
        self.scratch = dict(zip(steps, lowered.memory.scratch, strict=True))
        self.left = Memory(WORKSPACE, lowered.left_offset)
        self.status = Memory(WORKSPACE, lowered.status_offset)

    @property
    def _pointers(self) -> int:
        return len(self.graph.inputs) + len(self.graph.outputs)

    def emit(self, asm: Assembler) -> None:
        """The whole function but for its `vzeroupper` and return."""
        self.enter(asm)
        self.run_tiles(asm, asm.label("tiles"))
        self.leave(asm)

    def leave(self, asm: Assembler) -> None:
        """Restore registers; rax = the status."""
        asm.emit("mov", rax, self.status)
        pop(asm, SAVED)

    def run_tiles(self, asm: Assembler, start: Label) -> None:
        """Every whole tile of the samples left; who jumps to `start` knows that there is one."""
        end, done = asm.label("end of tile"), asm.label("done")
        asm.emit("mov", rax, self.left)
        asm.emit("cmp", rax, self.lowered.tile)
        asm.jump("jl", done)
        asm.bind(start)
        self._probe(asm, 0, end)
        for number, wave in enumerate(self.lowered.waves):
            if wave.is_shared:
                self._share(asm, number)
            else:
                self._run(asm, wave.steps)
            self._probe(asm, number + 1, end)
        asm.bind(end)
        self._advance(asm)
        self._repeat(asm, start)
        asm.bind(done)

    def enter(self, asm: Assembler) -> None:
        """Save registers, and bring the pointers to where kernels look for them."""
        push(asm, SAVED)
        asm.emit("mov", WORKSPACE, rdx)
        self.copy_pointers(asm)
        asm.emit("mov", self.left, rcx)
        asm.emit("xor", dword(rax), dword(rax))
        asm.emit("mov", self.status, rax)

    def copy_pointers(self, asm: Assembler) -> None:
        """Those in the tables at rdi and rsi into the workspace. Clobbers rax."""
        for number in range(self._pointers):
            inputs = len(self.graph.inputs)
            table, place = (rdi, number) if number < inputs else (rsi, number - inputs)
            asm.emit("mov", rax, Memory(table, POINTER * place))
            asm.emit("mov", Memory(WORKSPACE, POINTER * number), rax)

    def _repeat(self, asm: Assembler, again: Label) -> None:
        """Count a tile; begin the next where one is left. Clobbers rax."""
        tile = self.lowered.tile
        asm.emit("mov", rax, self.left)
        asm.emit("sub", rax, self.tile_step * tile)
        asm.emit("mov", self.left, rax)
        asm.emit("cmp", rax, tile)
        asm.jump("jge", again)

    def _advance(self, asm: Assembler) -> None:
        """Move inputs and outputs on to the next tile."""
        for number in range(self._pointers):
            self.move_on(asm, number, self.tile_step)

    def move_on(self, asm: Assembler, number: int, tiles: int = 1) -> None:
        """The pointer of an operand, inputs first, by so many tiles. Clobbers rax."""
        operands = *self.lowered.input_bytes, *self.lowered.output_bytes
        asm.emit("mov", rax, self._slot(number))
        asm.emit("add", rax, tiles * self.lowered.tile * operands[number])
        asm.emit("mov", self._slot(number), rax)

    def _slot(self, number: int) -> Memory:
        return Memory(WORKSPACE, POINTER * number)

    def _probe(self, asm: Assembler, number: int, end: Label) -> None:
        if self.probe is not None:
            self.probe.emit(asm, number, end)

    def _run(self, asm: Assembler, steps: Sequence[ScheduledStep]) -> None:
        for number, step in steps:
            self.bodies.run(asm, step, self._locations(asm, number, step))

    def _share(self, asm: Assembler, number: int) -> None:
        """A wave as a function that hands out its threads' steps."""
        waves = self.lowered.waves
        saved_ns = sum(wave.alone_ns - wave.ns for wave in waves[number:])
        emit_wave(asm, waves[number], self._locations, self.bodies, saved_ns)

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


def move_by_samples(asm: Assembler, operand_bytes: Sequence[int]) -> None:
    """The pointers of operands that take so many bytes a sample, by rax samples. Clobbers rcx."""
    for number, size in enumerate(operand_bytes):
        slot = Memory(WORKSPACE, POINTER * number)
        asm.emit("mov", dword(rcx), size)
        asm.emit("imul", rcx, rax)
        asm.emit("add", rcx, slot)
        asm.emit("mov", slot, rcx)


def without_code(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps as a record: what they hold of weights and code is let go."""
    return tuple(map(_without_code, steps))


def waves_without_code(waves: Sequence[Wave]) -> tuple[Wave, ...]:
    """The waves as a record."""
    return tuple(
        replace(
            wave,
            threads=tuple(
                tuple(ScheduledStep(number, _without_code(step)) for number, step in steps)
                for steps in wave.threads
            ),
        )
        for wave in waves
    )


def _without_code(step: Step) -> Step:
    def emit(asm: Assembler, at: Locations) -> None:
        raise AssertionError("a record has no code")

    return replace(step, emit=emit, parts=(), reads=(), writes=(), divide=None, body=None)
