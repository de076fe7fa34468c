"""C = A B: tiles of sums in registers, lanes over the columns of C.

A step of the depth, for a tile of rows by vectors, four steps a turn of the loop:

    vbroadcastss zmm2, [rax+pitch*row]        A[row, k]
    vmovups      zmm0, [rcx+64*v]             B[k, 16 columns], once for all rows
    vfmadd231ps  zmm31, zmm2, zmm0            row by row, vector by vector

    strip of columns -> tile of rows -> depth

A strip of B stays in L2 while all tiles of rows pass over it. Where B is stored transposed, each
strip is first transposed to the stack (`few_rows` has the exception). A is read where it lies,
transposed or not. docs/kernels/dense.md explains its bounds.

Pairs of bfloat16 along the depth take the place of elements, and `vdpbf16ps` the place of the FMA:
each strip of B, or the whole of A, is first rounded to the stack (`pairs`). Quads of bytes do so
with `vpdpbusd`, where A or B is a layer's weights (`quads`).
"""

from collections.abc import Hashable, Iterator

import numpy as np

from sparsejit.asm_templates.batch.transpose import MatrixPlace, transpose
from sparsejit.asm_templates.dense_product.few_rows import emit_few_rows, has_few_rows
from sparsejit.asm_templates.dense_product.pairs import (
    StripColumns,
    emit_paired_rows,
    emit_paired_strip,
    pair_pitch,
)
from sparsejit.asm_templates.dense_product.quads import (
    emit_quantised_rows,
    emit_quantised_strip,
    quad_pitch,
    scale_offset,
)
from sparsejit.asm_templates.dense_product.tiling import (
    UNROLL,
    Packed,
    RowTiles,
    Tiling,
    chains,
    tiling,
)
from sparsejit.asm_templates.gather.int8_boundary import emit_output
from sparsejit.asm_templates.shared.activation import apply_activation
from sparsejit.asm_templates.shared.constants import load_constant
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.masks import (
    TAIL_MASK,
    lane_mask,
    load_masked,
    masked_load,
    set_tail_mask,
    store_masked,
)
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.ir.spec import DenseProduct, MatVec
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    r8,
    r9,
    r10,
    r11,
    r12,
    r13,
    r14,
    rax,
    rbp,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
)
from sparsejit.x86.routines import make_room, pop, push

_A, _B, _STEPS_LEFT = rax, rcx, r8  # of a tile, moving along the depth
_TILE_A, _TILE_C, _TILES_LEFT = r9, r10, rbx
_STRIP_B, _STRIP_C, _STRIPS_LEFT = r11, r12, rbp
_FRAME, _AHEAD = r13, r14
# The matrix that is added, whose address comes in a register. A is constant then, and B is neither
# transposed nor fetched ahead, so that r13 and r14 are free for it.
ADDED = rax
_STRIP_ADDED, _TILE_ADDED = r13, r14
_SAVED = (rbx, rbp, r12, r13, r14)
_LANES = 16  # of int32
# A strip from beyond L2 is fetched ahead if at least 3 tiles work on the strip before it.
_TILES_TO_FETCH_IN = 3
# Packed rows of A are prefetched a page ahead, which no hardware prefetcher does.
_A_AHEAD_BYTES = 4096


def emit_dense_product(
    asm: Assembler,
    spec: DenseProduct,
    a: Packed | None = None,
    b: Packed | None = None,
    tiles: Tiling | None = None,
    each: MatVec | None = None,
) -> None:
    """Append C = activation(scale * A B), or of constants with their bias; see `spec.DenseProduct`.

    rdi: A, rdx: B, rsi: C, where C overlaps neither; all three are kept. `a` or `b` is that operand
    as a constant, packed for `tiles`, with scale and bias inside; its register is used only if
    `in_register`. `ADDED`: the matrix that is added, if there is one; it may be C. `each`: the
    layer of one row of A in quads.
    Clobbers rax, rcx, r8-r11, the vector registers and k5-k7, and uses the stack below rsp.
    """
    if has_few_rows(spec, asm.target) and spec.together == 1:
        emit_few_rows(asm, spec)
    else:
        _ProductCode(asm, spec, a, b, tiles or tiling(spec, asm.target), each).emit()


