"""A tile of queries of attention: softmax(scale Q K^T) V over the keys that one of them may see.

    emit_packing, emit_results   values, weighted by their powers, added up and written
    emit_queries, emit_scores    queries transposed, and their scores
    emit_powers                  the powers 2^(score - largest), and their sums
    emit_shares                  factors of the results of two tiles, if one adds to the other
    emit_attention               attention over the whole stack

Results:

    vmovups      zmm0, [rax]                   16 elements of a key's value, and 16, 16, 16
    vbroadcastss zmm4, [scores+4*q]            its power in query q
    vfmadd231ps  zmm31, zmm4, zmm0             ... of 6 queries by 4 vectors

Scores and powers:

    vmovups      zmm8, [rbx+64*d]              element d of 16 queries, a lane each
    vfmadd231ps  zmm0, zmm8, [rax+4*d]{1to16}  times element d of a key, anywhere in K
    vfmadd231ps  zmm1, zmm8, [rcx+4*d]{1to16}  ... of 8 keys

    vblendmps    zmm0{k1}, -infinity, zmm0     for queries that may not see the key
    2^(score - largest)                        lane by lane, nothing is added across lanes

For scores, lanes are queries, so that keys need not lie side by side: a table has the offset of
each (`tables`). Queries are transposed before; scores stay in L1. A tile that adds to the results
of others weights both by their sums.
"""

from math import e as euler
from math import log2

import numpy as np

from sparsejit.asm_templates.attention.frame import (
    BASE,
    BLOCK_SLOT,
    COUNTERS,
    FLOAT,
    FRAME,
    KEY_ROWS,
    KEY_SLOT,
    QUERY_SLOT,
    RESULT_SLOT,
    SCORES,
    TABLE,
    TILE_SLOT,
    VALUE_SLOT,
    AttentionCode,
    AttentionStack,
    packed_pitch,
    paired_pitch,
)
from sparsejit.asm_templates.attention.paired_operands import (
    PairedPowers,
    emit_paired_operands,
    emit_pairs_of_row,
)
from sparsejit.asm_templates.attention.tables import KEYS, AttentionTiles, IntArray
from sparsejit.asm_templates.pointwise.power_of_two import emit_exp2
from sparsejit.asm_templates.shared.constants import load_constant
from sparsejit.asm_templates.shared.interleave import transposed
from sparsejit.asm_templates.shared.loops import counted_up, repeat
from sparsejit.asm_templates.shared.masks import load_masked, tail_mask
from sparsejit.asm_templates.shared.rows import load, store, vector, zero
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div
from sparsejit.x86.assembler import Assembler, Line, line
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    k,
    r8,
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
)
from sparsejit.x86.routines import pop, push

# Vectors of a value that are in registers at once, by level; sums of rows take the other registers.
_AT_ONCE = {"avx512": 4, "avx2": 2}


def readings(rows: int, values: int, target: Target) -> int:
    """Return the number of times that the code for a tile of `rows` queries reads a vector of V."""
    return rows // _rows_at_once(rows, len(_parts(values, target)[0]), target)


def emit_packing(code: AttentionCode) -> None:
    """Copy the values, which are read many times, to rows side by side."""
    asm, values = code.asm, code.stack.values
    asm.emit("mov", rcx, Memory(FRAME, VALUE_SLOT))
    asm.emit("lea", rdx, Memory(FRAME, code.places.values))

    def row() -> None:
        for number, first in enumerate(range(0, values, code.lanes)):
            register = vector(asm, number % 4)
            load(asm, register, rcx, first, values, vector(asm, 4))
            asm.emit("vmovups", Memory(rdx, number * code.vector_bytes), register)
        asm.emit("add", rcx, code.stack.packed_from)
        asm.emit("add", rdx, packed_pitch(values, asm.target))

    repeat(asm, code.stack.keys, rsi, row)


