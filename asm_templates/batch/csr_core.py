"""Code of the loop over compressed rows: int8 conversion, products of a block, ends of rows.

    ScaledInputs, CsrInt8        columns with scales; int8: x to integers, sums of integers to y
    emit_core                    the multiplication of one block, a subroutine
    finish_rows, activate_rows   the ends of rows: their sums, in the workspace, become y

int8: every column has its own scale, as in `reference.quantised_input`. As bytes, four inputs lie
side by side with 128 added to each, because `vpdpbusd` takes unsigned bytes; sums therefore start
at -128 times the sum of their weights. Without that instruction inputs lie in pairs of 16 bits, or
the integers are stored and multiplied as float32.

Multiplication of a block: a row's sums, then its weights one after the other:

    mov             rax, [rsi-24*q]          four offsets by one load
    vbroadcastf32x4 zmm29, [rsi-24*q+8]      four weights by another: loads limit the speed
    movzx           ebx, ax                  the first offset; `shr rax, 16` before each other one
    lea             rbx, [rcx+8*rbx]         address of this input's columns, 256 bytes an input
    vpermilps       zmm31, zmm29, 0          its weight; 0x55, 0xaa, 0xff the others
    vfmadd231ps     zmm0, zmm31, [rbx]       16 columns; repeated for each vector of the pass

`vpdpbusd` multiplies bytes; x is its unsigned operand, which must be in a register. `vpmaddwd`
multiplies pairs of 16 bits and `vpaddd` adds them. `vfmadd231ph` multiplies 32 columns of float16
(`csr_halves`).

There is code for `MOST` weights; a segment of n weights enters it n weights before its end. All
segments of a group enter at the same place, so that the processor predicts it. `lea` is there
because an address with two registers would cost every multiplication an extra operation on some
processors.

Ends of rows: feature-major float32 goes from the sums to y in one loop. Sums that are int8, or
transposed later, first become outputs in place.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.batch.csr_shape import (
    GROUP_BYTES,
    MOST,
    OFFSET_UNIT,
    QUAD,
    Arithmetic,
    CsrShape,
    quad_of,
)
from sparsejit.asm_templates.batch.transpose import Masks, MatrixPlace
from sparsejit.asm_templates.gather.int8_boundary import int8_sums, output_scales
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.int8_inputs import (
    begin_largest,
    broadcast,
    clip_negative,
    emit_scale_of,
    fixed_reciprocal,
    to_int32,
)
from sparsejit.asm_templates.shared.interleave import interleaved
from sparsejit.asm_templates.shared.loops import counted_down, repeat
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import SMALLEST_SCALE, Activation, MatVec
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
    r8,
    r9,
    r10,
    r11,
    r12,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
    word,
)

_OFFSET = 128
_OFFSETS = int(np.uint32(0x80808080).astype(np.int32))
# Address of the next integers of x.
PANEL = r12


def first_sums(
    arithmetic: Arithmetic, matrix: SparseMatrix
) -> npt.NDArray[np.int32] | None:
    """Return the start values of rows' integer sums, (out_features,), or None for zero.

    They cancel the 128 that is added to each input if inputs are bytes.
    """
    return (-_OFFSET * int8_sums(matrix)[1]).astype(np.int32) if arithmetic.in_bytes else None


def int8_ends(spec: MatVec, matrix: SparseMatrix) -> npt.NDArray[np.float32]:
    """Return (out_features, 2): each row's factor from an int32 sum to float32, and its bias."""
    ends = np.zeros((spec.out_features, 2), np.float32)
    ends[:, 0] = output_scales(spec, int8_sums(matrix)[0])
    ends[:, 1] = 0 if spec.bias is None else spec.bias
    return ends


def side_by_side(asm: Assembler, parts: list[Register]) -> None:
    """Pack up to four int32 registers into the first as bytes, each plus 128, from 1 to 255."""
    first, *others = parts
    for position, register in enumerate(others, 1):
        asm.emit("vpslld", register, register, 8 * position)
        asm.emit("vpaddd", first, first, register)
    asm.emit("vpaddd", first, first, asm.constant(_OFFSETS))


