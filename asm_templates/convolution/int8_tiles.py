"""Dense int8 convolution by tiles of sums, which fill the registers: rows by positions.

    emit_tiles      the kernel, either way
    ByteTileCode    positions in the lanes: four rows by 64 positions
    TurnedTileCode  rows in the lanes: up to fourteen positions by 32 rows

Rows share quads (`int8_convolution`). Where most weights are not 0, nearly every quad has one. A
quad, positions in the lanes:

    x0 .. x3         = four inputs at 64 positions, interleaved, or loaded where x lies by fours
    w                = four weights of a row               vpbroadcastd zmm28, [rsi+4*row]
    sum0 .. sum3    += vpdpbusd x0 .. x3, w                row by row

Or rows in the lanes, so that nothing is computed in gaps between the rows of a small image:

    w0, w1           = four weights of 32 rows             vmovdqu64 zmm28, [rsi+4]
    x                = four channels at a position         vpbroadcastd zmm30, [r8+rax+4*p]
    sum0, sum1      += vpdpbusd x, w0, w1                  position by position

Sums go through the stack, where sums with rows in their lanes are transposed.
"""

from typing import NamedTuple

from sparsejit.asm_templates.convolution.int8_convolution import (
    AT,
    ENTRIES_BYTES,
    FRAME,
    FRAME_BYTES,
    ORDER,
    QUAD,
    ROW,
    ROWS_IN_LANES,
    LoweredQuads,
    QuadCode,
    emit_code,
)
from sparsejit.asm_templates.convolution.int8_planes import LINE, BytePlanes, load_order
from sparsejit.asm_templates.shared.interleave import interleaved, transposed
from sparsejit.asm_templates.shared.loops import counted_down, repeat
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
    r8,
    r9,
    r10,
    r11,
    r15,
    rax,
    rcx,
    rsp,
    zmm,
)
from sparsejit.x86.routines import make_room

LANES = 16  # of a vector of sums
VECTORS = LINE // LANES
ROWS_OF_TILE = 4
POSITIONS = 14  # of a tile with rows in its lanes
_MOST_POSITIONS = 512  # of an image with rows in the lanes: their sums take 64 KB
_SUMS_PLACE = LINE * ceil_div(FRAME_BYTES, LINE)  # from rsp
_POSITION_BYTES = 4 * ROWS_IN_LANES  # of the sums at a position
_TILE_X, _TILE_SUMS, _TILES = r8, r9, r10
# Registers that transpose sums, beside the constants of the ends of rows.
_SQUARE = tuple(zmm(number) for number in (*range(11), 12, 13, 14, 16, 17))
_SPARE = zmm(18)


def last_width(y: BytePlanes) -> int:
    """Return the vectors of sums, 1, 2 or 4, that a tile computes at the last positions."""
    vectors = ceil_div((y.used - 1) % LINE + 1, LANES)
    return vectors if vectors <= VECTORS // 2 else VECTORS


def emit_tiles(asm: Assembler, lowered: LoweredQuads) -> None:
    """Append the dense int8 convolution; the operands are as for `emit_quads`."""
    code = TurnedTileCode if lowered.form.is_turned else ByteTileCode
    emit_code(asm, lowered, code(asm, lowered))


class _SpilledCode(QuadCode):
    """Common to both ways: the sums of a tile go through the stack."""

    def _make_room(self) -> None:
        asm = self.asm
        asm.emit("mov", r15, rsp)
        make_room(asm, _SUMS_PLACE + self._room)
        asm.emit("mov", FRAME.stack, r15)

    @property
    def _room(self) -> int:
        """Bytes of the sums."""
        raise NotImplementedError

    def _load_constants(self) -> None:
        if self.sum_results is None:
            self.results.load_constants(rcx)

    def _load_mask(self) -> None:
        """Nothing: sums use the registers."""

    def _load_ends(self) -> None:
        """Load the constants that the ends of rows keep in registers."""
        if self.sum_results is None:
            self.asm.emit("mov", rax, FRAME.constants)
            self.results.load_constants(rax)
        load_order(self.asm, ORDER)


