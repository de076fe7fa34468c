"""Copies between a matrix in memory and the panels of a batch kernel: transposed or as it is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sparsejit.asm_templates.shared.interleave import transposed
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.masks import lane_mask, load_masked, set_tail_mask, store_masked
from sparsejit.asm_templates.shared.padding import DENSE, StridePadding
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, Register, dword, k, r8, r9, r10, xmm

_LOAD_MASK, _STORE_MASK = k(5), k(6)
_SOURCE, _DESTINATION, _LEFT = r8, r9, r10


@dataclass(frozen=True)
class MatrixPlace:
    """A matrix in memory: a base register, the offset of its first element, bytes from row to row.

    If `padded`, rows may be written up to a whole number of vectors. If `padding` is not dense,
    unused rows lie between runs of rows.
    """

    base: Register
    pitch: int
    offset: int = 0
    padded: bool = False
    padding: StridePadding = DENSE

    def bytes_to(self, row: int) -> int:
        """Return the bytes from the first row of a run to the row `row` rows later."""
        return self.padding.place(row) * self.pitch

    def row(self, number: int) -> "MatrixPlace":
        """Return the place of the matrix that begins with row `number`."""
        return replace(self, offset=self.offset + number * self.pitch)

    def column(self, number: int) -> "MatrixPlace":
        """Return the place of the matrix that begins with column `number`."""
        return replace(self, offset=self.offset + 4 * number)


def transpose(
    asm: Assembler, source: MatrixPlace, destination: MatrixPlace, rows: int, columns: int
) -> None:
    """destination (columns, rows) = source (rows, columns), one of which is at most `lanes`.

    A padded destination gets zeros after `rows`. Clobbers rax, r8-r10 and all vectors.
    """
    lanes = asm.target.lanes
    tall = rows > lanes
    step = (source.pitch * lanes, 4 * lanes) if tall else (4 * lanes, destination.pitch * lanes)

    def square(count: int) -> None:
        height, width = (count, columns) if tall else (rows, count)
        pitches = source.pitch, destination.pitch, destination.padded
        asm.append_known(
            ("square", height, width, *pitches),
            lambda: _square(asm, source, destination, height, width),
        )

    _point(asm, source, destination)
    squares, rest = divmod(rows if tall else columns, lanes)
    _repeat(asm, squares, lambda: square(lanes), step)
    if rest:
        square(rest)


def copy(
    asm: Assembler,
    source: MatrixPlace,
    destination: MatrixPlace,
    rows: int,
    vectors: Sequence[tuple[int, int]],
    columns: int | None = None,
) -> None:
    """Append code that copies some vectors of every row of a matrix.

    `vectors`: for each, its byte offsets in a row of the source and of the destination. If there is
    only one vector, and it is not full, `columns` elements are copied, and zeros follow them in a
    padded destination. Clobbers rax, r8-r10 and some vectors.
    """
    whole = columns is None
    masks = Masks(asm, columns or 0, columns or 0)

    def turn(count: int) -> None:
        moves = [(row, pair) for row in range(count) for pair in vectors]
        for number, (row, (start, _)) in enumerate(moves):
            place = Memory(_SOURCE, source.bytes_to(row) + start)
            masks.load(vector(asm, number), place, whole)
        for number, (row, (_, start)) in enumerate(moves):
            place = Memory(_DESTINATION, destination.bytes_to(row) + start)
            masks.store(place, vector(asm, number), whole or destination.padded)

    _point(asm, source, destination)
    run = destination.padding.run
    at_once = max(1, asm.target.vector_registers // 2 // len(vectors) // run) * run
    turns, rest = divmod(rows, at_once)
    step = (source.bytes_to(at_once), destination.bytes_to(at_once))
    _repeat(asm, turns, lambda: turn(at_once), step)
    turn(rest)


class Masks:
    """Loads and stores of whole vectors, or of the first few lanes."""

    def __init__(self, asm: Assembler, load_lanes: int, store_lanes: int) -> None:
        self.asm = asm
        self.wide = asm.target.isa == "avx512"
        if self.wide:
            for lanes, mask in ((load_lanes, _LOAD_MASK), (store_lanes, _STORE_MASK)):
                set_tail_mask(asm, lanes, mask)
        else:
            self.bits = lane_mask(asm, load_lanes)
        self.store_lanes = store_lanes

    def load(self, register: Register, place: Memory, whole: bool) -> None:
        if whole:
            self.asm.emit("vmovups", register, place)
        elif self.wide:
            load_masked(self.asm, register, _LOAD_MASK, place)
        else:
            mask = vector(self.asm, self.asm.target.vector_registers - 1)
            self.asm.emit("vmovups", mask, self.bits)
            load_masked(self.asm, register, mask, place)

    def store(self, place: Memory, register: Register, whole: bool) -> None:
        if whole:
            self.asm.emit("vmovups", place, register)
        elif self.wide:
            store_masked(self.asm, place, _STORE_MASK, register)
        else:
            self._store_in_parts(place, register)

    def _store_in_parts(self, place: Memory, register: Register) -> None:
        """AVX2: store four, two and one lane, as masked stores are slow; clobbers the register."""
        low, displacement = xmm(register.number), place.displacement
        for lanes, store in ((4, "vmovups"), (2, "vmovlps"), (1, "vmovss")):
            if not self.store_lanes & lanes:
                continue
            self.asm.emit(store, Memory(place.base, displacement), low)
            displacement += 4 * lanes
            if lanes == 4:
                self.asm.emit("vextractf128", low, register, 1)
            elif lanes == 2:
                self.asm.emit("vpermilps", low, low, 0b10)


def _point(asm: Assembler, source: MatrixPlace, destination: MatrixPlace) -> None:
    asm.emit("lea", _SOURCE, Memory(source.base, source.offset))
    asm.emit("lea", _DESTINATION, Memory(destination.base, destination.offset))


def _repeat(
    asm: Assembler, times: int, body: Callable[[], None], step: tuple[int, int]
) -> None:
    """Run `body` `times` times; the source and the destination advance by `step` bytes."""
    if times == 0:
        return
    with counted_down(asm, dword(_LEFT), times):
        body()
        asm.emit("add", _SOURCE, step[0])
        asm.emit("add", _DESTINATION, step[1])


def _square(
    asm: Assembler, source: MatrixPlace, destination: MatrixPlace, height: int, width: int
) -> None:
    """Transpose `height` rows of `width` elements, each at most `lanes`."""
    lanes = asm.target.lanes
    masks = Masks(asm, width % lanes, height % lanes)
    registers = [vector(asm, number) for number in range(lanes)]
    for row, register in enumerate(registers):
        if row < height:
            masks.load(register, Memory(_SOURCE, row * source.pitch), width == lanes)
        else:
            zero(asm, register)
    columns = transposed(asm, registers, vector(asm, lanes))
    for column in range(width):
        place = Memory(_DESTINATION, column * destination.pitch)
        masks.store(place, columns[column], height == lanes or destination.padded)
