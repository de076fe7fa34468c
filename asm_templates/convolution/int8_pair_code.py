"""Sums of bytes by pairs of inputs with AVX2, row after row: `vpmaddubsw` without saturation.

    WeightPairs, Binned  pairs of weights of rows, in bins
    choose_shapes        the numbers of pairs in bins for which there is code
    lowered_rows         rows as the code reads them
    PairCode             the code, but for the loads of a pair

A pair is two inputs of a row, interleaved:

    x        = bytes of both inputs, side by side
    x        = two products of each pair of bytes, added      vpmaddubsw ymm10, ymm10, ymm14
    a0      += x                                              16 sums of 16 bits; a1: 16 others

All pairs of a bin are added in 16 bits; two bins a and b make sums of 32 bits:

    sum0     = vpmaddwd of vpunpcklwd a0, b0 and ones         sum1: vpunpckhwd; sum2, sum3: a1, b1

Nothing saturates: the positive weights of a bin sum to at most 128, and so do the negative ones.
Rows whose bins have equally many pairs share their code. Each row is computed at all positions, 32
in a turn. The sums of a turn become bytes while the next turn adds its first pairs: a turn takes
longer than the processor looks ahead. A table follows when a row is complete, in a loop of its own:
its instructions among the ones of a turn wait for each other. A row without weights is filled, and
a row of one weight before a table is a table of its input's bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.int8_conversions import fill_gaps
from sparsejit.asm_templates.convolution.int8_convolution import ROW
from sparsejit.asm_templates.convolution.int8_planes import LINE, BytePlanes
from sparsejit.asm_templates.convolution.int8_results import ByteEpilogue, NarrowByteResults
from sparsejit.asm_templates.convolution.int8_tables import BYTES
from sparsejit.asm_templates.shared.loops import counted_down, repeat
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.image import Line
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    r8,
    r9,
    r10,
    r11,
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
    rsp,
    ymm,
)
from sparsejit.x86.routines import call_routine, pop, push, slots

_Integers = npt.NDArray[np.integer]
# Pairs in each bin; the first two bins make sums together, then the next two. None: no weights.
Shape = tuple[int, ...]

HALF = LINE // 2  # positions of a turn
ONE_INPUT: Shape = (0,)  # a row whose result is a function of a byte of x, as a table of its own
_WORTH_A_SHAPE = 0.97  # of the instructions that there are without it


@dataclass(frozen=True, eq=False)
class WeightPairs:
    """Pairs of weights: the row of each, where its inputs are (pairs, 2), and its two weights."""

    row: _Integers
    places: _Integers
    weights: _Integers

    def some(self, order: _Integers) -> "WeightPairs":
        """Return the pairs with these indices."""
        return WeightPairs(self.row[order], self.places[order], self.weights[order])


@dataclass(frozen=True, eq=False)
class Binned:
    """Pairs of all rows in bins: the bin of each, and the pairs in each bin, (rows, bins)."""

    pairs: WeightPairs
    bins: _Integers
    sizes: _Integers


def in_even_bins(pairs: WeightPairs, bins: _Integers, rows: int) -> Binned:
    """Return pairs in bins, those with many pairs first.

    If a row has an odd number of bins, one of several pairs is split.
    """
    bins = bins.copy()
    sizes = np.zeros((rows, int(bins.max(initial=0)) + 2), np.int64)
    np.add.at(sizes, (pairs.row, bins), 1)
    filled, largest = (sizes > 0).sum(axis=1), sizes.argmax(axis=1)
    splits = (filled % 2 == 1) & (sizes.max(axis=1) > 1)
    last = np.flatnonzero(splits[pairs.row] & (bins == largest[pairs.row]))[::-1]
    row, first = np.unique(pairs.row[last], return_index=True)
    bins[last[first]] = filled[row]
    sizes[row, largest[row]] -= 1
    sizes[row, filled[row]] += 1
    falling = np.argsort(-sizes, axis=1, kind="stable")
    place = np.argsort(falling, axis=1, kind="stable")
    return Binned(pairs, place[pairs.row, bins], np.take_along_axis(sizes, falling, axis=1))


def first_bins(row: _Integers, size: _Integers, rows: int, most: int) -> _Integers:
    """Return the first bin of its row that has room for each item, the largest items first.

    size: (items, sizes); each of the sizes in a bin sums to at most `most`.
    """
    order = np.lexsort((-size.max(axis=1, initial=0), row))
    counts = np.bincount(row, minlength=rows)
    starts = np.cumsum(counts) - counts
    items = int(counts.max(initial=0))
    used = np.zeros((rows, items, size.shape[1]), np.int64)
    bins = np.zeros(len(row), np.int64)
    for rank in range(items):
        some = np.flatnonzero(counts > rank)
        item = order[starts[some] + rank]
        fits = (used[some] + size[item][:, None] <= most).all(axis=2)
        bins[item] = fits.argmax(axis=1)
        used[some, bins[item]] += size[item]
    return bins


def sums_operations(shape: Shape) -> float:
    """Return the vector instructions that make sums of 32 positions with a shape."""
    if not sum(shape):
        return 0.0
    return 4.0 * sum(shape) - 2.0 * len(shape) + 12.0 * ceil_div(len(shape), 2) - 4.0


def choose_shapes(
    sizes: _Integers, most: int, adds: bool = False
) -> tuple[list[Shape], _Integers]:
    """Return the cheapest `most` shapes, or fewer, and the number of each row's shape.

    sizes: the pairs in each bin of each row, (rows, bins). A row fits a shape if its bins have at
    most as many pairs. The empty shape is for rows without weights, whose results are all the same
    unless the code `adds` other bytes.
    """
    least = (1,) if adds else ()
    candidates = np.unique(np.vstack([sizes, sizes.max(axis=0)[None]]), axis=0)
    shapes = [tuple(row[row > 0].tolist()) or least for row in candidates]
    fits = np.stack([(sizes <= row).all(axis=1) for row in candidates])
    costs = np.where(fits, np.array([sums_operations(shape) for shape in shapes])[:, None], np.inf)
    taken = [int(np.argmin(costs.sum(axis=1)))]
    while len(taken) < most:
        best = costs[taken].min(axis=0)
        sums = np.minimum(costs, best).sum(axis=1)
        if sums.min() >= _WORTH_A_SHAPE * best.sum():
            break
        taken.append(int(np.argmin(sums)))
    return [shapes[number] for number in taken], np.argmin(costs[taken], axis=0)


@dataclass(frozen=True, eq=False)
class ShapedRows:
    """Rows with the same shape, as the code reads them: see `record_type`."""

    shape: Shape
    records: npt.NDArray[np.void]


def record_type(pairs: int, offsets: int) -> np.dtype[np.void]:
    """Return the record of a row, with the offsets and weights of its pairs.

    The offset of its ROW is of the result; `x` is the offset of x.
    """
    pair = np.dtype([("offset", "<i4", (offsets,)), ("weight", "i1", (4,))])
    return np.dtype([("row", ROW), ("x", "<i4"), ("pair", pair, (pairs,))])


# A row of `ONE_INPUT`. `x`: the offset of its input; `entries`: for each byte of x the byte of y,
# less the zero point.
_ENTRIES_AT = 32
_TABLE_ROW = np.dtype(
    {
        "names": ["row", "x", "entries"],
        "formats": [ROW, "<i4", ("u1", (BYTES,))],
        "offsets": [0, ROW.itemsize, _ENTRIES_AT],
    }
)


def rows_of_inputs(
    places: _Integers, y: _Integers, tables: npt.NDArray[np.uint8], zero_point: int
) -> ShapedRows:
    """Return rows of one input each as the code reads them.

    places and y: offsets of their inputs and results. tables: (rows, 256).
    """
    records = np.zeros(len(places), _TABLE_ROW)
    records["row"]["offset"], records["x"] = y, places
    records["entries"] = tables - np.uint8(zero_point)
    return ShapedRows(ONE_INPUT, records)


class RowNumbers(NamedTuple):
    """Numbers of each row: offsets of x and of the result; and a scale and two biases, (rows, 3).
    """

    x: _Integers
    y: _Integers
    ends: npt.NDArray[np.floating]


def lowered_rows(
    binned: Binned,
    numbers: RowNumbers,
    offsets: _Integers,
    most: int,
    adds: bool = False,
    others: _Integers | None = None,
) -> list[ShapedRows]:
    """Return rows as the code reads them, in at most `most` shapes.

    offsets: those that the code reads for each pair, (pairs, offsets). adds: as for
    `choose_shapes`. others: rows to leave out.
    """
    kinds, found = np.full(len(binned.sizes), -1), list[ShapedRows]()
    kept = np.arange(len(kinds)) if others is None else np.delete(np.arange(len(kinds)), others)
    if not len(kept):
        return found
    shapes, kinds[kept] = choose_shapes(binned.sizes[kept], most, adds)
    pairs, bins = binned.pairs, binned.bins
    order = np.lexsort((bins, pairs.row))
    key = (pairs.row * binned.sizes.shape[1] + bins)[order]
    within = np.empty(len(order), np.int64)
    within[order] = np.arange(len(key)) - np.searchsorted(key, key)
    for kind, shape in enumerate(shapes):
        members = np.flatnonzero(kinds == kind)
        records = np.zeros(len(members), record_type(sum(shape), offsets.shape[1]))
        records["row"]["offset"], records["x"] = numbers.y[members], numbers.x[members]
        for name, column in zip(("scale", "bias", "late"), numbers.ends.T, strict=True):
            records["row"][name] = column[members]
        index = np.full(len(binned.sizes), -1)
        index[members] = np.arange(len(members))
        some = np.flatnonzero(index[pairs.row] >= 0)
        first = np.cumsum((0, *shape))
        slot = first[bins[some]] + within[some]
        at = index[pairs.row[some]], slot
        records["pair"]["offset"][at] = offsets[some]
        records["pair"]["weight"][at] = np.tile(pairs.weights[some], 2)
        found.append(ShapedRows(shape, records))
    return found


@dataclass(frozen=True, eq=False)
class LoweredPairs:
    """Rows of sums of bytes ready to emit; x and y are the first positions of samples.

    first: bytes from x to where a row whose offset of x is 0 reads with an offset of 0.
    is_first: whether to fill the gap before the first channel of y.
    """

    rows: list[ShapedRows]
    epilogue: ByteEpilogue
    x: BytePlanes
    y: BytePlanes
    first: int
    is_first: bool

    @property
    def shapes(self) -> tuple[tuple[Shape, int], ...]:
        """Shapes, each with its number of rows."""
        return tuple((each.shape, len(each.records)) for each in self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes of all records."""
        return sum(each.records.nbytes for each in self.rows)