class ByteTileCode(_SpilledCode):
    """Appends the code of rows that share quads by up to 64 positions."""

    _INPUTS = tuple(zmm(number) for number in range(24, 28))
    _WEIGHTS = tuple(zmm(number) for number in range(28, 32))
    _PAIRS = tuple(zmm(number) for number in range(20, 24))
    _SUMS, _END = r8, r9

    def __init__(self, asm: Assembler, lowered: LoweredQuads, width: int = VECTORS) -> None:
        super().__init__(asm, lowered)
        self.width = width
        if width == VECTORS and self.form.fours and last_width(self.y) < VECTORS:
            self.last = ByteTileCode(asm, lowered, last_width(self.y))
            self.whole_vectors -= 1

    @property
    def sums(self) -> list[list[Register]]:
        """The registers of the sums of each row, of 16 positions each."""
        rows, first = range(self.form.together), range(self.width)
        return [[zmm(self.width * row + number) for number in first] for row in rows]

    @property
    def _room(self) -> int:
        return LINE * self.form.together * self.width

    def _finish(self) -> None:
        asm, again = self.asm, self.asm.label("row of the tile")
        flat = [total for sums in self.sums for total in sums]
        for number, total in enumerate(flat):
            asm.emit("vmovdqa64", Memory(rsp, _SUMS_PLACE + LINE * number), total)
        self._load_ends()
        QuadCode._load_mask(self)
        asm.emit("lea", self._SUMS, Memory(rsp, _SUMS_PLACE))
        asm.emit("lea", self._END, Memory(rsp, _SUMS_PLACE + self._room))
        sums = [zmm(number) for number in range(self.width)]
        asm.bind(again)
        for number, total in enumerate(sums):
            asm.emit("vmovdqa64", total, Memory(self._SUMS, LINE * number))
        self._finish_row(sums, ORDER if self.form.fours else None)
        asm.emit("add", self._SUMS, LINE * self.width)
        asm.emit("cmp", self._SUMS, self._END)
        asm.jump("jb", again)

    def _quad(self, place: int) -> None:
        asm, inputs = self.asm, self._INPUTS[: self.width]
        self._load_inputs(place, inputs)
        if not self.form.fours:
            for _ in interleaved(asm, inputs, self._PAIRS):
                pass
        for row, sums in enumerate(self.sums):
            weight = self._WEIGHTS[row % len(self._WEIGHTS)]
            first = place + 4 * self.form.offsets
            asm.emit("vpbroadcastd", weight, Memory(AT.quads, first + 4 * row))
            for total, four in zip(sums, inputs, strict=True):
                asm.emit("vpdpbusd", total, four, weight)


class TurnedRows(NamedTuple):
    """Rows of an image that a tile with rows of W in its lanes computes at once.

    turns: tiles, one below the other.
    """

    rows: int
    turns: int