class _ProductCode:
    """Appends the code of a product."""

    def __init__(
        self,
        asm: Assembler,
        spec: DenseProduct,
        a: Packed | None,
        b: Packed | None,
        tiles: Tiling,
        each: MatVec | None,
    ) -> None:
        self.asm, self.spec, self.tiles, self.each = asm, spec, tiles, each
        self.packed_a, self.packed_b = a, b
        self.lanes, self.vector_bytes = asm.target.lanes, asm.target.vector_bytes
        self.a_literal, self.b_literal = (
            None if each is None or each.in_register else Literal(asm.literal(each.stream))
            for each in (a, b)
        )
        # The operands that are copied to the stack first.
        self.copies_a = spec.together > 1 and a is None
        self.copies_b = (spec.together > 1 or spec.transposed) and b is None
        # Strides of A, in bytes: from row to row, and along the depth.
        copied_pitch = quad_pitch if spec.quads else pair_pitch
        pitch = copied_pitch(spec.depth) if self.copies_a else spec.a_pitch
        self.a_row, self.a_step = (pitch, 4)[:: -1 if spec.a_transposed else 1]
        # On the stack: a strip of B, then A, then the strip's rows where these are paired first.
        strip = (spec.steps + int(spec.quads)) * tiles.vectors * self.vector_bytes
        self.a_at = strip if self.copies_b else 0
        self.turned_at = self.a_at + (spec.rows * self.a_row if self.copies_a else 0)
        self.turns_pairs = spec.pairs and spec.transposed
        turned = tiles.vectors * self.lanes * pair_pitch(spec.depth) if self.turns_pairs else 0
        self.room = self.turned_at + turned
        beyond_l2 = b is not None and b.stream.nbytes > asm.target.l2_bytes
        self.tiles_a_strip = sum(each.count for each in tiles.row_tiles)
        self.fetches_ahead = beyond_l2 and self.tiles_a_strip >= _TILES_TO_FETCH_IN

    def emit(self) -> None:
        asm = self.asm
        push(asm, _SAVED)
        if self.copies_a or self.copies_b:
            asm.emit("mov", _FRAME, rsp)
            make_room(asm, self.room)
        if self.each is not None and self.copies_a:
            emit_quantised_rows(asm, self.spec, self.each, rsp)
        elif self.copies_a:
            sizes, into = (self.spec.rows, self.spec.depth), MatrixPlace(rsp, self.a_row, self.a_at)
            emit_paired_rows(asm, *sizes, MatrixPlace(rdi, self.spec.a_pitch), into)
        if self.b_literal is None:
            asm.emit("mov", _STRIP_B, rdx)
        else:
            asm.emit("lea", _STRIP_B, self.b_literal)
        asm.emit("mov", _STRIP_C, rsi)
        if self.spec.added_pitch is not None:
            asm.emit("mov", _STRIP_ADDED, ADDED)
        strips, rest = divmod(self.spec.columns, self.tiles.vectors * self.lanes)
        repeat(asm, strips, _STRIPS_LEFT, lambda: self._strip(self.tiles.vectors, 0))
        if rest:
            vectors = ceil_div(rest, self.lanes)
            self._strip(vectors, rest % self.lanes)
        if self.copies_a or self.copies_b:
            asm.emit("mov", rsp, _FRAME)
        pop(asm, _SAVED)

    def _strip(self, vectors: int, lanes_of_last: int) -> None:
        """Append a strip of C: all its rows by `vectors` vectors of columns.

        The last vector has `lanes_of_last` lanes, or all if that is 0.
        """
        asm, spec = self.asm, self.spec
        if spec.transposed:
            self._transpose(vectors, lanes_of_last)
        elif self.copies_b:
            strip = MatrixPlace(_STRIP_B, spec.b_pitch)
            columns = StripColumns(vectors, lanes_of_last)
            if self.each is not None:
                emit_quantised_strip(asm, spec, self.each, strip, columns)
            else:
                emit_paired_strip(asm, spec, strip, columns)
        if lanes_of_last and asm.target.isa == "avx512":
            set_tail_mask(asm, lanes_of_last)
        if self.a_literal is None:
            asm.emit("mov", _TILE_A, rsp if self.copies_a else rdi)
            if self.a_at and self.copies_a:
                asm.emit("add", _TILE_A, self.a_at)
        else:
            asm.emit("lea", _TILE_A, self.a_literal)
        asm.emit("mov", _TILE_C, _STRIP_C)
        if spec.added_pitch is not None:
            asm.emit("mov", _TILE_ADDED, _STRIP_ADDED)
        if self.fetches_ahead:
            asm.emit("lea", _AHEAD, Memory(_STRIP_B, self._strip_bytes(vectors)))
        for each in self.tiles.row_tiles:
            self._row_tiles(each, vectors, lanes_of_last)
        asm.emit("add", _STRIP_B, self._strip_bytes(vectors))
        asm.emit("add", _STRIP_C, vectors * self.vector_bytes)
        if spec.added_pitch is not None:
            asm.emit("add", _STRIP_ADDED, vectors * self.vector_bytes)

    def _strip_bytes(self, vectors: int) -> int:
        """Bytes from one strip of B to the next."""
        if self.packed_b is not None:
            around = self.packed_b.biased + self.packed_b.ends
            return (self.spec.steps + around) * vectors * self.vector_bytes
        if self.spec.transposed:
            return vectors * self.lanes * self.spec.b_pitch
        return vectors * self.vector_bytes

    def _transpose(self, vectors: int, lanes_of_last: int) -> None:
        strip = MatrixPlace(_STRIP_B, self.spec.b_pitch)
        if self.turns_pairs:
            turned = MatrixPlace(rsp, pair_pitch(self.spec.depth), self.turned_at)
            rows = vectors * self.lanes - (lanes_of_last and self.lanes - lanes_of_last)
            emit_paired_rows(self.asm, rows, self.spec.depth, strip, turned)
            strip = turned
        for number in range(vectors):
            is_partial = lanes_of_last and number == vectors - 1
            transpose(
                self.asm,
                strip.row(number * self.lanes),
                MatrixPlace(rsp, vectors * self.vector_bytes, number * self.vector_bytes, True),
                lanes_of_last if is_partial else self.lanes,
                self.spec.steps,
            )

    def _row_tiles(self, each: RowTiles, vectors: int, lanes_of_last: int) -> None:
        height = each.height

        def body() -> None:
            _ProductTile(self, height, vectors, lanes_of_last).emit()
            if self.packed_a is not None:
                self.asm.emit("mov", _TILE_A, _A)
            else:
                self.asm.emit("add", _TILE_A, height * self.a_row)
            self.asm.emit("add", _TILE_C, height * self.spec.c_pitch)
            if self.spec.added_pitch is not None:
                self.asm.emit("add", _TILE_ADDED, height * self.spec.added_pitch)

        repeat(self.asm, each.count, _TILES_LEFT, body)