class RowTurns(NamedTuple):
    """Turns that compute a row.

    chunks: the first positions of the parts of a turn.
    number: how many turns there are; `odd` of them, the last one, is a single line on.
    lines: lines from turn to turn; `down` and `pitch` are bytes from line to line of x and of y.
    whole: whether turns follow the positions of a channel, gaps included.
    """

    chunks: range
    number: int
    lines: int
    odd: int
    down: int
    pitch: int
    whole: bool = False

    @property
    def parts(self) -> int:
        """Parts of all turns: 32 positions each."""
        return self.number * len(self.chunks)


def turns_of_positions(y: BytePlanes) -> RowTurns:
    """Return the turns of all positions of a channel, gaps included."""
    return RowTurns(range(1), ceil_div(y.used, HALF), 1, 0, HALF, HALF, whole=True)


class PairFrame(NamedTuple):
    """Slots on the stack: counters, and the address of the added image."""

    samples: Memory
    rows: Memory
    added: Memory


_FRAME = PairFrame(*slots(rsp, len(PairFrame._fields)))
_FRAME_BYTES = 8 * len(_FRAME)
_ROW, _MASKS, X, Y = r8, r9, r10, r11
_ADDED = _GAPS = rdx
_OFFSETS = (rbx, rbp, r12, r13, r14, r15)
_ACCUMULATORS = tuple(ymm(number) for number in range(4))
SUMS = tuple(ymm(number) for number in range(4, 8))
LOADED = (ymm(10), ymm(11))
_WEIGHT, _MADE, _ONES = ymm(14), ymm(13), ymm(15)
_SAVED = (*_OFFSETS, rcx)
_X_AT, _PAIRS_AT = ROW.itemsize, ROW.itemsize + 4


