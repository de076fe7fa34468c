"""Tiles of a batch on several threads: each takes its turn with every n-th tile, in its own memory.

    thread 0   tile 0, tile 2, tile 4 ...        workspace of thread 0
    thread 1   tile 1, tile 3, tile 5 ...        workspace of thread 1

No thread reads memory that another writes, and all run the same code: a tile has the same bits as
on one thread. The caller's workspace holds the workspaces of the threads, one behind another.
Thread 0 runs the samples that fill no tile.
"""

from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.lowering.batch_rest import BatchRest
from sparsejit.lowering.lowered_model import LoweredModel
from sparsejit.lowering.model import SAVED, ModelCode, move_by_samples
from sparsejit.lowering.threads.wave_code import emit_thread
from sparsejit.runtime.common_weights import CommonWeights
from sparsejit.runtime.program import Program, build
from sparsejit.runtime.workers import CALLING_NS, NativePart, pool
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, dword, r12, r13, r14, rax, rbx, rcx, rdi, rdx, rsi
from sparsejit.x86.stack import pop, push

# The caller's tables, and the batch's number of samples, while threads run tiles.
_INPUTS, _OUTPUTS, _SAMPLES = r12, r13, r14


def build_shared_tiles(
    lowered: LoweredModel,
    name: str,
    listed: bool = False,
    common: CommonWeights | None = None,
) -> Program:
    """Build `int run(inputs, outputs, workspace, samples)`; all threads use parts of the workspace.

    `listed` and `common` are as in `build`.
    """
    emit = _SharedTiles(lowered).emit
    return build(name, lowered.options.target, emit, lowered.ask_ahead, listed, common)


def shared_workspace_bytes(lowered: LoweredModel) -> int:
    """Bytes of workspace that a call needs."""
    return _threads_bytes(lowered) + _rest_of(lowered).room_bytes


def _threads_bytes(lowered: LoweredModel) -> int:
    return lowered.workspace_bytes * lowered.options.threads


def _rest_of(lowered: LoweredModel) -> BatchRest:
    return BatchRest.of(lowered, 1, _threads_bytes(lowered))


class _SharedTiles(ModelCode):
    """Appends the function's code: it sets up all workspaces; an inner function runs the tiles."""

    def __init__(self, lowered: LoweredModel) -> None:
        super().__init__(lowered, None)
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
        run, done, rest = asm.label("run rest"), asm.label("no rest"), _rest_of(self.lowered)
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
            fine = asm.label("indices in range")
            asm.emit("mov", rcx, Memory(rbx, offset + self.lowered.status_offset))
            asm.emit("test", rcx, rcx)
            asm.jump("jz", fine)
            asm.emit("mov", rax, rcx)
            asm.bind(fine)

    def _emit_dispatcher(self, asm: Assembler, dispatch: Label, thread: Label) -> None:
        workers = pool()
        workers.require(self.tile_step - 1)
        asm.align(64)
        asm.bind(dispatch)
        parts = [NativePart(thread, 0, offset) for offset in self.workspaces]
        workers.emit_dispatcher(asm, parts, max(self.lowered.ns, CALLING_NS))