def emit_results(code: AttentionCode, adds: bool) -> None:
    """Append the code of a tile's results: values of the keys, weighted by their powers, added up.

    With `adds` the weighted results that an earlier tile stored for the same queries are added.
    """
    asm, rows, place = code.asm, code.tiles.rows, Memory(FRAME, BLOCK_SLOT)
    for part in _parts(code.stack.values, asm.target):
        block = _ResultBlock(code, int(part[0]), len(part))
        asm.emit("xor", dword(rax), dword(rax))
        asm.emit("mov", place, rax)
        if block.rows == rows:
            block.emit(adds)
            continue
        with counted_up(asm, place, FLOAT * block.rows, FLOAT * rows):
            block.emit(adds)


def _parts(values: int, target: Target) -> list[IntArray]:
    """Return the numbers of a value row's vectors, in parts whose sums are in registers at once."""
    vectors = ceil_div(values, target.lanes)
    return np.array_split(np.arange(vectors), ceil_div(vectors, _AT_ONCE[target.isa]))


def _rows_at_once(rows: int, vectors: int, target: Target) -> int:
    """Return the most queries of a tile whose sums, of `vectors` vectors each, fit the registers.

    It divides `rows`, the queries of the tile.
    """
    most = (target.vector_registers - 3 - vectors) // vectors
    return max(count for count in range(1, most + 1) if rows % count == 0)


class _ResultBlock:
    """Code of the results of some queries of a tile, in some vectors of the value features.

    The queries begin at the offset in BLOCK_SLOT.
    """

    def __init__(self, code: AttentionCode, first: int, vectors: int) -> None:
        self.code, self.asm, self.first, self.vectors = code, code.asm, first, vectors
        self.rows = _rows_at_once(code.tiles.rows, vectors, code.asm.target)
        sums = self.vectors * self.rows
        free = [vector(self.asm, number) for number in range(sums, sums + self.vectors + 3)]
        self.values, self.share, self.mask, self.spare = free[3:], *free[:3]
        self.tail = self.mask
        beyond = (self.first + self.vectors) * code.lanes - code.stack.values
        is_copied = code.stack.packed_from or code.stack.pairs
        self.last_lanes = code.lanes - (0 if is_copied else max(0, beyond))

    def emit(self, adds: bool) -> None:
        code, asm = self.code, self.asm
        code.start_groups(VALUE_SLOT)
        asm.emit("add", SCORES, Memory(FRAME, BLOCK_SLOT))
        for number in range(self.vectors * self.rows):
            zero(asm, vector(asm, number))
        if self.last_lanes < code.lanes:
            self.tail = tail_mask(asm, self.last_lanes, self.mask)
        with code.each_group(code.tiles.offsets):
            for key, row in enumerate(code.point(is_value=True)):
                self._key(key, row)
        self._write(adds)

    def _key(self, key: int, row: Register) -> None:
        code, asm, number = self.code, self.asm, np.arange(self.rows)
        for place, value in enumerate(self.values):
            source = Memory(row, (self.first + place) * code.vector_bytes)
            if place < self.vectors - 1 or self.last_lanes == code.lanes:
                asm.emit("vmovups", value, source)
            else:
                load_masked(asm, value, self.tail, source)
        share = Memory(SCORES, key * code.row_bytes + FLOAT * number)
        lines = [line("vbroadcastss", self.share, share)]
        for place, value in enumerate(self.values):
            total = vector(asm, number * self.vectors + place)
            lines.append(line(code.multiply, total, self.share, value))
        asm.stamp(self.rows, lines)

    def _write(self, adds: bool) -> None:
        code, asm, places = self.code, self.asm, self.code.places
        code.start(RESULT_SLOT)
        asm.emit("mov", SCORES, FRAME)
        for register in (TABLE, SCORES):
            asm.emit("add", register, Memory(FRAME, BLOCK_SLOT))
        old, old_share = self.values[0], self.mask
        for row in range(self.rows):
            code.point_row(rcx, row, 1)
            asm.emit("add", rcx, BASE)
            asm.emit("vbroadcastss", self.share, Memory(SCORES, places.share + FLOAT * row))
            if adds:
                place = Memory(SCORES, places.old_total + FLOAT * row)
                asm.emit("vbroadcastss", old_share, place)
            for number in range(self.vectors):
                total = vector(asm, row * self.vectors + number)
                first = (self.first + number) * code.lanes
                asm.emit("vmulps", total, total, self.share)
                if adds:
                    load(asm, old, rcx, first, code.stack.values, self.spare)
                    asm.emit("vfmadd231ps", total, old, old_share)
                store(asm, total, rcx, first, code.stack.values, self.spare)


