"""Build the native function of a model, which runs any batch in tiles.

    int run(const void *const *inputs, void *const *outputs, void *workspace, int64 samples)

On one thread, or where threads share the kernels of each tile, the function has the code of several
forms, and runs a batch in tiles that fit it:

    while 16 samples are left: run a tile of 16
    if 6 or more are left: run a tile of 16 once more
    while a sample is left: run a tile of 1

The order in which a sample's terms are summed depends on the tile. Where a sample must have the
same bits in any batch, there is only one tile.

Where threads take turns with tiles, each runs every n-th tile, in its own memory (`_SharedTiles`):

    thread 0   tile 0, tile 2, tile 4 ...        workspace of thread 0
    thread 1   tile 1, tile 3, tile 5 ...        workspace of thread 1

No thread reads memory that another writes, and all run the same code: a tile has the same bits as
on one thread. The caller's workspace holds the workspaces of the threads, one behind another.
Thread 0 runs the samples that fill no tile.

The samples left after the last whole tile run as one more tile, with the same bits as any tile
(`_BatchRest`):

    the batch has a tile or more    the tile that ends where the batch ends; some samples run again
    it has less                     a tile of copies, in which the last sample fills the places left
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.lowering.memory_plan import aligned
from sparsejit.lowering.model_code import (
    SAVED,
    ModelCode,
    code_of,
    copy_samples,
    gather_status,
    move_by_samples,
)
from sparsejit.lowering.model_schedule import POINTER, ModelSchedule
from sparsejit.lowering.threads.waves import emit_thread
from sparsejit.planner.sample_plan import fewest_samples
from sparsejit.runtime.program import CommonWeights, Program, build
from sparsejit.runtime.workers import CALLING_NS, NativePart
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, dword, r12, r13, r14, rax, rbx, rcx, rdi, rdx, rsi
from sparsejit.x86.routines import pop, push

# The caller's tables, and the batch's number of samples, while threads run tiles.
_INPUTS, _OUTPUTS, _SAMPLES = r12, r13, r14


def build_function(
    forms: Sequence[ModelSchedule],
    name: str,
    listed: bool = False,
    common: CommonWeights | None = None,
) -> Program:
    """Build the function of forms, the largest tile first. `listed`, `common` are as in `build`."""
    first = forms[0]
    shares = first.options.shares_tiles
    emit = _SharedTiles(first).emit if shares else partial(_emit_forms, forms)
    return build(name, first.options.target, emit, first.prefetch_distance, listed, common)


def function_workspace_bytes(forms: Sequence[ModelSchedule]) -> int:
    """Bytes of workspace that a call of the function needs."""
    return max(rest.places[-1] for rest in _rests(forms))


def _rests(forms: Sequence[ModelSchedule]) -> list[_BatchRest]:
    """The code that runs each form's last samples; its copy buffer lies behind all workspaces."""
    room = max(form.workspace_bytes for form in forms)
    if forms[0].options.shares_tiles:
        return [_BatchRest(forms[0], 1, room * forms[0].options.threads)]
    return [
        _BatchRest(form, _fewest(form, forms[number + 1 :]), room)
        for number, form in enumerate(forms)
    ]


def _fewest(form: ModelSchedule, smaller: Sequence[ModelSchedule]) -> int:
    """Least number of samples left for which a tile of `form` is faster than `smaller` tiles.

    `smaller` forms are given largest first.
    """
    return fewest_samples(form.time, [each.time for each in smaller[::-1]]) if smaller else 1


def _emit_forms(forms: Sequence[ModelSchedule], asm: Assembler) -> None:
    """Append the whole function of forms, except its `vzeroupper` and return."""
    codes, rests = [code_of(form) for form in forms], _rests(forms)
    codes[0].enter(asm)
    rests[0].begin(asm)
    for code, rest in zip(codes, rests, strict=True):
        start = asm.label(f"tiles of {rest.tile}")
        code.run_tiles(asm, start)
        if rest.tile > 1:
            rest.finish(asm)
            rest.prepare(asm, start)
    codes[0].leave(asm)