class ScaledInputs:
    """A pass of `vectors` vectors, each column with a scale of its own; subclasses convert x.

    Clobbers rax, r8, r10 and vectors. `least`: the lower bound of the largest magnitudes.
    """

    least: np.generic = np.float32(SMALLEST_SCALE)

    def __init__(self, asm: Assembler, spec: MatVec, shape: CsrShape, vectors: int) -> None:
        self.asm, self.spec, self.shape, self.vectors = asm, spec, shape, vectors
        self.fixed = spec.x_steps is not None

    def _place(self, base: Register, offset: int, number: int) -> Memory:
        return Memory(base, offset + number * self.asm.target.vector_bytes)

    def reciprocal(self, number: int) -> Memory:
        """The reciprocal scales of a vector of columns, as a memory operand."""
        return self._place(rsp, self.shape.scales, number)

    def scale(self, number: int) -> Memory:
        """The dynamic scales of a vector of columns, as a memory operand."""
        return self._place(rsp, self.shape.scales + self.shape.pitch, number)

    def start(self) -> None:
        """Store the reciprocal of a fixed scale, or the lower bound of the largest magnitude."""
        asm, value = self.asm, vector(self.asm, 0)
        if self.fixed:
            fixed_reciprocal(asm, self.spec, value)
        else:
            broadcast(asm, value, self.least)
        for number in range(self.vectors):
            asm.emit("vmovups", self.reciprocal(number), value)

    def largest(self, source: MatrixPlace, starts: Sequence[int], inputs: int) -> None:
        """Update the largest magnitudes with `inputs` inputs, as integers: NaN is the largest.

        `starts`: the byte offset of each vector of columns in a row of the source.
        """
        asm = self.asm
        sinks = [vector(asm, number) for number in range(self.vectors)]
        bits, loaded = vector(asm, self.vectors), vector(asm, self.vectors + 1)
        begin_largest(asm, [], bits)
        for number, sink in enumerate(sinks):
            asm.emit("vmovups", sink, self.reciprocal(number))
        asm.emit("lea", r8, Memory(source.base, source.offset))
        with counted_down(asm, dword(r10), inputs):
            for sink, start in zip(sinks, starts, strict=True):
                asm.emit("vandps", loaded, bits, Memory(r8, start))
                asm.emit("vpmaxud", sink, sink, loaded)
            asm.emit("add", r8, source.pitch)
        for number, sink in enumerate(sinks):
            asm.emit("vmovups", self.reciprocal(number), sink)

    def scales(self) -> None:
        """Compute reciprocals and scales from the largest magnitudes."""
        raise NotImplementedError

    def convert(self, source: MatrixPlace, starts: Sequence[int], inputs: int) -> None:
        """Write `inputs` inputs to PANEL in the format in which they are multiplied."""
        raise NotImplementedError

    def outputs(self, values: list[Register], row: Register, scratch: list[Register]) -> None:
        """Append code that turns a row's sums into float32 outputs, by its factor and bias.

        `values`: a register for each vector of columns; `row` points at the factor and the bias.
        """
        raise NotImplementedError


