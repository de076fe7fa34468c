"""Unstructured sparsity in large layers: a loop over data that looks x up in byte tables.

    chunks_of   layout: the chunk of each weight, and the order of chunks
    stored      storage of chunks in the pool
    emit        code: the loop

Layout: a window of `WINDOW` inputs slides over x by `SLIDE` inputs at a time. At each position, any
group of sixteen rows may add chunks of `STEPS` weights a row, as long as their inputs are in the
window. Weights whose inputs slide out next must be used; a chunk's other places take the row's
following weights. Every row is used in the order of its columns, and a group adds a chunk only when
one of its rows must, which gives the fewest chunks that such an order allows.

    inputs    | leaving next |      |      | just come |
    row 0        w  w w        w      w                     must add 3, may add 5
    row 1              w          w     w       w           must add 1, may add 4
    chunk        all four lanes of row 0 busy, and of row 1

Storage: ....._....._....._ for float32 in less than half of L2: a line after each chunk is never
read. So chunks arrive faster (`padding`; runs of three are no faster still, because look-ups are
the limit then). From half of L2 on, and for short weights, padding gains nothing. If float32
weights and indices would not fit L2, the index replaces the lowest seven bits of the weight, which
changes it by at most 2**-17 of itself. Figures: docs/kernels/gather.md.

Code: all that differs from matrix to matrix is data, as code would arrive more slowly. One
`vpermi2b` looks up 64 bytes among 128, so x is split into four tables, one of each float's first
bytes and so on, of the window's 128 inputs. A chunk of four steps needs four look-ups with the same
64 indices of seven bits, and eight `vpunpck` put the bytes together again:

    vpermi2b    byte b of lane l: byte j of x[index b of lane l], from table j
    vpunpck     bytes, then words of four tables: byte b of lane 4q + s becomes x of lane 4q + b,
                step s, whole; so the index lies there

The sums of all rows are on the stack. An idle lane takes an input that its row has no weight for,
if there is one among 32, as in `permute`; with the index in the weight it takes any input.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.gather import permute_layout
from sparsejit.asm_templates.lowered import WEIGHT_BYTES, Counts, Work
from sparsejit.asm_templates.shared import rows
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.asm_templates.shared.masks import set_mask
from sparsejit.asm_templates.shared.padding import DENSE, StridePadding
from sparsejit.asm_templates.shared.storage import Unpacking
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    k,
    r8,
    r9,
    rax,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
    zmm,
)
from sparsejit.x86.routines import reserve

LANES = 16
SLIDE = 32
WINDOW = 128
STEPS = 4

_Numbers = npt.NDArray[np.integer]
_Floats = npt.NDArray[np.float32]
# Position, group, and each lane's first weight and limit, numbered within the row.
_Part = tuple[_Numbers, _Numbers, _Numbers, _Numbers]


@dataclass(frozen=True, eq=False)
class Chunks:
    """Chunks in order of execution; each has `STEPS` weights for each of sixteen rows.

    `position` (chunks,) is the number of the newest `SLIDE` inputs in the window, `group` (chunks,)
    the number of the sixteen rows. `inputs` (chunks, STEPS, LANES) are the columns of `weights`,
    all within the window.
    """

    position: _Numbers
    group: _Numbers
    weights: _Floats
    inputs: _Numbers


def paired_order(matrix: SparseMatrix) -> _Numbers:
    """Return the row in every lane, so that rows of a vector have similar numbers of weights.

    Of each 32 rows, the sixteen with most weights share the first of two vectors. Numbers from
    out_features on stand for no row; they stay last.
    """
    vectors = ceil_div(matrix.out_features, LANES)
    counts = np.full(vectors * LANES, -1)
    counts[: matrix.out_features] = matrix.row_counts
    order = np.arange(len(counts))
    paired = vectors // 2 * 2 * LANES
    fullest_first = np.argsort(-counts[:paired].reshape(-1, 2 * LANES), axis=1, kind="stable")
    order[:paired] = (fullest_first + order[: paired : 2 * LANES, None]).ravel()
    return order


def chunk_count(matrix: SparseMatrix) -> int:
    """Return the number of chunks that `chunks_of` makes of a matrix in paired order."""
    order, counts = paired_order(matrix), matrix.counts_by_inputs(SLIDE)
    in_lanes = np.zeros((len(order), counts.shape[1]), np.uint16)
    real = order < matrix.out_features
    in_lanes[real] = counts[order[real]]
    return sum(len(group) for _, group, _, _ in _walk(_weights_before(in_lanes)))


def chunks_of(matrix: SparseMatrix, order: _Numbers) -> Chunks:
    """Cut a matrix into chunks; `order` is the row in every lane."""
    dense = _in_lanes(matrix, order)
    used = dense != 0
    ends = _weights_before(used.reshape(len(used), -1, SLIDE).sum(axis=2, dtype=np.uint16))
    position, group, base, limit = (np.concatenate(part) for part in zip(*_walk(ends), strict=True))
    rows = np.arange(len(order)).reshape(-1, LANES)[group]
    number = base[:, None] + np.arange(STEPS)[:, None]
    busy = number < limit[:, None]
    starts = np.cumsum(ends[-1]) - ends[-1]
    number = np.where(busy, number + starts[rows][:, None], 0)
    weights = np.append(dense[used], np.float32(0))[number]
    columns = np.append(np.nonzero(used)[1], 0)[number]
    unused = used.reshape(len(order), -1, SLIDE).argmin(axis=2)
    spare = SLIDE * position[:, None] + unused[rows, position[:, None]]
    weights[~busy] = 0
    return Chunks(position, group, weights, np.where(busy, columns, spare[:, None]))


def _in_lanes(matrix: SparseMatrix, order: _Numbers) -> _Floats:
    """Return the dense rows in the order of lanes, padded with zeros to whole slides of inputs.

    A lane without a row has zeros.
    """
    width = round_up(matrix.in_features, SLIDE)
    dense = np.zeros((len(order), width), np.float32)
    real = order < matrix.out_features
    dense[real, : matrix.in_features] = matrix.dense[order[real]]
    return dense


def _weights_before(counts: npt.NDArray[np.uint16]) -> _Numbers:
    """Return the number of each row's weights before each slide of inputs, (slides + 1, rows).

    `counts`: each row's weights in each slide, (rows, slides).
    """
    ends = np.zeros((counts.shape[1] + 1, len(counts)), np.int32)
    np.cumsum(counts.T, axis=0, out=ends[1:])
    return ends


def _walk(ends: _Numbers) -> list[_Part]:
    """Return the chunks at each position of the window, as a `_Part` for each position.

    `ends` is the result of `_weights_before`.
    """
    blocks, rows = len(ends) - 1, np.arange(ends.shape[1]).reshape(-1, LANES)
    slides = WINDOW // SLIDE
    done = np.zeros(rows.size, np.int32)
    parts: list[_Part] = []
    for position in range(min(slides, blocks) - 1, blocks):
        due = ends[blocks if position == blocks - 1 else position - slides + 2]
        needed = np.maximum(ceil_div((due - done)[rows].max(axis=1), STEPS), 0)
        turn, group = np.nonzero(np.arange(needed.max())[:, None] < needed)
        limit = ends[position + 1]
        base = done[rows[group]] + STEPS * turn[:, None]
        parts.append((np.full(len(group), position), group, base, limit[rows[group]]))
        done = np.minimum(done + np.repeat(STEPS * needed, LANES), limit).astype(np.int32)
    return parts


_Words = npt.NDArray[np.uint32]

LINE = 64


@dataclass(frozen=True)
class Format:
    """The storage format of chunks.

    `far`: the chunks come from beyond L2, so every byte counts, and a float32 weight has its index
    in its own lowest bits. `padded`: a line that is never read follows each chunk.
    """

    dtype: DType
    far: bool = False
    padded: bool = False

    @classmethod
    def fitting(cls, dtype: DType, chunks: int, target: Target) -> "Format":
        """Return the fastest format for `chunks` chunks."""
        pool_bytes = chunks * cls(dtype).chunk_bytes
        small = dtype is DType.FLOAT32 and 2 * pool_bytes <= target.l2_bytes
        padded = small and target.core.padding
        return cls(dtype, far=pool_bytes > target.l2_bytes, padded=padded)

    @property
    def index_in_weight(self) -> bool:
        return self.far and self.dtype is DType.FLOAT32

    @property
    def weight_lines(self) -> int:
        return STEPS if self.dtype is DType.FLOAT32 else STEPS // 2

    @property
    def lines(self) -> int:
        """Lines of a chunk that are read."""
        return self.weight_lines + (0 if self.index_in_weight else 1)

    @property
    def chunk_bytes(self) -> int:
        """Bytes from one chunk to the next."""
        return self.padding.room(self.lines) * LINE

    @property
    def padding(self) -> StridePadding:
        """Stride padding of the lines of all chunks."""
        return StridePadding(self.lines, self.lines + 1) if self.padded else DENSE


def stored(chunks: Chunks, form: Format) -> _Words:
    """Pack chunks into uint32 words of shape (chunks, lines, LANES).

    A chunk has one line of indices, followed by its lines of weights and, where `form` pads, a
    padding line. With `index_in_weight` it has no line of indices: each weight's lowest bits hold
    its index.
    """
    in_window = (chunks.inputs % WINDOW).astype(np.uint8)
    if form.index_in_weight:
        return permute_layout.with_index(chunks.weights, in_window, WINDOW.bit_length() - 1)
    # Unpacking brings byte b of lane 4q + s to lane 4q + b of step s.
    quads = in_window.reshape(-1, STEPS, LANES // 4, 4).transpose(0, 2, 1, 3)
    indices = np.ascontiguousarray(quads).reshape(-1, 1, LINE).view(np.uint32)
    steps = permute_layout.stored(chunks.weights.reshape(-1, 1, LANES), form.dtype)
    weights = steps.reshape(-1, form.weight_lines, LANES)
    return form.padding.spread(np.concatenate([indices, weights], axis=1))


IntArray = npt.NDArray[np.integer]

_CHUNKS, _PLACES, _LEFT, _OLD_STACK = rdx, r8, rcx, r9
_PLACE = rax
_SUM, _PAIR, _UPPER_HALVES, _INDEX_BITS = zmm(0), zmm(13), zmm(14), zmm(15)
_WEIGHTS = [zmm(number) for number in range(9, 13)]
_LOOKED_UP = [zmm(number) for number in range(1, 5)]
_INTERLEAVED = [zmm(number) for number in range(5, 9)]
_TABLES = [(zmm(16 + 2 * byte), zmm(17 + 2 * byte)) for byte in range(4)]
_BYTE_PICKS = [zmm(24 + byte) for byte in range(4)]
_NEW_INPUTS = (zmm(28), zmm(29))
_FREE_AT_END = _WEIGHTS + [zmm(number) for number in range(16, 32)]
_HALVES = (k(1), k(2))

# The sums of a panel take 16 KB of stack, so that they stay in L1.
_PANEL_ROWS = 4096
# Equally fast from 5 to 20 chunks ahead; a quarter slower without: docs/kernels/gather.md.
_PREFETCHED_CHUNKS = 8


@dataclass(frozen=True, eq=False)
class Panel:
    """Consecutive rows, from `first` on, whose sums lie on the stack together, and their chunks.

    `order` is the row in every lane.
    """

    first: int
    order: IntArray
    chunks: Chunks

    @property
    def vectors(self) -> int:
        """Vectors of outputs."""
        return len(self.order) // LANES


@dataclass(frozen=True, eq=False)
class LookedUp:
    """A layer as chunks, panel by panel, and the format in which they are stored."""

    spec: MatVec
    form: Format
    panels: list[Panel]
    counts: Counts


def expect(spec: MatVec, matrix: SparseMatrix, target: Target) -> Counts:
    """Return the expected counts, from the number of chunks."""
    return _counts(spec, matrix, target, chunk_count(matrix))


def _counts(spec: MatVec, matrix: SparseMatrix, target: Target, chunks: int) -> Counts:
    """Return the counts of a layer in `chunks` chunks.

    The pool has the weights; an index of a byte for each weight, unless the weight's lowest bits
    hold it; and the place of each chunk's sums, four bytes.
    """
    steps = STEPS * chunks
    weights, indices = steps * target.lanes * WEIGHT_BYTES[spec.dtype], steps * target.lanes
    far = weights + indices > target.l2_bytes and spec.dtype is DType.FLOAT32
    pool_bytes = weights + (0 if far else indices) + steps
    return Counts.of(matrix, target, spec.dtype, Work("lookup", steps), pool_bytes)


def lower(spec: MatVec, matrix: SparseMatrix, target: Target) -> LookedUp:
    """Cut rows into panels whose sums fit the stack, and panels into chunks."""
    order = paired_order(matrix)
    panels = []
    for first in range(0, len(order), _PANEL_ROWS):
        own = order[first : first + _PANEL_ROWS]
        panels.append(Panel(first, own, chunks_of(matrix, own)))
    count = sum(len(panel.chunks.group) for panel in panels)
    form = Format.fitting(spec.dtype, count, target)
    return LookedUp(spec, form, panels, _counts(spec, matrix, target, count))


def emit(asm: Assembler, lowered: LookedUp) -> None:
    """Append the look-up kernel; needs AVX512-VBMI. See `families` for the contract."""
    form, panels = lowered.form, lowered.panels
    asm.emit("mov", _OLD_STACK, rsp)
    reserve(asm, 4 * max(len(panel.order) for panel in panels))
    asm.emit("and", rsp, -LINE)
    start, loop = asm.label("start"), asm.label("loop")
    asm.jump("jmp", start)
    _emit_loop(asm, form, loop)
    asm.bind(start)
    _emit_constants(asm, form)
    for panel in panels:
        _PanelCode(asm, lowered.spec, panel).emit(form, loop)
    asm.emit("mov", rsp, _OLD_STACK)


def _emit_constants(asm: Assembler, form: Format) -> None:
    for mask, lanes in zip(_HALVES, (0x00FF, 0xFF00), strict=True):
        set_mask(asm, mask, lanes)
    Unpacking(asm, form.dtype, _WEIGHTS[0], _UPPER_HALVES).start()
    if form.index_in_weight:
        asm.emit("mov", dword(rax), WINDOW - 1)
        asm.emit("vpbroadcastd", _INDEX_BITS, dword(rax))
    for byte, register in enumerate(_BYTE_PICKS):
        places = np.arange(SLIDE) * 4 + byte
        picks = asm.literal(np.concatenate([places, places]).astype(np.uint8))
        asm.emit("vmovups", register, Literal(picks))


def _emit_loop(asm: Assembler, form: Format, label: Label) -> None:
    """Append the subroutine that adds the products of the next rcx chunks to the sums."""
    sums = Memory(rsp, 8, index=_PLACE)  # above the return address
    asm.bind(label)
    with counted_down(asm, dword(_LEFT)):
        asm.emit("mov", dword(_PLACE), Memory(_PLACES))
        asm.emit("vmovups", _SUM, sums)
        ahead = _PREFETCHED_CHUNKS * form.chunk_bytes
        for line in range(form.lines):
            asm.emit("prefetcht0", Memory(_CHUNKS, ahead + LINE * line))
        if form.index_in_weight:
            _emit_indices_from_weights(asm)
        else:
            asm.emit("vmovups", _LOOKED_UP[0], Memory(_CHUNKS))
        for step, inputs in enumerate(_look_up(asm)):
            asm.emit("vfmadd231ps", _SUM, inputs, _weights_of(asm, form, step))
        asm.emit("vmovups", sums, _SUM)
        asm.emit("add", _CHUNKS, form.chunk_bytes)
        asm.emit("add", _PLACES, 4)
    asm.emit("ret")


def _emit_indices_from_weights(asm: Assembler) -> None:
    """Pack the weights' lowest bits in the order in which `stored` keeps separate indices."""
    for step, register in enumerate(_INTERLEAVED):
        asm.emit("vmovups", _WEIGHTS[step], Memory(_CHUNKS, LINE * step))
        asm.emit("vpandd", register, _INDEX_BITS, _WEIGHTS[step])
    first, second, third, fourth = _INTERLEAVED
    asm.emit("vpackusdw", first, first, second)
    asm.emit("vpackusdw", third, third, fourth)
    asm.emit("vpackuswb", _LOOKED_UP[0], first, third)


