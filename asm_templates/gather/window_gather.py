"""The gather kernel: every lane picks its own inputs out of registers of x, whatever they hold.

    for each window of x                     the inputs that registers hold at a time
        load the inputs
        for each piece of the window         a batch of outputs: code that runs `fold` times
            sums = start, or the partial sums in y
            steps                            index, permute, multiply and add
            add the accumulators of each sum
            store partial sums in y; or exchange outputs into the order of y, and store them

`Elements` defines the steps, the inputs and the conversion of sums to outputs.
"""

import itertools
from typing import Generic, Protocol

from sparsejit.asm_templates.gather.pieces import GatherLayout, Piece, ReadsT
from sparsejit.asm_templates.shared import rows
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.rows import vector
from sparsejit.ir.spec import MatVec
from sparsejit.x86.assembler import Assembler, Line
from sparsejit.x86.operands import Memory, Register, dword, rcx, rsi, rsp

_RUNS_LEFT = rcx
_WAITING_BYTES = 64  # of the sums that y has no room for, at rsp


class Elements(Protocol[ReadsT]):
    """A kind of elements, float or int8, for the gather kernel: its methods append their code.

    They are called in the order of the kernel. `add`: the mnemonic that adds two sums. `free`: two
    registers that hold nothing while sums are stored. `folded_y`: the address of a run's outputs,
    which advances from run to run.
    """

    @property
    def add(self) -> str: ...

    @property
    def free(self) -> tuple[Register, Register]: ...

    @property
    def folded_y(self) -> Register: ...

    def begin(self) -> None:
        """Append code before the first window."""

    def load_inputs(self, window: int) -> None:
        """Fill the registers of x."""

    def enter(self, piece: Piece[ReadsT]) -> None:
        """Append code before the first run of a piece."""

    def start_sums(self, piece: Piece[ReadsT], sums: list[Register]) -> None:
        """Set the sums before any step, in the first window."""

    def steps(self, piece: Piece[ReadsT]) -> list[Line]:
        """Return the lines of a piece's steps, with arrays that have an entry for each step."""
        ...

    def finish(self, piece: Piece[ReadsT], sums: list[Register]) -> None:
        """Turn sums into outputs, as far as that can be done in registers."""

    def load_exchange(self, piece: Piece[ReadsT], number: int, register: Register) -> None:
        """register = one of the vectors of indices that exchange sums; called in order."""

    def leave(self, piece: Piece[ReadsT]) -> None:
        """Append code after each run of a piece."""

    def end(self) -> None:
        """Append code after the last window, when all outputs lie in y."""


class GatherKernel(Generic[ReadsT]):
    """Appends the code of a layout. x and y must not overlap: y may hold partial sums."""

    def __init__(
        self,
        asm: Assembler,
        spec: MatVec,
        layout: GatherLayout[ReadsT],
        elements: Elements[ReadsT],
    ) -> None:
        self.asm = asm
        self.spec = spec
        self.layout = layout
        self.elements = elements
        self.lanes = asm.target.lanes

    def emit(self) -> None:
        """Append the code of all windows, one after the other."""
        waits = self.layout.windows.number > 1
        self.asm.count(steps=self.layout.steps)
        if waits:
            self.asm.emit("sub", rsp, _WAITING_BYTES)
        self.elements.begin()
        for window in range(self.layout.windows.number):
            self.elements.load_inputs(window)
            for piece in self.layout.pieces_of(window):
                self._piece(piece)
        self.elements.end()
        if waits:
            self.asm.emit("add", rsp, _WAITING_BYTES)

    def _piece(self, piece: Piece[ReadsT]) -> None:
        """Run a piece's code once, or `fold` times while y and the streams advance."""
        asm, panel, folded_y = self.asm, piece.panel, self.elements.folded_y
        first, length = panel.first_of(piece.batch) * self.lanes, panel.accumulators * self.lanes
        self.elements.enter(piece)
        if panel.fold == 1:
            self._run(piece, rsi, first, self.spec.out_features)
            return
        asm.emit("lea", folded_y, Memory(rsi, 4 * first))
        with counted_down(asm, dword(_RUNS_LEFT), panel.fold):
            self._run(piece, folded_y, 0, length)
            asm.emit("add", folded_y, 4 * length)

    def _run(self, piece: Piece[ReadsT], y: Register, first: int, length: int) -> None:
        """Append one run of a piece: its sums for the outputs of y from `first` on.

        y has `length` outputs.
        """
        asm, elements, numbers = self.asm, self.elements, piece.accumulators
        sums = [vector(asm, int(registers[0])) for registers in numbers]
        places = [first + position * self.lanes for position in range(len(sums))]
        waiting = [
            rows.waiting_place(register, y, place, length)
            for register, place in zip(sums, places, strict=True)
        ]
        if piece.window > 0:
            for register, memory in zip(sums, waiting, strict=True):
                asm.emit("vmovups", register, memory)
        else:
            elements.start_sums(piece, sums)
        others = [
            (register, vector(asm, int(other)))
            for register, registers in zip(sums, numbers, strict=True)
            for other in registers[1:]
        ]
        for _, other in others:
            rows.zero(asm, other)
        asm.stamp(piece.count, elements.steps(piece))
        for register, other in others:
            asm.emit(elements.add, register, register, other)
        if piece.window < self.layout.windows.number - 1:
            for register, memory in zip(sums, waiting, strict=True):
                asm.emit("vmovups", memory, register)
        else:
            elements.finish(piece, sums)
            self._store(self._in_order(piece, sums), y, places, length)
        elements.leave(piece)

    def _in_order(self, piece: Piece[ReadsT], sums: list[Register]) -> list[Register]:
        """Undo the layout's order of rows by exchanges between vectors, where sums are whole."""
        numbers = itertools.count()
        return rows.exchange(
            self.asm,
            sums,
            piece.stages,
            self.elements.free,
            lambda register: self.elements.load_exchange(piece, next(numbers), register),
        )

    def _store(self, sums: list[Register], y: Register, places: list[int], length: int) -> None:
        for register, place in zip(sums, places, strict=True):
            rows.store(self.asm, register, y, place, length, self.elements.free[1])