class _ProductTile:
    """A tile of `height` rows by `vectors` vectors, over the whole depth."""

    def __init__(
        self, product: _ProductCode, height: int, vectors: int, lanes_of_last: int
    ) -> None:
        self.product, self.asm, self.spec = product, product.asm, product.spec
        self.height, self.vectors, self.lanes_of_last = height, vectors, lanes_of_last
        self.sums = height * vectors
        # One of several constants may be cut over threads, and must sum in the same order then.
        is_one = product.packed_a is not None and product.packed_a.in_register
        self.chains = 1 if is_one else chains(self.sums, self.spec.steps)
        self.multiply = "vdpbf16ps" if self.spec.pairs else "vfmadd231ps"
        if self.spec.quads:
            self.multiply = "vpdpbusd"
        self.bytes_of_a = self.spec.quads and product.copies_a
        self.wide = self.asm.target.isa == "avx512"
        self.vector_bytes = product.vector_bytes
        # Elements of A and vectors of B come behind the bias, if there is one.
        self.a_start = 4 * height if product.packed_a and product.packed_a.biased else 0
        biased = product.packed_b is not None and product.packed_b.biased
        self.b_start = vectors * self.vector_bytes if biased else 0
        in_place = product.packed_b is None and not product.copies_b
        self.b_pitch = self.spec.b_pitch if in_place else vectors * self.vector_bytes
        self.masks_b = in_place and lanes_of_last > 0

    def emit(self) -> None:
        asm = self.asm
        asm.emit("mov", _A, _TILE_A)
        asm.emit("mov", _B, rsp if self.product.copies_b else _STRIP_B)
        self._start()
        if self.product.packed_a is self.product.packed_b is None:
            asm.append_known(self._key, self._depth)
        else:
            self._depth()
        if self.product.packed_a is not None and self.a_start:
            asm.emit("add", _A, self.a_start)
        self._finish()
        if self.product.packed_a is not None and self.product.packed_a.ends:
            asm.emit("add", _A, 4 * self.height * self.product.packed_a.ends)

    @property
    def _key(self) -> Hashable:
        """The parameters of the code of the loop over the depth."""
        sizes = self.height, self.vectors, self.spec.depth, self.chains
        left = self.product.a_row, self.product.a_step, self.spec.together
        return "depth", *sizes, *left, self.b_pitch, self.masks_b

    def _depth(self) -> None:
        turns, rest = divmod(self.spec.steps, UNROLL)
        repeat(self.asm, turns, _STEPS_LEFT, lambda: self._steps(UNROLL))
        self._steps(rest)

    def _sum(self, row: int, number: int, chain: int = 0) -> Register:
        top = self.asm.target.vector_registers - 1
        return vector(self.asm, top - (chain * self.sums + row * self.vectors + number))

    def _start(self) -> None:
        """Append code that sets the tile's sums to the bias of rows or of columns, or to zero."""
        asm = self.asm
        for row in range(self.height):
            for number in range(self.vectors):
                first = self._sum(row, number)
                if self.a_start:
                    asm.emit("vbroadcastss", first, Memory(_A, 4 * row))
                elif self.b_start:
                    asm.emit("vmovups", first, Memory(_B, number * self.vector_bytes))
                else:
                    zero(asm, first)
                for chain in range(1, self.chains):
                    zero(asm, self._sum(row, number, chain))
        if self.masks_b and not self.wide:
            asm.emit("vmovups", self._mask, lane_mask(asm, self.lanes_of_last))

    @property
    def _mask(self) -> Register:
        """AVX2: the register of the last vector's mask, behind B's vectors and A's element."""
        return vector(self.asm, self.vectors + 1)

    def _steps(self, count: int) -> None:
        """Append the products of `count` steps along the depth; A and B advance past them."""
        if count == 0:
            return
        asm = self.asm
        steps = np.arange(count * self.sums)
        step, place = np.divmod(steps, self.sums)
        row, number = np.divmod(place, self.vectors)
        top = asm.target.vector_registers - 1
        total = vector(asm, top - (step % self.chains * self.sums + place))
        element, right = vector(asm, self.vectors), vector(asm, number)
        b_place = Memory(_B, self.b_start + step * self.b_pitch + number * self.vector_bytes)
        a_place = self._element(step, row)
        # Only one product reads it. vpdpbusd takes unsigned bytes of A from a register alone.
        comes_with = self.vectors == 1 < self.height and self.wide and not self.bytes_of_a
        lines = [] if comes_with else [line("vbroadcastss", element, a_place, when=number == 0)]
        if self.product.packed_a is not None:
            index = step * self.height + row
            ahead = Memory(_A, self.a_start + 4 * index + _A_AHEAD_BYTES)
            begins_line = (number == 0) & (index % (CACHE_LINE_BYTES // 4) == 0)
            lines.insert(0, line("prefetcht0", ahead, when=begins_line))
        if self.height == 1 and not self.masks_b:
            if self.spec.quads and not self.bytes_of_a:
                lines.append(line("vmovups", right, b_place))
                lines.append(line(self.multiply, total, right, element))
            else:
                lines.append(line(self.multiply, total, element, b_place))
        else:
            lines += self._loads(right, b_place, row == 0, number == self.vectors - 1)
            from_a = a_place._replace(broadcast=16) if comes_with else element
            factors = (from_a, right) if self.bytes_of_a else (right, from_a)
            lines.append(line(self.multiply, total, *factors))
        fetches, fetched_bytes = self._fetches(count)
        asm.stamp(len(steps), lines + fetches)
        if fetched_bytes:
            asm.emit("add", _AHEAD, fetched_bytes)
        a_step = 4 * self.height if self.product.packed_a is not None else self.product.a_step
        asm.emit("add", _A, count * a_step)
        asm.emit("add", _B, count * self.b_pitch)

    def _fetches(self, count: int) -> tuple[list[Line], int]:
        """Return this tile's prefetches of the next strip during `count` steps, and their bytes."""
        if not self.product.fetches_ahead:
            return [], 0
        strip_lines = count * self.vectors * self.vector_bytes // CACHE_LINE_BYTES
        own = ceil_div(strip_lines, self.product.tiles_a_strip)
        fetched = np.arange(1, count * self.sums + 1) * own // (count * self.sums)
        place = Memory(_AHEAD, CACHE_LINE_BYTES * (fetched - 1))
        fetch = line("prefetcht1", place, when=np.diff(fetched, prepend=0) != 0)
        return [fetch], own * CACHE_LINE_BYTES

    def _element(self, step: np.ndarray, row: np.ndarray) -> Memory:
        if self.product.packed_a is not None:
            return Memory(_A, self.a_start + 4 * (step * self.height + row))
        return Memory(_A, self.product.a_step * step + self.product.a_row * row)

    def _loads(
        self, right: Register, place: Memory, first: np.ndarray, last: np.ndarray
    ) -> list[Line]:
        """Return lines that load vectors of a row of B, and read nothing beyond its columns."""
        if not self.masks_b:
            return [line("vmovups", right, place, when=first)]
        whole = line("vmovups", right, place, when=first & ~last)
        mask = TAIL_MASK if self.wide else self._mask
        return [whole, masked_load(right, mask, place, first & last)]

    def _finish(self) -> None:
        """Add up chains, scale, apply the activation and store."""
        asm, spec = self.asm, self.spec
        sums = [self._sum(row, v) for row in range(self.height) for v in range(self.vectors)]
        for chain in range(1, self.chains):
            for number, total in enumerate(sums):
                other = self._sum(*divmod(number, self.vectors), chain)
                asm.emit("vpaddd" if spec.quads else "vaddps", total, total, other)
        free = [vector(asm, n) for n in range(asm.target.vector_registers - self.sums)]
        if spec.scale != 1.0 and self.product.packed_a is self.product.packed_b is None:
            load_constant(asm, free[0], spec.scale)
            for total in sums:
                asm.emit("vmulps", total, total, free[0])
        if self.product.each is not None:
            self._from_integers(self.product.each, sums, free[0])
        mask = free[0] if self.lanes_of_last and not self.wide else None
        if spec.added_pitch is not None:
            self._add(sums, spec.added_pitch, mask, free[1])
        apply_activation(asm, spec.activation, sums, free)
        if mask is not None:
            asm.emit("vmovups", mask, lane_mask(asm, self.lanes_of_last))
        for number, total in enumerate(sums):
            place = self._place(_TILE_C, spec.c_pitch, number)
            if self._is_partial(number):
                store_masked(asm, place, TAIL_MASK if mask is None else mask, total)
            else:
                asm.emit("vmovups", place, total)

    def _from_integers(self, each: MatVec, sums: list[Register], scale: Register) -> None:
        """Turn int32 sums into outputs by the ends of weights and the scales of x."""
        asm, by_row = self.asm, self.product.copies_a
        for number, total in enumerate(sums):
            row, column = divmod(number, self.vectors)
            if each.x_steps is None and by_row and column == 0:
                own = row * self.product.a_row + scale_offset(self.spec.depth)
                asm.emit("vbroadcastss", scale, Memory(_TILE_A, own))
            elif each.x_steps is None and not by_row:
                behind = self.spec.steps * self.vectors + column
                asm.emit("vmovups", scale, Memory(rsp, self.vector_bytes * behind))
            emit_output(asm, each, total, self._ends(row, column), scale, scale)

    def _ends(self, row: int, column: int) -> Iterator[Memory]:
        """Yield the operands behind the weights that turn a sum into an output."""
        for end in (0, 1):
            if self.product.packed_a is not None:
                yield Memory(_A, 4 * (end * self.height + row), broadcast=_LANES)
            else:
                place = self.b_start + self.vector_bytes * (end * self.vectors + column)
                yield Memory(_B, place)

    def _place(self, base: Register, pitch: int, number: int) -> Memory:
        """Return the memory operand of the tile's `number`-th vector in a matrix.

        The tile begins at `base`; rows are `pitch` bytes apart.
        """
        row, column = divmod(number, self.vectors)
        return Memory(base, row * pitch + column * self.vector_bytes)

    def _is_partial(self, number: int) -> bool:
        return self.lanes_of_last > 0 and number % self.vectors == self.vectors - 1

    def _add(
        self, sums: list[Register], pitch: int, mask: Register | None, loaded: Register
    ) -> None:
        """Add the matrix at _TILE_ADDED, with rows `pitch` bytes apart; sets AVX2's mask."""
        asm = self.asm
        if mask is not None:
            asm.emit("vmovups", mask, lane_mask(asm, self.lanes_of_last))
        for number, total in enumerate(sums):
            place = self._place(_TILE_ADDED, pitch, number)
            if not self._is_partial(number):
                asm.emit("vaddps", total, total, place)
            elif mask is None:
                asm.emit("vaddps", total.masked(TAIL_MASK), total, place)
            else:
                load_masked(asm, loaded, mask, place)
                asm.emit("vaddps", total, total, loaded)
