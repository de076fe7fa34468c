"""Lower a graph to kernels in order and one workspace; build all of it as one native function.

    int run(const void *const *inputs, void *const *outputs, void *workspace, int64 samples)

The workspace begins with the pointers of inputs and outputs, then the number of samples left; where
the batch is free, each tile advances the pointers. rbp holds the workspace throughout.

The function returns its status, which the workspace holds after the number of samples: 0, or 1 +
the number of a step that found an index out of range; outputs are undefined then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from sparsejit.asm_templates.shared.location import (
    WORKSPACE,
    ByPointer,
    InPool,
    InWorkspace,
    Location,
)
from sparsejit.ir.graph import Graph, Node
from sparsejit.lowering.context import CommonMatrices, Lowering, ModelOptions, Progress
from sparsejit.lowering.empty import is_empty
from sparsejit.lowering.joint_end import common_matrices, joint_end
from sparsejit.lowering.kept_weights import KeptWeights
from sparsejit.lowering.lowered_model import POINTER, JointEnd, LoweredModel, header_bytes
from sparsejit.lowering.memory.storage import (
    ConstantBuffer,
    InputBuffer,
    OutputBuffer,
    View,
)
from sparsejit.lowering.memory_plan import plan_memory, plan_regions
from sparsejit.lowering.probes import Probe
from sparsejit.lowering.registry import lowerings
from sparsejit.lowering.sample_turns import (
    MOST_IN_TURN,
    SampleTurns,
    bytes_of_turns,
    first_of_turns,
)
from sparsejit.lowering.selection import unread_bytes
from sparsejit.lowering.shared_bodies import SharedBodies
from sparsejit.lowering.step import Locations, StatusWord, Step
from sparsejit.lowering.threads.crew import ScheduledStep
from sparsejit.lowering.threads.wave_code import emit_wave
from sparsejit.lowering.threads.waves import schedule
from sparsejit.planner.choice import about, record_all, recording
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


def lower_model(
    graph: Graph,
    options: ModelOptions,
    progress: Progress = lambda stage, share: None,
    tile: int | None = None,
    kept: KeptWeights | None = None,
    joins: bool = False,
    common: CommonMatrices | None = None,
) -> LoweredModel:
    """Choose a kernel for every node and a place for every buffer.

    The graph is of `tile` samples where the batch is free; `kept` holds weights as other code of
    the model prepared them. If `joins`, a function of one sample also gets last layers for several
    samples, if these gain; both share the matrices in `common`. Raises InvalidInput or CompileError
    for a node that no kernel can compute.
    """
    if not options.weight_bytes:
        matrices = [array for array in graph.constants.values() if array.ndim > 1]
        found = sum(weight_bytes(int(np.count_nonzero(each)), each.nbytes) for each in matrices)
        options = replace(options, weight_bytes=found - unread_bytes(graph))
    joins = joins and tile == 1 and not options.exact and options.threads == 1
    common = common_matrices(graph, options) if joins else common
    low = Lowering(graph, options, kept, common)
    with recording() as record:
        record_all(graph.decisions)
        _append_steps(low, progress)
        about("")
        waves = schedule(low.steps, options.threads_a_tile, WavePrices.on(options.target))
        end = _end_of(low) if joins else None
    steps, run = tuple(low.steps), [[[t.step for t in each] for each in w.threads] for w in waves]
    first = first_of_turns(steps, options) if tile == 1 else None
    made = partial(LoweredModel, graph, options, steps, waves, decisions=record.decisions)
    if first is None or (end is not None and end.first < first):
        return made(plan_memory(run), tile or 1, None, end)
    own_bytes, most_bytes = header_bytes(graph, waves, end), bytes_of_turns(options)
    regions = plan_regions(run, first, own_bytes, most_bytes, MOST_IN_TURN)
    turns = SampleTurns(first, regions.samples, regions.stride)
    return made(regions.plan, 1, turns, end)


def _append_steps(low: Lowering, progress: Progress) -> None:
    """Append the steps of all nodes, and the copies to the caller's arrays for outputs."""
    graph = low.graph
    for number, node in enumerate(graph.nodes):
        progress(f"choosing a kernel for {node.outputs[0].origin.name}", number / len(graph.nodes))
        about(node.outputs[0].origin.layer)
        if node in low.feature_major.between:
            if not low.is_open(node.output):  # the result of an attention of columns is
                low.bind_later(node.output, partial(_view_of, low, node))
        elif not is_empty(low, node):
            lowerings()[type(node.op)](low, node)
    for number, value in enumerate(graph.outputs):
        if not value.type.size:
            continue
        view = low.view(value)
        if not _is_there(view, number):
            wanted = View.whole(OutputBuffer(value.type.bytes, number), value.type)
            low.copy(view, wanted, value.origin)