class CsrInt8(ScaledInputs):
    """Appends the int8 code of a pass, from staged inputs."""

    def scales(self) -> None:
        """Compute reciprocals and scales from the largest magnitudes."""
        asm, largest, value = self.asm, vector(self.asm, 0), vector(self.asm, 1)
        for number in range(self.vectors):
            asm.emit("vmovups", largest, self.reciprocal(number))
            emit_scale_of(asm, largest, value, largest)
            asm.emit("vmovups", self.reciprocal(number), value)
            asm.emit("vmovups", self.scale(number), largest)

    def convert(self, source: MatrixPlace, starts: Sequence[int], inputs: int) -> None:
        """Write `inputs` inputs, staged at `source`, to PANEL as integers."""
        asm, together = self.asm, self.shape.arithmetic.together
        asm.emit("lea", r8, Memory(source.base, source.offset))
        with counted_down(asm, dword(r10), ceil_div(inputs, together)):
            one = {
                Arithmetic.BYTES: self._bytes,
                Arithmetic.PAIRS: self._pair,
                Arithmetic.INTEGERS: self._floats,
            }.get(self.shape.arithmetic)
            if one is None:
                self._line()
            else:
                for number in range(self.vectors):
                    one(number)
            asm.emit("add", r8, together * self.shape.pitch)
            asm.emit("add", PANEL, self.shape.panel_pitch)

    def _quantise(self, register: Register, number: int, position: int) -> None:
        """Append code: register = one input of a vector of columns, quantised to int32.

        `number` is the vector of columns; the input is the one `position` behind r8.
        """
        asm = self.asm
        asm.emit("vmovups", register, self._place(r8, position * self.shape.pitch, number))
        asm.emit("vmulps", register, register, self.reciprocal(number))
        to_int32(asm, self.spec, register)
        clip_negative(asm, self.spec, register)

    def _floats(self, number: int) -> None:
        value = vector(self.asm, number)
        self._quantise(value, number, 0)
        self.asm.emit("vcvtdq2ps", value, value)
        self.asm.emit("vmovups", self._place(PANEL, 0, number), value)

    def _line(self) -> None:
        """Append code that writes one input of up to 64 columns as bytes, a cache line.

        Packing leaves the columns in an order that unpacking the sums undoes.
        """
        asm, parts = self.asm, [vector(self.asm, number) for number in range(self.vectors)]
        for number, register in enumerate(parts):
            self._quantise(register, number, 0)
        parts += parts[-1:] * (4 - len(parts))
        low, high = vector(asm, 4), vector(asm, 5)
        asm.emit("vpackssdw", low, *parts[:2])
        asm.emit("vpackssdw", high, *parts[2:])
        asm.emit("vpacksswb", low, low, high)
        asm.emit("vpxord", low, low, asm.constant(_OFFSETS))
        asm.emit("vmovups", self._place(PANEL, 0, 0), low)

    def _bytes(self, number: int) -> None:
        parts = [vector(self.asm, 4 * number + position) for position in range(4)]
        for position, register in enumerate(parts):
            self._quantise(register, number, position)
        side_by_side(self.asm, parts)
        self.asm.emit("vmovups", self._place(PANEL, 0, number), parts[0])

    def _pair(self, number: int) -> None:
        first, second = (vector(self.asm, 2 * (number % 4) + position) for position in range(2))
        self._quantise(first, number, 0)
        self._quantise(second, number, 1)
        self.asm.emit("vpslld", second, second, 16)
        self.asm.emit("vpblendw", first, first, second, 0b10101010)
        self.asm.emit("vmovups", self._place(PANEL, 0, number), first)

    def outputs(self, values: list[Register], row: Register, scratch: list[Register]) -> None:
        asm = self.asm
        row_scale, bias, scale = scratch[:3]
        asm.emit("vbroadcastss", row_scale, Memory(row))
        if self.spec.bias is not None:
            asm.emit("vbroadcastss", bias, Memory(row, 4))
        for number, value in enumerate(values):
            asm.emit("vcvtdq2ps", value, value)
            last = row_scale
            if not self.fixed:
                asm.emit("vmulps", value, value, row_scale)
                asm.emit("vmovups", scale, self.scale(number))
                last = scale
            if self.spec.bias is None:
                asm.emit("vmulps", value, value, last)
            else:
                asm.emit("vfmadd213ps", value, last, bias)


# Arguments of the subroutine; it advances the first three past the data that it reads.
GROUPS, QUADS, ROWS, WORKSPACE = rdi, rsi, rdx, rcx
_ENTRY_BYTES = 32  # from one entry to the next: loads, a shift and a jump
_PREFETCH_AHEAD = 3072  # bytes, if the weights come from beyond L2
_BY_LOAD = 4  # offsets
_MOST_SCALE = 8  # of an index in an address
_ADDITIONS = {Arithmetic.BYTES: "vpaddd", Arithmetic.HALVES: "vaddph"}  # of two chains
# Sums of a segment begin with 0: its integers are exact as float32, its halves lose fewer digits.
_ADDED_AT_THE_END = (Arithmetic.INTEGERS, Arithmetic.HALVES)


def emit_core(asm: Assembler, entry: Label, shape: CsrShape, vectors: int, far: bool) -> None:
    """Append the subroutine that multiplies one block of weights by the panel of its inputs.

    It adds the products to the sums in the workspace, behind the panel, for passes of `vectors`
    vectors. `far`: weights come from beyond L2. Clobbers rax, rbx, r8-r12 and vectors.
    """
    asm.bind(entry)
    key = core_key(shape, vectors, far)
    asm.append_known(key, lambda: _CsrLoop(asm, shape, vectors, far).emit())