_DEPTH_LEFT, _QUERIES = r8, rbx
_UNROLL = 32  # products of a key in a turn of the loop over the depth
# Finite and positive, so that a row that sees no key becomes zeros and not NaN.
_LEAST_SCORE, LEAST_TOTAL = -3.0e38, 1e-30


def emit_queries(code: AttentionCode) -> None:
    """Transpose the tile's rows of Q, times scale * log2(e), so that scores are exponents of 2."""
    asm, lanes, together = code.asm, code.lanes, code.stack.together
    squares, rest = divmod(code.stack.depth, together * lanes)
    code.start(QUERY_SLOT)
    asm.emit("lea", SCORES, Memory(FRAME, code.places.queries))
    load_constant(asm, code.total[0], code.stack.scale * log2(euler))

    def square() -> None:
        _transpose(code, together * lanes)
        asm.emit("add", BASE, together * code.vector_bytes)
        asm.emit("add", SCORES, lanes * code.row_bytes)

    def vector_of_rows() -> None:
        repeat(asm, squares, _DEPTH_LEFT, square)
        if rest:
            _transpose(code, rest)
        if code.tiles.width > 1:
            asm.emit("add", TABLE, FLOAT * lanes)
            asm.emit("sub", BASE, squares * together * code.vector_bytes)
            asm.emit("sub", SCORES, squares * lanes * code.row_bytes - code.vector_bytes)

    repeat(asm, code.tiles.width, _QUERIES, vector_of_rows)


def _transpose(code: AttentionCode, columns: int) -> None:
    """Append code that transposes and scales `columns` features of a vector of queries of the tile.

    The features begin at BASE plus each query's offset in the table; they go to SCORES.
    """
    asm, lanes, scale = code.asm, code.lanes, code.total[0]
    rows, spare = [vector(asm, number) for number in range(lanes)], vector(asm, lanes)
    for lane, row in enumerate(rows):
        code.point_row(rcx, lane, 0)
        asm.emit("add", rcx, BASE)
        if code.stack.pairs:
            emit_pairs_of_row(asm, row, vector(asm, lanes + 1), rcx, columns, scale)
        else:
            load(asm, row, rcx, 0, columns, spare if row is rows[-1] else rows[-1])
    steps = ceil_div(columns, code.stack.together)
    for number, column in enumerate(transposed(asm, rows, spare)[:steps]):
        if not code.stack.pairs:
            asm.emit("vmulps", column, column, scale)
        asm.emit("vmovups", Memory(SCORES, number * code.row_bytes), column)


def emit_scores(code: AttentionCode) -> None:
    """Append the code of a tile's scores, query times key, and of each query's largest score."""
    asm, steps = code.asm, code.stack.steps
    registers = _Registers(code)
    code.start_groups(KEY_SLOT)
    asm.emit("lea", _QUERIES, Memory(FRAME, code.places.queries))
    for largest in code.largest:
        load_constant(asm, largest, _LEAST_SCORE)
    registers.load_constants()
    with code.each_group():
        code.point(is_value=False)
        for each in registers.sums:
            for total in each:
                zero(asm, total)
        unroll = _UNROLL // code.tiles.width
        turns, rest = divmod(steps, unroll)
        repeat(asm, turns, _DEPTH_LEFT, lambda: registers.depth(unroll, turns + (rest > 0) > 1))
        registers.depth(rest, moves=False)
        if turns + (rest > 0) > 1:
            asm.emit("sub", _QUERIES, turns * unroll * code.row_bytes)
        for key in range(KEYS):
            registers.keep(key)