def _view_of(low: Lowering, node: Node) -> View:
    """Lower a view operator whose result is read after all, and return the result's view."""
    lowerings()[type(node.op)](low, node)
    return low.view(node.output)


def _end_of(low: Lowering) -> JointEnd | None:
    def several(graph: Graph, tile: int) -> LoweredModel:
        return lower_model(graph, low.options, tile=tile, kept=low.kept, common=low.common)

    return joint_end(low, several)


def _is_there(view: View, number: int) -> bool:
    """Whether a view is the caller's whole array for an output already, in row-major order."""
    buffer = view.buffer
    return isinstance(buffer, OutputBuffer) and buffer.number == number and view.is_whole


def build_model(
    lowered: LoweredModel, name: str, probe: Probe | None = None, listed: bool = False
) -> Program:
    """Build the native function for whole tiles; with a probe, one for timing its steps.

    `listed` is as in `build`.
    """
    code = ModelCode(lowered, probe)
    return build(name, lowered.options.target, code.emit, lowered.ask_ahead, listed)


class ModelCode:
    """Appends the function's code; subclasses change it for loops, turns and shared tiles."""

    tile_step = 1  # distance between two tiles that the same thread runs, in tiles

    def __init__(
        self, lowered: LoweredModel, probe: Probe | None, beside: Sequence[Step] = ()
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
        end, done = asm.label("end of tile"), asm.label("done")
        asm.emit("mov", rax, self.left)
        asm.emit("cmp", rax, self.lowered.tile)
        asm.jump("jl", done)
        asm.bind(start)
        self._probe(asm, 0, end)
        for number, wave in enumerate(self.lowered.waves):
            self.hand_over(asm, number, end)
            if wave.is_shared:
                self._share(asm, number)
            else:
                self._run(asm, wave.steps)
            self._probe(asm, number + 1, end)
        asm.bind(end)
        self._advance(asm)
        self._repeat(asm, start)
        asm.bind(done)

    def run_steps(self, asm: Assembler) -> None:
        """Append all steps of one tile, on one thread; pointers and samples left do not change."""
        for wave in self.lowered.waves:
            self._run(asm, wave.steps)

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

    def _repeat(self, asm: Assembler, again: Label) -> None:
        """Subtract the tile from the samples left; if a tile is left, repeat. Clobbers rax."""
        tile = self.lowered.tile
        asm.emit("mov", rax, self.left)
        asm.emit("sub", rax, self.tile_step * tile)
        asm.emit("mov", self.left, rax)
        asm.emit("cmp", rax, tile)
        asm.jump("jge", again)

    def hand_over(self, asm: Assembler, number: int, behind: Label) -> None:
        """Before step `end.first`: if the joint end replaces it, copy the end's inputs and jump."""
        end = self.lowered.end
        if end is None or number != end.first:
            return
        alone = asm.label("alone")
        asm.emit("mov", rax, self.joint)
        asm.emit("test", rax, rax)
        asm.jump("jz", alone)
        self.copy_for_end(asm, end)
        asm.jump("jmp", behind)
        asm.bind(alone)

    def copy_for_end(self, asm: Assembler, end: JointEnd) -> None:
        """Copy one sample's inputs of the joint end to where it reads them."""
        for step in end.copies:
            status = StatusWord(self.lowered.status_offset, 0)
            places = self._places(asm, step.reads), self._places(asm, step.writes)
            step.emit(asm, Locations(*places, InWorkspace(0), status))

    def _advance(self, asm: Assembler) -> None:
        """Advance the pointers of inputs and outputs to the next tile."""
        for number in range(len(self.lowered.operand_bytes)):
            self.move_on(asm, number, self.tile_step)

    def move_on(self, asm: Assembler, number: int, tiles: int = 1) -> None:
        """Advance the pointer of an operand, inputs first, by some tiles. Clobbers rax."""
        sample_bytes = self.lowered.operand_bytes[number]
        asm.emit("mov", rax, self._slot(number))
        asm.emit("add", rax, tiles * self.lowered.tile * sample_bytes)
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
        """Append a wave as a function that starts the steps of each thread."""
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
    """Advance operands' pointers by rax samples, given each one's bytes a sample. Clobbers rcx."""
    for number, size in enumerate(operand_bytes):
        slot = Memory(WORKSPACE, POINTER * number)
        asm.emit("mov", dword(rcx), size)
        asm.emit("imul", rcx, rax)
        asm.emit("add", rcx, slot)
        asm.emit("mov", slot, rcx)