def turned_rows(y: BytePlanes) -> list[TurnedRows]:
    """Return the kinds of tiles of an image that `turns_fit`."""
    rows = min(y.rows, POSITIONS // y.columns)
    whole, rest = divmod(y.rows, rows)
    return [TurnedRows(rows, whole), *([TurnedRows(rest, 1)] if rest else [])]


def turns_fit(y: BytePlanes) -> bool:
    """Whether rows of the image are short enough, and the sums of all its positions few enough."""
    return y.columns <= POSITIONS and LINE * y.vectors <= _MOST_POSITIONS


class _TurnedTiles(_SpilledCode):
    """Appends the code of tiles of one kind: the positions of some rows of the image."""

    def __init__(self, asm: Assembler, lowered: LoweredQuads, kind: TurnedRows) -> None:
        super().__init__(asm, lowered)
        y, self.kind = self.y, kind
        self.positions = [r * y.pitch + c for r in range(kind.rows) for c in range(y.columns)]

    @property
    def sums(self) -> list[list[Register]]:
        """The registers of the sums of each position."""
        halves = range(ROWS_IN_LANES // LANES)
        return [[zmm(2 * p + half) for half in halves] for p in range(len(self.positions))]

    def emit_tiles(self) -> None:
        """Append all tiles, for rows whose quads begin at `FRAME.unit`."""
        repeat(self.asm, self.kind.turns, _TILES, self._tile)

    def _tile(self) -> None:
        self.asm.emit("mov", AT.quads, FRAME.unit)
        self._row()

    def _finish(self) -> None:
        asm, step = self.asm, self.kind.rows * self.y.pitch
        for position, sums in zip(self.positions, self.sums, strict=True):
            for half, total in enumerate(sums):
                place = _POSITION_BYTES * position + LINE * half
                asm.emit("vmovdqa64", Memory(_TILE_SUMS, place), total)
        asm.emit("add", _TILE_X, QUAD * step)
        asm.emit("add", _TILE_SUMS, _POSITION_BYTES * step)

    def _quad(self, place: int) -> None:
        asm, weights = self.asm, (zmm(28), zmm(29))
        self._load_offsets(place)
        for half, weight in enumerate(weights):
            asm.emit("vmovdqu64", weight, Memory(AT.quads, place + 4 + LINE * half))
        for position, sums in zip(self.positions, self.sums, strict=True):
            four = zmm(30 + position % 2)
            asm.emit("vpbroadcastd", four, Memory(_TILE_X, QUAD * position, rax))
            for total, weight in zip(sums, weights, strict=True):
                asm.emit("vpdpbusd", total, four, weight)


class TurnedTileCode(_SpilledCode):
    """Appends the code of 32 rows in the lanes, by the positions of a few rows of the image."""

    def __init__(self, asm: Assembler, lowered: LoweredQuads) -> None:
        super().__init__(asm, lowered)
        self.kinds = [_TurnedTiles(asm, lowered, each) for each in turned_rows(self.y)]
        self.entries = self.kinds[0].entries
        self.turned_place = _SUMS_PLACE + LINE * self.y.vectors * _POSITION_BYTES
        self.key = *("turned", self.y.rows, self.y.columns, self.y.pitch), self.key

    @property
    def _room(self) -> int:
        return self.turned_place - _SUMS_PLACE + LANES * VECTORS * LINE

    def _sample(self) -> None:
        self._rows()
        self.asm.emit("add", AT.x, self.x.sample)
        self._move_y(self.y.sample)

    def _row(self) -> None:
        """Compute the rows that share quads, at all positions."""
        asm = self.asm
        for slot, register in ((FRAME.unit, AT.quads), (FRAME.entry, r11), (FRAME.before, r15)):
            asm.emit("mov", slot, register)
        asm.emit("mov", _TILE_X, AT.x)
        asm.emit("lea", _TILE_SUMS, Memory(rsp, _SUMS_PLACE))
        for number, kind in enumerate(self.kinds):
            if number:
                asm.emit("add", r11, ENTRIES_BYTES)
            kind.emit_tiles()
        self._load_ends()
        for half in range(ROWS_IN_LANES // LANES):
            self._finish_half(half)
        asm.emit("mov", r11, FRAME.entry)
        asm.emit("mov", r15, FRAME.before)

    def _finish_half(self, half: int) -> None:
        """Turn the sums of 16 rows into bytes."""
        asm, ends, y = self.asm, LANES * ROW.itemsize, self.y
        asm.emit("lea", _TILE_SUMS, Memory(rsp, _SUMS_PLACE + LINE * half))
        asm.emit("mov", AT.masks, FRAME.masks)
        with counted_down(asm, dword(r10), y.vectors):
            self._transpose()
            QuadCode._load_mask(self)
            asm.emit("lea", r8, Memory(rsp, self.turned_place))
            with counted_down(asm, dword(r15), LANES):
                self._finish_turned()
            asm.emit("sub", AT.rows, ends)
            self._move_y(LINE)
            asm.emit("add", AT.masks, LINE)
        asm.emit("add", AT.rows, ends)
        self._move_y(-LINE * y.vectors)

    def _transpose(self) -> None:
        """Transpose the sums of 64 positions by 16 rows of W, from `_TILE_SUMS` on."""
        asm = self.asm
        asm.emit("lea", r8, Memory(rsp, self.turned_place))
        with counted_down(asm, dword(rcx), VECTORS):
            for number, register in enumerate(_SQUARE):
                asm.emit("vmovdqa64", register, Memory(_TILE_SUMS, _POSITION_BYTES * number))
            for number, register in enumerate(transposed(asm, list(_SQUARE), _SPARE)):
                asm.emit("vmovdqa64", Memory(r8, LINE * VECTORS * number), register)
            asm.emit("add", _TILE_SUMS, _POSITION_BYTES * LANES)
            asm.emit("add", r8, LINE)

    def _finish_turned(self) -> None:
        asm, sums = self.asm, [zmm(number) for number in range(VECTORS)]
        for number, total in enumerate(sums):
            asm.emit("vmovdqa64", total, Memory(r8, LINE * number))
        self._finish_row(sums, ORDER)
        asm.emit("add", r8, LINE * VECTORS)

    def _entries(self) -> None:
        for kind in self.kinds:
            kind.append_entries()