def core_key(shape: CsrShape, vectors: int, far: bool) -> Hashable:
    """Return the properties that the subroutine depends on."""
    return "csr core", shape.arithmetic, shape.pitch, shape.panel_bytes, shape.chains, vectors, far


def quad_bytes(arithmetic: Arithmetic) -> int:
    """Return the bytes of four offsets and four words."""
    return quad_of(np.int8 if arithmetic is Arithmetic.QUADS else np.uint32).itemsize


class _CsrLoop:
    """Appends the code of `emit_core` for passes of one width."""

    def __init__(self, asm: Assembler, shape: CsrShape, vectors: int, far: bool) -> None:
        self.asm, self.shape, self.far = asm, shape, far
        self.arithmetic = shape.arithmetic
        is_halves = self.arithmetic is Arithmetic.HALVES
        self.vectors = ceil_div(vectors, 2) if is_halves else vectors
        self.weight = vector(asm, asm.target.vector_registers - 1)
        self.inputs = vector(asm, asm.target.vector_registers - 2)
        self.four = vector(asm, asm.target.vector_registers - 3)
        self.scale, self.input_scale = shape.pitch // OFFSET_UNIT, shape.panel_pitch // OFFSET_UNIT
        self.quad_bytes = quad_bytes(shape.arithmetic)
        # Labels in the code, by the number of weights left.
        self.left = [asm.label(f"{count} left") for count in range(MOST + 1)]

    def emit(self) -> None:
        asm = self.asm
        entries, group, done = (asm.label(name) for name in ("entries", "group", "done"))
        asm.address(r9, entries)
        asm.bind(group)
        asm.emit("mov", dword(r11), Memory(GROUPS))
        asm.emit("mov", dword(r10), Memory(GROUPS, 4))
        asm.emit("mov", dword(r12), Memory(GROUPS, 8))
        asm.emit("add", GROUPS, GROUP_BYTES)
        asm.emit("sub", dword(r10), 0)
        asm.jump("jz", done)
        asm.emit("shl", r11, _ENTRY_BYTES.bit_length() - 1)
        asm.emit("add", r11, r9)
        asm.align(16)
        with counted_down(asm, dword(r10)):
            self._start()
            asm.emit("jmp", r11)
            self._products()
            self._finish()
        asm.jump("jmp", group)
        self._entries(entries)
        asm.bind(done)
        asm.emit("ret")

    def _sum(self, chain: int, number: int) -> Register:
        return vector(self.asm, chain * self.vectors + number)

    def _sums_place(self, number: int) -> Memory:
        return Memory(r8, self.shape.panel_bytes + number * self.asm.target.vector_bytes)

    def _start(self) -> None:
        asm = self.asm
        asm.emit("mov", dword(r8), Memory(ROWS))
        asm.emit("add", ROWS, 4)
        asm.emit("add", QUADS, r12)
        if self.scale > _MOST_SCALE:
            asm.emit("shl", r8, (self.scale // _MOST_SCALE).bit_length() - 1)
        asm.emit("lea", r8, Memory(WORKSPACE, 0, r8, min(self.scale, _MOST_SCALE)))
        for number in range(self.vectors):
            for chain in range(self.shape.chains):
                if chain == 0 and self.arithmetic not in _ADDED_AT_THE_END:
                    asm.emit("vmovups", self._sum(0, number), self._sums_place(number))
                else:
                    zero(asm, self._sum(chain, number))
        if self.far:
            asm.emit("prefetcht0", Memory(QUADS, _PREFETCH_AHEAD))

    def _products(self) -> None:
        if self.arithmetic is Arithmetic.QUADS:
            self._quads()
            return
        asm = self.asm
        for left in range(MOST, 0, -1):
            slot = -left % _BY_LOAD
            first = -QUAD.itemsize * ceil_div(left, _BY_LOAD)
            if slot == 0:
                asm.bind(self.left[left])
                asm.emit("mov", rax, Memory(QUADS, first))
                self._four(first)
                if self.far and left // _BY_LOAD % 2 == 0:
                    asm.emit("prefetcht0", Memory(QUADS, first + _PREFETCH_AHEAD))
            else:
                asm.emit("shr", rax, 16)
                asm.bind(self.left[left])
            asm.emit("movzx", dword(rbx), word(rax))
            asm.emit("lea", rbx, Memory(WORKSPACE, 0, rbx, self.input_scale))
            asm.emit("vpermilps", self.weight, self.four, 0x55 * slot)
            for number in range(self.vectors):
                self._product(slot % self.shape.chains, number)
        asm.bind(self.left[0])

    def _four(self, quad: int) -> None:
        """Bring the four words of a quad into every 128 bits."""
        wide = self.asm.target.isa == "avx512"
        load = "vbroadcastf32x4" if wide else "vbroadcastf128"
        self.asm.emit(load, self.four, Memory(QUADS, quad + 8))

    def _quads(self) -> None:
        asm = self.asm
        for left in range(MOST, 0, -_BY_LOAD):
            for count in range(left, left - _BY_LOAD, -1):
                asm.bind(self.left[count])
            first = -self.quad_bytes * (left // _BY_LOAD)
            self._quad(first)
            if self.far and left // _BY_LOAD % 4 == 0:
                asm.emit("prefetcht0", Memory(QUADS, first + _PREFETCH_AHEAD))
        asm.bind(self.left[0])

    def _quad(self, place: int) -> None:
        """Interleave four inputs, a byte for each of 64 columns, and multiply by four weights."""
        asm = self.asm
        inputs = [vector(asm, number) for number in range(4, 8)]
        pairs = [vector(asm, number) for number in range(8, 12)]
        asm.emit("mov", rax, Memory(QUADS, place))
        for number, register in enumerate(inputs):
            if number:
                asm.emit("shr", rax, 16)
            asm.emit("movzx", dword(rbx), word(rax))
            asm.emit("vmovdqu64", register, Memory(WORKSPACE, 0, rbx, self.input_scale))
        asm.emit("vpbroadcastd", self.weight, Memory(QUADS, place + 2 * _BY_LOAD))
        for number, four in interleaved(asm, inputs, pairs):
            asm.emit("vpdpbusd", vector(asm, number), four, self.weight)

    def _product(self, chain: int, number: int) -> None:
        asm, total = self.asm, self._sum(chain, number)
        place = Memory(rbx, number * asm.target.vector_bytes)
        if self.arithmetic is Arithmetic.BYTES:
            asm.emit("vmovups", self.inputs, place)
            asm.emit("vpdpbusd", total, self.inputs, self.weight)
        elif self.arithmetic is Arithmetic.PAIRS:
            asm.emit("vpmaddwd", self.inputs, self.weight, place)
            asm.emit("vpaddd", total, total, self.inputs)
        elif self.arithmetic is Arithmetic.HALVES:
            asm.emit("vfmadd231ph", total, self.weight, place)
        else:
            asm.emit("vfmadd231ps", total, self.weight, place)

    def _finish(self) -> None:
        """Add the chains up, in pairs, and store the sums."""
        chains = self.shape.chains
        add = _ADDITIONS.get(self.arithmetic, "vaddps")
        while chains > 1:
            chains //= 2
            for chain in range(chains):
                for number in range(self.vectors):
                    total, other = self._sum(chain, number), self._sum(chain + chains, number)
                    self.asm.emit(add, total, total, other)
        for number in range(self.vectors):
            total, place = self._sum(0, number), self._sums_place(number)
            if self.arithmetic is Arithmetic.INTEGERS:
                self.asm.emit("vcvtps2dq", total, total)
                self.asm.emit("vpaddd", total, total, place)
            elif self.arithmetic is Arithmetic.HALVES:
                self.asm.emit("vaddph", total, total, place)
            self.asm.emit("vmovups", place, total)

    def _entries(self, entries: Label) -> None:
        """Append a jump table of code: entry n jumps to the code of a segment's last n products.

        Each entry first loads the offsets and weights of a quad that is not full.
        """
        asm = self.asm
        asm.align(_ENTRY_BYTES)
        asm.bind(entries)
        for count in range(MOST + 1):
            asm.align(_ENTRY_BYTES)
            slot = -count % _BY_LOAD
            if slot and self.arithmetic is not Arithmetic.QUADS:
                quad = -QUAD.itemsize * ceil_div(count, _BY_LOAD)
                asm.emit("mov", rax, Memory(QUADS, quad))
                self._four(quad)
                asm.emit("shr", rax, 16 * slot)
            asm.jump("jmp", self.left[count])
        asm.align(_ENTRY_BYTES)


_SUMS, _Y, _ADDED, _TURNS_LEFT = r8, r9, rcx, r10


@dataclass(frozen=True)
class RowEnds:
    """Places of rows of sums and of their outputs y, for the code that turns one into the other.

    `vectors`: for each vector of a row, its byte offset in the sums and in y. `added` is added to
    the sums before the activation; it may be y itself. `columns`: existing columns if there is a
    single vector that is not full; None for all.
    """

    sums: MatrixPlace
    y: MatrixPlace
    added: MatrixPlace | None
    vectors: Sequence[tuple[int, int]]
    columns: int | None


def finish_rows(asm: Assembler, activation: Activation, ends: RowEnds, rows: int) -> None:
    """y = activation(sums + added) for `rows` rows. A row is read before it is written.

    `added.base` may be rcx. Clobbers rax, rcx, r8-r10 and all vectors.
    """
    places = ((_ADDED, ends.added), (_SUMS, ends.sums), (_Y, ends.y))
    moving = [(register, place) for register, place in places if place is not None]
    for register, place in moving:
        asm.emit("lea", register, Memory(place.base, place.offset))
    at_once = max(1, asm.target.vector_registers // 2 // len(ends.vectors))
    turns, rest = divmod(rows, at_once)
    masks = Masks(asm, ends.columns or 0, ends.columns or 0)

    def turn() -> None:
        _some_rows(asm, activation, ends, at_once, masks)
        for register, place in moving:
            asm.emit("add", register, at_once * place.pitch)

    repeat(asm, turns, _TURNS_LEFT, turn)
    if rest:
        _some_rows(asm, activation, ends, rest, masks)


def _some_rows(
    asm: Assembler, activation: Activation, ends: RowEnds, rows: int, masks: Masks
) -> None:
    whole = ends.columns is None
    moves = [(row, *pair) for row in range(rows) for pair in ends.vectors]
    values = [vector(asm, number) for number in range(len(moves))]
    free = [vector(asm, n) for n in range(len(values), asm.target.vector_registers)]
    for value, (row, start, place) in zip(values, moves, strict=True):
        asm.emit("vmovups", value, Memory(_SUMS, row * ends.sums.pitch + start))
        if ends.added is None:
            continue
        operand = Memory(_ADDED, row * ends.added.pitch + place)
        if not whole:
            masks.load(free[0], operand, whole)
        asm.emit("vaddps", value, value, operand if whole else free[0])
    apply_activation(asm, activation, values, free)
    for value, (row, _, place) in zip(values, moves, strict=True):
        masks.store(Memory(_Y, row * ends.y.pitch + place), value, whole)


def activate_rows(
    asm: Assembler,
    spec: MatVec,
    shape: CsrShape,
    vectors: int,
    rows: int,
    scaled: tuple[ScaledInputs, Memory] | None,
) -> None:
    """Turn rows of sums into outputs in place: first by their scales, then by the activation.

    `scaled`: the scales of columns, and a place with the address of the first row's factor and
    bias, which advances. Sums of `HALVES` are float16, in the first half of their rows.
    """
    values = [vector(asm, number) for number in range(vectors)]
    scratch = [vector(asm, n) for n in range(vectors, asm.target.vector_registers)]
    vector_bytes, load = asm.target.vector_bytes, "vmovups"
    sum_bytes = vector_bytes
    if shape.arithmetic is Arithmetic.HALVES:
        load, sum_bytes = "vcvtph2ps", vector_bytes // 2
    asm.emit("lea", r8, Memory(rsp, shape.panel_bytes))
    if scaled is not None:
        asm.emit("mov", r9, scaled[1])
    with counted_down(asm, dword(r10), rows):
        for number, value in enumerate(values):
            asm.emit(load, value, Memory(r8, number * sum_bytes))
        if scaled is not None:
            scaled[0].outputs(values, r9, scratch)
            asm.emit("add", r9, 8)
        apply_activation(asm, spec.activation, values, scratch)
        for number, value in enumerate(values):
            asm.emit("vmovups", Memory(r8, number * vector_bytes), value)
        asm.emit("add", r8, shape.pitch)
    if scaled is not None:
        asm.emit("mov", scaled[1], r9)