def keeps_offsets(offsets: int) -> bool:
    """Whether registers hold all `offsets` of a row's pairs."""
    return offsets <= len(_OFFSETS)


def emit_pairs(asm: Assembler, lowered: LoweredPairs, code: "PairCode") -> None:
    """Append sums of bytes by pairs: x at rdi, y at rsi, the added image at rdx.

    Layers share the code.
    """
    records = b"".join(each.records.tobytes() for each in lowered.rows)
    asm.emit("lea", _ROW, Literal(asm.literal(np.frombuffer(records, np.uint8))))
    asm.emit("lea", rcx, Literal(asm.literal(code.results.constants())))
    call_routine(asm, code.key, lambda asm: code.emit())


class PairCode(ABC):
    """Appends the code of sums of bytes by pairs."""

    offsets = 1  # of a pair

    def __init__(self, asm: Assembler, lowered: LoweredPairs, turns: RowTurns) -> None:
        self.asm, self.lowered, self.turns = asm, lowered, turns
        self.results = NarrowByteResults(asm, lowered.epilogue)
        self.pair_bytes = 4 * self.offsets + 4
        y, x, epilogue = lowered.y, lowered.x, lowered.epilogue
        sizes = lowered.first, lowered.is_first, x.samples, x.sample, y
        self.key: Hashable = (
            *(type(self), sizes, turns, lowered.shapes),
            *(self.results.code, epilogue.zero),
        )

    @property
    def adds(self) -> bool:
        return self.lowered.epilogue.added is not None

    @property
    def has_table(self) -> bool:
        """Whether a function of a byte follows, which is computed when a row is complete."""
        return self.results.parts is not None

    def load(self, pair: int, place: int, count: int) -> None:
        """Append code that loads both vectors of a pair, `place` bytes on, to `LOADED`."""
        raise NotImplementedError

    @abstractmethod
    def order(self, made: Register) -> None:
        """Append code that puts packed bytes in order; clobbers no register."""

    def store(self, made: Register, place: int) -> None:
        """Append code that stores 32 bytes of y."""
        self.asm.emit("vmovdqu", Memory(Y, place), made)

    def load_constants(self) -> None:
        """Load what the code of sums keeps in registers."""
        ones = Literal(self.asm.literal(np.ones(2, np.int16)))
        self.asm.emit("vpbroadcastd", _ONES, ones)

    def masks(self) -> npt.NDArray[np.uint8]:
        """Return 255 where a byte that is stored is a position."""
        return self.lowered.y.masks()

    def fill(self, gap: Register) -> None:
        """Append code that sets bytes of y that no turn stores to `gap`. Clobbers rax and rcx."""
        fill_gaps(self.asm, self.lowered.y, rsi, gap, self.lowered.is_first)

    def emit(self) -> None:
        """Append the code for all rows, shape after shape."""
        asm = self.asm
        push(asm, _SAVED)
        asm.emit("sub", rsp, _FRAME_BYTES)
        if self.adds:
            asm.emit("mov", _FRAME.added, rdx)
        self.results.load_gap(LOADED[0], rcx)
        asm.emit("mov", rdx, rcx)
        self.fill(LOADED[0])
        asm.emit("mov", rcx, rdx)
        self.load_constants()
        if self.lowered.x.samples == 1:
            self._sample()
        else:
            with counted_down(asm, _FRAME.samples, self.lowered.x.samples):
                self._sample()
        asm.emit("add", rsp, _FRAME_BYTES)
        pop(asm, _SAVED)

    def _sample(self) -> None:
        asm, lowered, total = self.asm, self.lowered, 0
        asm.emit("lea", _MASKS, Literal(asm.literal(self._gaps())))
        for each in lowered.rows:
            size = each.records.itemsize

            def row(each: ShapedRows = each, size: int = size) -> None:
                self._row(each.shape)
                asm.emit("add", _ROW, size)

            repeat(asm, len(each.records), _FRAME.rows, row)
            total += each.records.nbytes
        if lowered.x.samples > 1:
            asm.emit("sub", _ROW, total)
            asm.emit("add", rdi, lowered.x.sample)
            asm.emit("add", rsi, lowered.y.sample)
            if self.adds:
                asm.emit("mov", rax, _FRAME.added)
                asm.emit("add", rax, lowered.y.sample)
                asm.emit("mov", _FRAME.added, rax)

    def _row(self, shape: Shape) -> None:
        asm, lowered = self.asm, self.lowered
        asm.emit("mov", dword(rax), Memory(_ROW))
        asm.emit("lea", Y, Memory(rsi, 0, rax))
        if shape == ONE_INPUT:
            self._look_up_input()
            return
        if not shape:
            self._fill_row()
            return
        if self.adds:
            asm.emit("mov", _ADDED, _FRAME.added)
            asm.emit("add", _ADDED, rax)
        asm.emit("mov", dword(rax), Memory(_ROW, _X_AT))
        asm.emit("lea", X, Memory(rdi, lowered.first, rax))
        if self.results.keeps_scale:
            self.results.load_row(Memory(_ROW))
        if keeps_offsets(self.offsets * sum(shape)):
            for number in range(self.offsets * sum(shape)):
                pair, which = divmod(number, self.offsets)
                asm.emit("mov", dword(_OFFSETS[number]), self._pair(pair, 4 * which))
        self._turns(shape)
        if self.turns.whole:
            self._fill_line()
        if self.has_table:
            self._look_up_row()

    def _fill_line(self) -> None:
        """Fill the line behind the last of whole turns, where Y is."""
        if self.turns.number % 2:
            self.results.load_gap(LOADED[0], rcx)
            self.asm.emit("vmovdqu", Memory(Y, HALF), LOADED[0])

    def _look_up_input(self) -> None:
        """Compute a row of one input: look its bytes up in the table of the row."""
        asm, made = self.asm, SUMS[0]
        asm.emit("mov", dword(rax), Memory(_ROW, _X_AT))
        asm.emit("lea", X, Memory(rdi, self.lowered.first, rax))
        asm.emit("lea", _GAPS, Literal(asm.literal(self.lowered.y.masks())))

        def vector() -> None:
            asm.emit("vmovdqu", made, Memory(X))
            self.results.look_up(SUMS, Memory(_ROW, _ENTRIES_AT))
            self.results.add_zero_point(made, Memory(_GAPS))
            asm.emit("vmovdqu", Memory(Y), made)
            for register in (_GAPS, X, Y):
                asm.emit("add", register, HALF)

        repeat(asm, self.turns.number, rax, vector)
        asm.emit("sub", Y, HALF)
        self._fill_line()

    def _fill_row(self) -> None:
        """Fill a row without weights: its positions have the same result."""
        asm, results, y, (made, filled, *_) = self.asm, self.results, self.lowered.y, SUMS
        for total in SUMS:
            zero(asm, total)
        results.load_row(Memory(_ROW))
        results.pack(SUMS, Memory(_ROW), Memory(Y))
        if self.has_table:
            results.look_up(SUMS)
        else:
            results.take_zero_point(made)
        asm.emit("lea", _GAPS, Literal(asm.literal(y.masks())))

        def vector() -> None:
            asm.emit("vmovdqa", filled, made)
            results.add_zero_point(filled, Memory(_GAPS))
            asm.emit("vmovdqu", Memory(Y), filled)
            for register in (_GAPS, Y):
                asm.emit("add", register, HALF)

        repeat(asm, y.vectors * LINE // HALF, rax, vector)

    def _turns(self, shape: Shape) -> None:
        """Compute a row. Y and _MASKS stay at the turn whose sums become bytes."""
        turns, previous = self.turns, None
        for chunk in turns.chunks:
            self._sums(shape, chunk, previous)
            previous = chunk
        count = turns.number - 1 - turns.odd
        repeat(self.asm, count, rax, lambda: self._turn(shape, turns.lines))
        if turns.odd:
            self._turn(shape, 1)
        self._finish(turns.chunks[-1])
        if self.turns.whole and turns.number > 1:
            self.asm.emit("sub", _MASKS, (turns.number - 1) * LINE)

    def _turn(self, shape: Shape, lines: int) -> None:
        """Finish the turn before, and compute all but the last bytes of the next, `lines` on."""
        asm, turns = self.asm, self.turns
        asm.emit("add", X, lines * turns.down)
        previous = turns.chunks[-1]
        for chunk in turns.chunks:
            self._sums(shape, chunk, previous)
            if chunk == 0:
                asm.emit("add", Y, lines * turns.pitch)
                if self.adds:
                    asm.emit("add", _ADDED, lines * turns.pitch)
                if self.turns.whole:
                    asm.emit("add", _MASKS, LINE)
            previous = chunk

    def _sums(self, shape: Shape, chunk: int, previous: int | None) -> None:
        """Compute the sums of 32 positions; the sums of chunk `previous` become bytes before."""
        asm, number = self.asm, 0
        for first in range(0, len(shape), 2):
            sizes = shape[first : first + 2]
            with asm.held() as added:
                for own, size in zip((_ACCUMULATORS[:2], _ACCUMULATORS[2:]), sizes, strict=False):
                    self._bin(range(number, number + size), own, sum(shape), chunk)
                    number += size
            if first == 0 and previous is not None:
                self._finish(previous, added)
            else:
                asm.emit_spread([], added)
            self._add(len(sizes), first == 0)

    def _finish(self, chunk: int, among: Sequence[Line] = ()) -> None:
        """Store the bytes of the sums that are there, with the code `among` the conversion."""
        asm, results = self.asm, self.results
        with asm.held() as packed:
            if not results.keeps_scale:
                results.load_row(Memory(_ROW))
            results.pack(SUMS, Memory(_ROW), Memory(_ADDED, chunk))
            self._store(chunk)
        if self.adds:  # the addition takes the registers of `among`
            asm.emit_spread([], packed)
            packed = []
        asm.emit_spread(packed, among)

    def _look_up_row(self) -> None:
        """Replace the bytes of a row, gaps included, by their entries in the table."""
        asm, y = self.asm, self.lowered.y
        asm.emit("mov", dword(rax), Memory(_ROW))
        asm.emit("lea", Y, Memory(rsi, 0, rax))
        asm.emit("lea", _GAPS, Literal(asm.literal(y.masks())))
        vectors = ceil_div(y.used, HALF)
        key = "row through a table", self.results.code, vectors
        call_routine(asm, key, lambda asm: repeat(asm, vectors, rax, self._look_up_vector))

    def _look_up_vector(self) -> None:
        asm, made = self.asm, SUMS[0]
        asm.emit("vmovdqu", made, Memory(Y))
        self.results.look_up(SUMS)
        self.results.add_zero_point(made, Memory(_GAPS))
        asm.emit("vmovdqu", Memory(Y), made)
        for register in (_GAPS, Y):
            asm.emit("add", register, HALF)

    def _store(self, chunk: int) -> None:
        made = SUMS[0]
        self.order(made)
        if not (self.turns.whole and self.has_table):
            self.asm.emit("vpand", made, made, Memory(_MASKS, 2 * chunk))
            if self.lowered.epilogue.zero:
                self.asm.emit("vpor", made, made, Memory(_MASKS, 2 * chunk + HALF))
        self.store(made, chunk)

    def _pair(self, number: int, place: int) -> Memory:
        return Memory(_ROW, _PAIRS_AT + self.pair_bytes * number + place)

    def _gaps(self) -> npt.NDArray[np.uint8]:
        """Return the masks, each vector followed by the bytes that its others become."""
        inside = self.masks().reshape(-1, HALF)
        outside = np.where(inside, 0, self.lowered.epilogue.zero).astype(np.uint8)
        return np.stack([inside, outside], axis=1)

    def offset(self, pair: int, which: int, count: int) -> Register:
        """Return the register of an offset of a pair, which is loaded if `count` are too many."""
        if keeps_offsets(self.offsets * count):
            return _OFFSETS[self.offsets * pair + which]
        register = _OFFSETS[which]
        self.asm.emit("mov", dword(register), self._pair(pair, 4 * which))
        return register

    def _bin(self, pairs: range, own: Sequence[Register], count: int, chunk: int) -> None:
        """Add the pairs of a bin in 16 bits."""
        asm = self.asm
        for number in pairs:
            asm.emit("vpbroadcastd", _WEIGHT, self._pair(number, 4 * self.offsets))
            self.load(number, chunk, count)
            for total, loaded in zip(own, LOADED, strict=True):
                into = total if number == pairs[0] else loaded
                asm.emit("vpmaddubsw", into, loaded, _WEIGHT)
                if into is loaded:
                    asm.emit("vpaddw", total, total, loaded)

    def _add(self, bins: int, is_first: bool) -> None:
        """Add the sums of one or two bins to the sums of 32 bits."""
        asm, (a0, a1, b0, b1) = self.asm, _ACCUMULATORS
        if bins == 1:
            for register in (b0, b1):
                asm.emit("vpxor", register, register, register)
        for number, total in enumerate(SUMS):
            which = "vpunpckhwd" if number % 2 else "vpunpcklwd"
            made = total if is_first else _MADE
            asm.emit(which, made, *((a0, b0), (a1, b1))[number // 2])
            asm.emit("vpmaddwd", made, made, _ONES)
            if not is_first:
                asm.emit("vpaddd", total, total, made)
