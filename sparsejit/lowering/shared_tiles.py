"""Tiles of a batch on several threads: each takes its turn with every n-th tile, in its own memory.

    thread 0   tile 0, tile 2, tile 4 ...        workspace of thread 0
    thread 1   tile 1, tile 3, tile 5 ...        workspace of thread 1

No thread reads what another writes, and all run the same code: a tile has the bits that it has on
one thread. The workspace that a caller gives has those of the threads one behind another.
"""

from functools import partial

from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.lowering.model import SAVED, LoweredModel, ModelCode
from sparsejit.lowering.threads.wave_code import emit_thread
from sparsejit.runtime.program import Program, build
from sparsejit.runtime.workers import CALLING_NS, NativePart, pool
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import Memory, dword, rax, rbx, rcx, rdi, rdx
from sparsejit.x86.stack import pop, push


def build_shared_tiles(lowered: LoweredModel, name: str, listed: bool = False) -> Program:
    """`int run(inputs, outputs, workspace, tiles)` with the workspaces of all threads.

    `listed` is as in `build`.
    """
    emit = _SharedTiles(lowered).emit
    return build(name, lowered.options.target, emit, lowered.ask_ahead, listed)


class _SharedTiles(ModelCode):
    """Appends the function's code: main fills all workspaces, one function runs tiles in each."""

    def __init__(self, lowered: LoweredModel) -> None:
        super().__init__(lowered, None)
        self.tile_step = lowered.options.threads
        size = lowered.workspace_bytes
        self.workspaces = [size * number for number in range(self.tile_step)]

    def emit(self, asm: Assembler) -> None:
        """The whole function but for its `vzeroupper` and return."""
        dispatch, thread, alone, done, end = map(
            asm.label, ("dispatch", "thread", "alone", "done", "end of model")
        )
        push(asm, SAVED)
        self._fill_workspaces(asm)
        asm.emit("mov", rdi, rbx)
        asm.emit("cmp", rcx, 1)
        asm.jump("jle", alone)
        asm.jump("call", dispatch)
        asm.jump("jmp", done)
        asm.bind(alone)
        asm.jump("call", thread)
        asm.bind(done)
        self._gather_status(asm)
        pop(asm, SAVED)
        asm.jump("jmp", end)
        self._emit_dispatcher(asm, dispatch, thread)
        emit_thread(asm, thread, partial(self._run_tiles, asm))
        asm.bind(end)

    def _fill_workspaces(self, asm: Assembler) -> None:
        """Tables rdi and rsi, rcx tiles: operands and tiles of each thread. rbx = the first."""
        asm.emit("mov", rbx, rdx)
        for number, offset in enumerate(self.workspaces):
            asm.emit("lea", WORKSPACE, Memory(rbx, offset))
            self._copy_pointers(asm)
            for operand in range(self._pointers):
                asm.emit("mov", rax, self._slot(operand))
                asm.emit("add", rax, number * self._tile_bytes(operand))
                asm.emit("mov", self._slot(operand), rax)
            asm.emit("lea", rax, Memory(rcx, -number))
            asm.emit("mov", self.tiles, rax)
            asm.emit("xor", dword(rax), dword(rax))
            asm.emit("mov", self.status, rax)

    def _gather_status(self, asm: Assembler) -> None:
        """rax = that of the first thread that found an index out of range, or 0."""
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
        tile_ns = sum(step.ns for step in self.lowered.steps)
        asm.align(64)
        asm.bind(dispatch)
        parts = [NativePart(thread, 0, offset) for offset in self.workspaces]
        workers.emit_dispatcher(asm, parts, max(tile_ns, CALLING_NS))