def _look_up(asm: Assembler) -> list[Register]:
    """Return the inputs of each step, by the indices in the first register of `_LOOKED_UP`."""
    for register in _LOOKED_UP[1:]:
        asm.emit("vmovaps", register, _LOOKED_UP[0])
    for register, table in zip(_LOOKED_UP, _TABLES, strict=True):
        asm.emit("vpermi2b", register, *table)
    low = _unpack(asm, "bw", _LOOKED_UP[0], _LOOKED_UP[1], _INTERLEAVED[:2])
    high = _unpack(asm, "bw", _LOOKED_UP[2], _LOOKED_UP[3], _INTERLEAVED[2:])
    for part in (0, 1):
        _unpack(asm, "wd", low[part], high[part], _LOOKED_UP[2 * part : 2 * part + 2])
    return _LOOKED_UP


def _unpack(
    asm: Assembler, kind: str, even: Register, odd: Register, results: list[Register]
) -> list[Register]:
    """Interleave the lower and the upper halves of each 16 bytes."""
    for half, register in zip("lh", results, strict=True):
        asm.emit(f"vpunpck{half}{kind}", register, even, odd)
    return results


def _weights_of(asm: Assembler, form: Format, step: int) -> Register | Memory:
    """Return the operand that holds a step's weights, unpacked if they are short."""
    weights = _WEIGHTS[step]
    if form.dtype is DType.FLOAT32:
        return weights if form.index_in_weight else Memory(_CHUNKS, LINE * (1 + step))
    first = step if form.dtype is DType.FLOAT16 else step // 2 * 2
    place, odd = Memory(_CHUNKS, LINE + first * LINE // 2), np.array([step % 2 != 0])
    lines, register = Unpacking(asm, form.dtype, weights, _UPPER_HALVES).register(place, odd, _PAIR)
    asm.stamp(1, lines)
    return register


class _PanelCode:
    """Appends the code of a panel of rows: start, chunks at each position of the window, end."""

    def __init__(self, asm: Assembler, spec: MatVec, panel: Panel) -> None:
        self.asm = asm
        self.spec = spec
        self.first, self.order, self.chunks = panel.first, panel.order, panel.chunks
        self.vectors = panel.vectors

    def emit(self, form: Format, loop: Label) -> None:
        asm = self.asm
        sums = (self.chunks.group * LINE).astype(np.uint32)
        asm.count(padding_bytes=form.padded * LINE * len(sums))
        self._start_sums()
        asm.emit("lea", _CHUNKS, Literal(asm.literal(stored(self.chunks, form))))
        asm.emit("lea", _PLACES, Literal(asm.literal(sums)))
        positions = ceil_div(self.spec.in_features, SLIDE)
        counts = np.bincount(self.chunks.position, minlength=positions)
        for position in range(positions):
            self._slide(position)
            if counts[position]:
                asm.emit("mov", dword(_LEFT), int(counts[position]))
                asm.jump("call", loop)
        self._finish()

    def _slide(self, position: int) -> None:
        """Put the next inputs into the tables in place of the oldest."""
        asm, scratch = self.asm, zmm(1)
        for part, register in enumerate(_NEW_INPUTS):
            first = position * SLIDE + part * LANES
            if first < self.spec.in_features:
                rows.load(asm, register, rdi, first, self.spec.in_features, scratch)
            else:
                rows.zero(asm, register)
        table, half = divmod(position % (WINDOW // SLIDE), 2)
        for byte in range(4):
            asm.emit("vmovaps", scratch, _BYTE_PICKS[byte])
            asm.emit("vpermi2b", scratch, *_NEW_INPUTS)
            asm.emit("vmovaps", _TABLES[byte][table].masked(_HALVES[half]), scratch)

    def _start_sums(self) -> None:
        """Set the sums to the bias, in the order of the lanes, or to zero."""
        bias = np.zeros(self.first + len(self.order), np.float32)
        if self.spec.bias is not None:
            bias[: self.spec.out_features] = self.spec.bias[: len(bias)]
            literal = self.asm.literal(bias[self.order])
        rows.zero(self.asm, _SUM)
        for vector in range(self.vectors):
            if self.spec.bias is not None:
                self.asm.emit("vmovups", _SUM, Literal(literal + vector * LINE))
            self.asm.emit("vmovups", Memory(rsp, vector * LINE), _SUM)

    def _finish(self) -> None:
        """Put the outputs in order, apply the activation and store them."""
        pairs = self.order[: self.vectors // 2 * 2 * LANES].reshape(-1, 2 * LANES)
        if len(pairs):
            places = np.argsort(pairs, axis=1).astype(np.uint32)
            self.asm.emit("lea", _CHUNKS, Literal(self.asm.literal(places)))
        for vector in range(0, self.vectors, 2):
            count = min(2, self.vectors - vector)
            registers = _INTERLEAVED[:count]
            for part, register in enumerate(registers):
                self.asm.emit("vmovups", _LOOKED_UP[part], Memory(rsp, (vector + part) * LINE))
                if count == 2:
                    place = Memory(_CHUNKS, (vector + part) * LINE)
                    self.asm.emit("vmovups", register, place)
            if count == 2:
                for register in registers:
                    self.asm.emit("vpermi2ps", register, *_LOOKED_UP[:2])
            else:
                registers = _LOOKED_UP[:1]
            first = self.first + vector * LANES
            rows.finish_rows(self.asm, self.spec, registers, first, rsi, _FREE_AT_END)