class _BatchRest:
    """Code around a tile's code, which runs the samples left after the last whole tile.

    Copies of inputs, and the outputs computed from them, lie in a copy buffer at offset `room` of
    the workspace:

    the caller's addresses of outputs | inputs | outputs

    tile: samples of a run.
    fewest: the least number of samples left that this tile runs; a smaller tile runs fewer.
    inputs, outputs: bytes of a sample in each operand; 0 for an operand that all samples share.
    places: offsets of the copies of operands, inputs first, and of the end of the last one.
    left, whole, copied: words with the number of samples that are left, that the batch has, and
    that were copied to a tile (else 0).
    """

    def __init__(self, lowered: ModelSchedule, fewest: int, room: int) -> None:
        self.tile, self.fewest, self.room = lowered.tile, fewest, room
        self.inputs, self.outputs = lowered.input_bytes, lowered.output_bytes
        self.places = [aligned(room + POINTER * len(self.outputs))]
        for each in (*self.inputs, *self.outputs):
            self.places.append(aligned(self.places[-1] + self.tile * each))
        offsets = lowered.left_offset, lowered.loop_offset, lowered.loop_offset + POINTER
        self.left, self.whole, self.copied = (Memory(WORKSPACE, each) for each in offsets)

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
            asm.emit("lea", rsi, Memory(WORKSPACE, self.places[len(self.inputs) + number]))
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
            asm.emit("lea", rdi, Memory(WORKSPACE, self.places[number]))
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
            asm.emit("lea", rax, Memory(WORKSPACE, self.places[len(self.inputs) + number]))
            asm.emit("mov", slot, rax)


class _SharedTiles(ModelCode):
    """Appends the function's code: it sets up all workspaces; an inner function runs the tiles."""

    def __init__(self, lowered: ModelSchedule) -> None:
        super().__init__(lowered)
        self.tile_step = lowered.options.threads
        size = lowered.workspace_bytes
        self.workspaces = [size * number for number in range(self.tile_step)]

    def emit(self, asm: Assembler) -> None:
        """Append the whole function, except its `vzeroupper` and return."""
        dispatch, thread, alone, done, end = map(
            asm.label, ("dispatch", "thread", "alone", "done", "end of model")
        )
        push(asm, SAVED)
        for kept, given in ((rbx, rdx), (_INPUTS, rdi), (_OUTPUTS, rsi), (_SAMPLES, rcx)):
            asm.emit("mov", kept, given)
        self._fill_workspaces(asm)
        asm.emit("mov", rdi, rbx)
        asm.emit("cmp", _SAMPLES, 2 * self.lowered.tile)
        asm.jump("jl", alone)
        asm.jump("call", dispatch)
        asm.jump("jmp", done)
        asm.bind(alone)
        asm.jump("call", thread)
        asm.bind(done)
        self._run_rest(asm, thread)
        self._gather_status(asm)
        pop(asm, SAVED)
        asm.jump("jmp", end)
        self._emit_dispatcher(asm, dispatch, thread)
        emit_thread(asm, thread, lambda: self.run_tiles(asm, asm.label("tiles")))
        asm.bind(end)

    def _fill_workspaces(self, asm: Assembler) -> None:
        """Store each thread's operand pointers, and the samples left from its first tile on."""
        for number, offset in enumerate(self.workspaces):
            asm.emit("lea", WORKSPACE, Memory(rbx, offset))
            self.copy_pointers(asm)
            for operand in range(self._pointers):
                self.move_on(asm, operand, number)
            asm.emit("lea", rax, Memory(_SAMPLES, -number * self.lowered.tile))
            asm.emit("mov", self.left, rax)
            asm.emit("xor", dword(rax), dword(rax))
            asm.emit("mov", self.status, rax)

    def _run_rest(self, asm: Assembler, thread: Label) -> None:
        """Run the samples that fill no tile, in the first workspace."""
        run, done, (rest,) = asm.label("run rest"), asm.label("no rest"), _rests([self.lowered])
        asm.emit("mov", WORKSPACE, rbx)
        asm.emit("mov", rdi, _INPUTS)
        asm.emit("mov", rsi, _OUTPUTS)
        self.copy_pointers(asm)
        asm.emit("mov", rcx, _SAMPLES)
        rest.begin(asm)
        asm.emit("mov", rax, rcx)
        asm.emit("xor", dword(rdx), dword(rdx))
        asm.emit("mov", dword(rcx), self.lowered.tile)
        asm.emit("div", rcx)
        asm.emit("mov", self.left, rdx)
        asm.emit("mov", rax, _SAMPLES)
        asm.emit("sub", rax, rdx)
        move_by_samples(asm, (*rest.inputs, *rest.outputs))
        rest.prepare(asm, run)
        asm.jump("jmp", done)
        asm.bind(run)
        asm.emit("mov", rdi, rbx)
        asm.jump("call", thread)
        rest.finish(asm)
        asm.bind(done)

    def _gather_status(self, asm: Assembler) -> None:
        """rax = the status of the first thread that found an index out of range, or 0."""
        asm.emit("xor", dword(rax), dword(rax))
        for offset in reversed(self.workspaces):
            gather_status(asm, Memory(rbx, offset + self.lowered.status_offset), rcx, rax)

    def _emit_dispatcher(self, asm: Assembler, dispatch: Label, thread: Label) -> None:
        workers = self.lowered.workers
        workers.require(self.tile_step - 1)
        asm.align(64)
        asm.bind(dispatch)
        parts = [NativePart(thread, 0, offset) for offset in self.workspaces]
        workers.emit_dispatcher(asm, parts, max(self.lowered.ns, CALLING_NS))