class _Registers:
    """The registers of `emit_scores`, and the code that uses them for a group of 8 keys.

    They are the sums (scores) of each key, then factors of the products, and masks.
    """

    def __init__(self, code: AttentionCode) -> None:
        self.code, self.asm, width = code, code.asm, code.tiles.width
        numbers = iter(range(KEYS * width, code.asm.target.vector_registers))
        self.sums = [
            [vector(self.asm, key * width + number) for number in range(width)]
            for key in range(KEYS)
        ]
        self.queries = [vector(self.asm, next(numbers)) for _ in range(width)]
        self.element = vector(self.asm, next(numbers))
        self.forbidden = vector(self.asm, next(numbers))
        if not code.wide:
            self.bits, self.seen = (vector(self.asm, next(numbers)) for _ in range(2))

    def load_constants(self) -> None:
        """Append code that loads the constants with which `keep` masks scores."""
        if self.code.tiles.all_see_all:
            return
        load_constant(self.asm, self.forbidden, float("-inf"))
        if not self.code.wide:
            bits = self.asm.literal((1 << np.arange(self.code.lanes)).astype(np.int32))
            self.asm.emit("vmovups", self.bits, Literal(bits))

    def depth(self, count: int, moves: bool) -> None:
        """Append code that adds `count` products of queries and each key to the sums.

        With `moves` the pointers into both advance past these features.
        """
        code, element = self.code, np.arange(count)
        lines: list[Line] = []
        for number, query in enumerate(self.queries):
            offset = element * code.row_bytes + number * code.vector_bytes
            lines.append(line("vmovups", query, Memory(_QUERIES, offset)))
        together, other = code.stack.together, paired_pitch(code.stack.depth)
        for key, sums in enumerate(self.sums):
            offset = key % together * other + FLOAT * element
            place = Memory(KEY_ROWS[key // together], offset)
            if code.wide and len(sums) == 1:
                place = place._replace(broadcast=code.lanes)
                lines.append(line(code.multiply, sums[0], self.queries[0], place))
                continue
            lines.append(line("vbroadcastss", self.element, place))
            for total, query in zip(sums, self.queries, strict=True):
                lines.append(line(code.multiply, total, query, self.element))
        self.asm.stamp(count, lines)
        if moves:
            for row in KEY_ROWS[: code.tiles.offsets]:
                self.asm.emit("add", row, FLOAT * count)
            self.asm.emit("add", _QUERIES, count * code.row_bytes)

    def keep(self, key: int) -> None:
        """Store a key's scores, -infinity for queries that may not see it; update `largest`."""
        asm, code = self.asm, self.code
        for number, scores in enumerate(self.sums[key]):
            if not code.tiles.all_see_all:
                self._forbid(key, number)
            place = key * code.row_bytes + number * code.vector_bytes
            asm.emit("vmovups", Memory(SCORES, place), scores)
            asm.emit("vmaxps", code.largest[number], code.largest[number], scores)

    def _forbid(self, key: int, number: int) -> None:
        asm, scores = self.asm, self.sums[key][number]
        tiles = self.code.tiles
        seen = Memory(TABLE, tiles.seen_at + FLOAT * (key * tiles.width + number))
        if self.code.wide:
            mask = k(1 + key % 4)
            asm.emit("mov", dword(rax), seen)
            asm.emit("kmovw", mask, dword(rax))
            asm.emit("vblendmps", scores.masked(mask), self.forbidden, scores)
        else:
            asm.emit("vpbroadcastd", self.seen, seen)
            asm.emit("vpand", self.seen, self.seen, self.bits)
            asm.emit("vpcmpeqd", self.seen, self.seen, self.bits)
            asm.emit("vblendvps", scores, self.forbidden, scores, self.seen)


def emit_powers(code: AttentionCode) -> None:
    """Replace each score by 2^(score - largest); store each row's largest score, sum, 1 / sum.

    Pairs of them take half the room.
    """
    asm, width = code.asm, code.tiles.width
    code.start_groups(KEY_SLOT)
    at_once = KEYS if code.wide else KEYS // 2
    pairs = PairedPowers(code, 3 * at_once + 1) if code.stack.pairs else None
    for total in code.total:
        zero(asm, total)
    with code.each_group():
        for first in range(0, KEYS * width, at_once):
            scores = [vector(asm, number) for number in range(at_once)]
            places = [Memory(SCORES, (first + n) * code.vector_bytes) for n in range(at_once)]
            for number, (register, place) in enumerate(zip(scores, places, strict=True)):
                asm.emit("vmovups", register, place)
                asm.emit("vsubps", register, register, code.largest[number % width])
            emit_exp2(asm, scores, [vector(asm, at_once + n) for n in range(2 * at_once + 1)])
            if pairs is not None:
                pairs.keep(first, scores)
                continue
            for register, place in zip(scores, places, strict=True):
                asm.emit("vmovups", place, register)
            while len(scores) > width:
                half = len(scores) // 2
                for left, right in zip(scores[:half], scores[half:], strict=True):
                    asm.emit("vaddps", left, left, right)
                scores = scores[:half]
            for total, each in zip(code.total, scores, strict=True):
                asm.emit("vaddps", total, total, each)
        if pairs is not None:
            pairs.move()
    _keep_sums(code)


def _keep_sums(code: AttentionCode) -> None:
    asm, places = code.asm, code.places
    least, one = vector(asm, 0), vector(asm, 1)
    load_constant(asm, least, LEAST_TOTAL)
    load_constant(asm, one, 1.0)
    for number, (largest, total) in enumerate(zip(code.largest, code.total, strict=True)):
        at = number * code.vector_bytes
        asm.emit("vmovups", Memory(FRAME, places.largest + at), largest)
        asm.emit("vmovups", Memory(FRAME, places.total + at), total)
        asm.emit("vmaxps", total, total, least)
        asm.emit("vdivps", total, one, total)
        asm.emit("vmovups", Memory(FRAME, places.share + at), total)


def emit_shares(code: AttentionCode, adds: bool) -> None:
    """Append code that saves each query's largest score and sum of powers, for later tiles.

    If this tile adds to the results of an earlier one, it instead computes the factors by which the
    earlier results and this tile's own sums are weighted.
    """
    _exchange_sums(code, adds)
    if adds:
        _weigh_both(code)


def _exchange_sums(code: AttentionCode, adds: bool) -> None:
    """Append code that saves each query's largest score and sum of powers in the frame's `sums`.

    With `adds` it loads from there, to `old_largest` and `old_total`, what an earlier tile saved.
    """
    asm, places = code.asm, code.places
    code.start(RESULT_SLOT)
    pairs = (places.old_largest, places.old_total) if adds else (places.largest, places.total)
    for row in range(code.tiles.rows):
        code.point_row(rcx, row, 2)
        asm.emit("add", rcx, FRAME)
        for number, place in enumerate(pairs):
            kept = Memory(rcx, places.sums + FLOAT * number)
            own = Memory(FRAME, place + FLOAT * row)
            asm.emit("mov", dword(rax), kept if adds else own)
            asm.emit("mov", own if adds else kept, dword(rax))


def _weigh_both(code: AttentionCode) -> None:
    """Append code for the factors that merge this tile's results with an earlier tile's.

    `share` = the factor of this tile's sums of values; `old_total` = the factor of the stored
    results.
    """
    asm, places = code.asm, code.places
    for at in range(0, code.row_bytes, code.vector_bytes):
        new, old, common, total = (vector(asm, number) for number in range(4))
        scratch = [vector(asm, number) for number in range(4, 9)]
        asm.emit("vmovups", new, Memory(FRAME, places.largest + at))
        asm.emit("vmovups", old, Memory(FRAME, places.old_largest + at))
        asm.emit("vmaxps", common, new, old)
        asm.emit("vsubps", new, new, common)
        asm.emit("vsubps", old, old, common)
        emit_exp2(asm, [new, old], scratch)
        asm.emit("vmulps", old, old, Memory(FRAME, places.old_total + at))
        asm.emit("vmovups", total, Memory(FRAME, places.total + at))
        asm.emit("vfmadd213ps", total, new, old)
        load_constant(asm, scratch[0], LEAST_TOTAL)
        asm.emit("vmaxps", total, total, scratch[0])
        for register, place in ((new, places.share), (old, places.old_total)):
            asm.emit("vdivps", register, register, total)
            asm.emit("vmovups", Memory(FRAME, place + at), register)


_SAVED = (rbx, rbp, r12, r13, r14, r15)
_OPERANDS = (rdi, rsi, rdx, rcx)


def emit_attention(asm: Assembler, stack: AttentionStack, tiles: AttentionTiles) -> None:
    """Append the whole attention kernel: every tile of every attention in the stack.

    rdi: Q, rsi: K, rdx: V, rcx: result, r8: scratch memory. Clobbers all but rbx, rbp, rsp and r12
    to r15.
    """
    push(asm, _SAVED)
    asm.emit("mov", FRAME, r8)
    for slot, register in enumerate(_OPERANDS):
        asm.emit("mov", Memory(FRAME, 8 * slot), register)
    _emit_axes(AttentionCode(asm, stack, tiles), 0)
    pop(asm, _SAVED)


def _emit_axes(code: AttentionCode, number: int) -> None:
    """Append loops over the stack's axes from `number` on, and all tiles in them."""
    asm, axes, tiles = code.asm, code.stack.axes, code.tiles
    if number == len(axes) - (tiles.masks > 1):
        asm.emit("lea", rax, Literal(code.numbers))
        asm.emit("mov", Memory(FRAME, TILE_SLOT), rax)
    if number == len(axes):
        counter = Memory(FRAME, COUNTERS)
        if code.stack.pairs:
            emit_paired_operands(code)
        elif code.stack.packed_from:
            emit_packing(code)
        repeat(asm, tiles.tiles, counter, lambda: _emit_tile(code, adds=False))
        repeat(asm, tiles.added, counter, lambda: _emit_tile(code, adds=True))
        return
    length, moves = axes[number]

    def turn() -> None:
        _emit_axes(code, number + 1)
        _emit_move(asm, moves, 1)

    repeat(asm, length, Memory(FRAME, COUNTERS + 8 * (number + 1)), turn)
    _emit_move(asm, moves, -length)


def _emit_move(asm: Assembler, moves: tuple[int, ...], times: int) -> None:
    for slot, move in enumerate(moves):
        if move:
            asm.emit("mov", rax, Memory(FRAME, 8 * slot))
            asm.emit("add", rax, times * move)
            asm.emit("mov", Memory(FRAME, 8 * slot), rax)


def _emit_tile(code: AttentionCode, adds: bool) -> None:
    """Append the results of one tile of queries, and move on to the next tile."""
    emit_queries(code)
    emit_scores(code)
    emit_powers(code)
    if code.tiles.added:
        emit_shares(code, adds)
    emit_results(code, adds)
    tile = Memory(FRAME, TILE_SLOT)
    code.asm.emit("mov", rax, tile)
    code.asm.emit("add", rax, code.tiles.header_bytes)
    code.asm.emit("mov", tile, rax)
