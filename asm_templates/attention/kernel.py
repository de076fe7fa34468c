"""softmax(scale Q K^T) V of a tile of queries, only for keys that one of them may see.

    vmovups     zmm8, [rbx+64*d]              element d of the 16 queries of a tile, a lane each
    vfmadd231ps zmm0, zmm8, [rax+4*d]{1to16}  times that of a key, wherever in K the key lies
    vfmadd231ps zmm1, zmm8, [rcx+4*d]{1to16}  ... of 8 keys

    vblendmps   zmm0{k1}, -infinity, zmm0     who may not see the key
    2^(score - largest)                       lane by lane, nothing is added across lanes

    vmovups     zmm0, [scores]                a key's share in each query
    vfmadd231ps zmm31, zmm0, [rax]{1to16}     times element 0 of its value, ... 1, 2

Lanes are queries, so that keys need not lie side by side: a table says where each is (`tables`).
Queries are transposed before and results after; scores stay in L1. A tile that adds to the results
of others weighs both by their sums.
"""

from math import e as euler
from math import log2

import numpy as np

from sparsejit.asm_templates.attention.frame import (
    COUNTERS,
    FLOAT,
    KEY_SLOT,
    NEXT_SLOT,
    QUERY_SLOT,
    RESULT_SLOT,
    TILE_SLOT,
    VALUE_SLOT,
    AttentionStack,
    places_of,
)
from sparsejit.asm_templates.attention.tables import (
    GROUP_BYTES,
    KEYS,
    AttentionTiles,
    header_bytes,
)
from sparsejit.asm_templates.batch.transpose import MatrixPlace, transpose
from sparsejit.asm_templates.pointwise.exponential import emit_exp2
from sparsejit.asm_templates.shared.constants import load_constant
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.rows import load, store, vector, zero
from sparsejit.x86.assembler import Assembler, Label, Line, line
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Number,
    Register,
    dword,
    k,
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
)
from sparsejit.x86.stack import pop, push

_SAVED = (rbx, rbp, r12, r13, r14, r15)
_OPERANDS = (rdi, rsi, rdx, rcx)
_FRAME, _TABLE, _BASE, _SCORES = rbp, r9, r13, r14
_GROUPS_LEFT, _DEPTH_LEFT, _QUERIES = r15, r8, rbx
_KEY_ROWS = (rax, rcx, rdx, rsi, rdi, r10, r11, r12)
_UNROLL = 32  # elements of the depth in a turn of the loop
_SEEN_AT = 8 * KEYS
# Vector registers beside the sums of a group, which come first.
_QUERY, _SPREAD, _FORBIDDEN, _BITS, _SEEN = range(KEYS, KEYS + 5)
# So that a row that sees no key becomes zeros and not NaN.
_LEAST_SCORE, _LEAST_TOTAL = -3.0e38, 1e-30


def emit_masked_attention(asm: Assembler, stack: AttentionStack, tiles: AttentionTiles) -> None:
    """Append the whole stack.

    rdi: Q, rsi: K, rdx: V, rcx: result, r8: scratch memory. Clobbers all but rbx, rbp, rsp and r12
    to r15.
    """
    _Attention(asm, stack, tiles).emit()


class _Attention:
    """Appends the code."""

    def __init__(self, asm: Assembler, stack: AttentionStack, tiles: AttentionTiles) -> None:
        self.asm, self.stack, self.tiles = asm, stack, tiles
        self.lanes, self.vector_bytes = asm.target.lanes, asm.target.vector_bytes
        self.wide = asm.target.isa == "avx512"
        self.places = places_of(stack, asm.target)
        last = asm.target.vector_registers - 1
        self.largest, self.total = vector(asm, last), vector(asm, last - 1)
        self.numbers = asm.literal(tiles.numbers)

    def emit(self) -> None:
        asm = self.asm
        push(asm, _SAVED)
        asm.emit("mov", _FRAME, r8)
        for slot, register in enumerate(_OPERANDS):
            asm.emit("mov", Memory(_FRAME, 8 * slot), register)
        self._axes(0)
        pop(asm, _SAVED)

    def _axes(self, number: int) -> None:
        """All places of the stack's axes from that number on."""
        axes = self.stack.axes
        own_masks = self.tiles.masks > 1
        if number == len(axes) - own_masks:
            self.asm.emit("lea", rax, Literal(self.numbers))
            self.asm.emit("mov", Memory(_FRAME, TILE_SLOT), rax)
        if number == len(axes):
            counter = Memory(_FRAME, COUNTERS)
            repeat(self.asm, self.tiles.tiles, counter, lambda: self._tile(adds=False))
            repeat(self.asm, self.tiles.added, counter, lambda: self._tile(adds=True))
            return
        length, moves = axes[number]

        def turn() -> None:
            self._axes(number + 1)
            self._move(moves, 1)

        repeat(self.asm, length, Memory(_FRAME, COUNTERS + 8 * (number + 1)), turn)
        self._move(moves, -length)

    def _move(self, moves: tuple[int, ...], times: int) -> None:
        for slot, move in enumerate(moves):
            if move:
                self.asm.emit("mov", rax, Memory(_FRAME, 8 * slot))
                self.asm.emit("add", rax, times * move)
                self.asm.emit("mov", Memory(_FRAME, 8 * slot), rax)

    def _tile(self, adds: bool) -> None:
        """The results of as many queries as there are lanes."""
        asm, stack, places = self.asm, self.stack, self.places
        columns = MatrixPlace(_FRAME, self.vector_bytes, places.columns)
        self._gather_queries()
        rows = MatrixPlace(_FRAME, places.query_pitch, places.rows)
        transpose(asm, rows, columns, self.lanes, stack.depth)
        self._score_keys()
        self._powers()
        self._weigh_values()
        rows = MatrixPlace(_FRAME, places.result_pitch, places.rows)
        transpose(asm, columns, rows, stack.values, self.lanes)
        if self.tiles.added:
            self._exchange_sums(adds)
        if adds:
            self._shares()
        self._scatter_results(adds)
        asm.emit("mov", rax, Memory(_FRAME, NEXT_SLOT))
        asm.emit("mov", Memory(_FRAME, TILE_SLOT), rax)

    def _gather_queries(self) -> None:
        """The tile's rows of Q, side by side, times what makes their scores exponents of 2."""
        asm = self.asm
        self._start(QUERY_SLOT)
        factor, spare = self.total, vector(asm, 1)
        load_constant(asm, factor, self.stack.scale * log2(euler))
        for lane in range(self.lanes):
            asm.emit("mov", dword(rcx), Memory(_TABLE, FLOAT * lane))
            asm.emit("add", rcx, _BASE)
            for first in range(0, self.stack.depth, self.lanes):
                load(asm, vector(asm, 0), rcx, first, self.stack.depth, spare)
                asm.emit("vmulps", vector(asm, 0), vector(asm, 0), factor)
                place = self.places.rows + lane * self.places.query_pitch + FLOAT * first
                asm.emit("vmovups", Memory(_FRAME, place), vector(asm, 0))

    def _start(self, operand: int) -> None:
        """The table at this tile, the base at an operand, the scores at their first."""
        self.asm.emit("mov", _TABLE, Memory(_FRAME, TILE_SLOT))
        self.asm.emit("mov", _BASE, Memory(_FRAME, operand))
        self.asm.emit("lea", _SCORES, Memory(_FRAME, self.places.scores))

    def _start_groups(self, operand: int) -> None:
        """The same, at the first group of keys."""
        self._start(operand)
        self.asm.emit("mov", dword(_GROUPS_LEFT), Memory(_TABLE, 3 * FLOAT * self.lanes))
        self.asm.emit("add", _TABLE, header_bytes(self.lanes))

    def _next_group(self, again: Label) -> None:
        asm = self.asm
        asm.emit("add", _TABLE, GROUP_BYTES)
        asm.emit("add", _SCORES, KEYS * self.vector_bytes)
        asm.emit("sub", dword(_GROUPS_LEFT), 1)
        asm.jump("jnz", again)

    def _point(self, first: int) -> None:
        """_KEY_ROWS = rows of the operand at the base, by the group's numbers from that byte on."""
        for number, register in enumerate(_KEY_ROWS):
            self.asm.emit("mov", dword(register), Memory(_TABLE, first + FLOAT * number))
            self.asm.emit("add", register, _BASE)

    def _score_keys(self) -> None:
        """Scores of all keys, and the largest of each lane."""
        asm = self.asm
        self._start_groups(KEY_SLOT)
        asm.emit("lea", _QUERIES, Memory(_FRAME, self.places.columns))
        load_constant(asm, vector(asm, _FORBIDDEN), float("-inf"))
        load_constant(asm, self.largest, _LEAST_SCORE)
        if not self.wide:
            bits = asm.literal((1 << np.arange(self.lanes)).astype(np.int32))
            asm.emit("vmovups", vector(asm, _BITS), Literal(bits))
        again = asm.label("next keys")
        asm.bind(again)
        self._point(0)
        for number in range(KEYS):
            zero(asm, vector(asm, number))
        turns, rest = divmod(self.stack.depth, _UNROLL)
        repeat(asm, turns, _DEPTH_LEFT, lambda: self._depth(_UNROLL, moves=turns + (rest > 0) > 1))
        self._depth(rest, moves=False)
        if turns + (rest > 0) > 1:
            asm.emit("sub", _QUERIES, turns * _UNROLL * self.vector_bytes)
        for number in range(KEYS):
            self._keep(number)
        self._next_group(again)

    def _depth(self, count: int, moves: bool) -> None:
        """Add the products of so many elements."""
        asm, element = self.asm, np.arange(count)
        query = vector(asm, _QUERY)
        lines = [line("vmovups", query, Memory(_QUERIES, element * self.vector_bytes))]
        for number, row in enumerate(_KEY_ROWS):
            lines += self._product(vector(asm, number), query, row, FLOAT * element, _SPREAD)
        asm.stamp(count, lines)
        if moves:
            for row in _KEY_ROWS:
                asm.emit("add", row, FLOAT * count)
            asm.emit("add", _QUERIES, count * self.vector_bytes)

    def _product(
        self, total: Register, factor: Register, row: Register, offset: Number, spread: int
    ) -> list[Line]:
        """total += factor * the element in memory."""
        if self.wide:
            place = Memory(row, offset, broadcast=self.lanes)
            return [line("vfmadd231ps", total, factor, place)]
        element = vector(self.asm, spread)
        move = line("vbroadcastss", element, Memory(row, offset))
        return [move, line("vfmadd231ps", total, factor, element)]

    def _keep(self, number: int) -> None:
        """Store a key's scores, -infinity where it may not be seen."""
        asm, scores = self.asm, vector(self.asm, number)
        seen, forbidden = Memory(_TABLE, _SEEN_AT + FLOAT * number), vector(asm, _FORBIDDEN)
        if self.wide:
            mask = k(1 + number % 4)
            asm.emit("mov", dword(rax), seen)
            asm.emit("kmovw", mask, dword(rax))
            asm.emit("vblendmps", scores.masked(mask), forbidden, scores)
        else:
            mask, bits = vector(asm, _SEEN), vector(asm, _BITS)
            asm.emit("vpbroadcastd", mask, seen)
            asm.emit("vpand", mask, mask, bits)
            asm.emit("vpcmpeqd", mask, mask, bits)
            asm.emit("vblendvps", scores, forbidden, scores, mask)
        asm.emit("vmovups", Memory(_SCORES, number * self.vector_bytes), scores)
        asm.emit("vmaxps", self.largest, self.largest, scores)

    def _powers(self) -> None:
        """2^(score - largest) in place of each score, and 1 / their sum."""
        asm = self.asm
        self._start_groups(KEY_SLOT)
        at_once = KEYS if self.wide else KEYS // 2
        zero(asm, self.total)
        again = asm.label("next powers")
        asm.bind(again)
        for first in range(0, KEYS, at_once):
            scores = [vector(asm, number) for number in range(at_once)]
            places = [Memory(_SCORES, (first + n) * self.vector_bytes) for n in range(at_once)]
            for register, place in zip(scores, places, strict=True):
                asm.emit("vmovups", register, place)
                asm.emit("vsubps", register, register, self.largest)
            emit_exp2(asm, scores, [vector(asm, at_once + n) for n in range(2 * at_once + 1)])
            for register, place in zip(scores, places, strict=True):
                asm.emit("vmovups", place, register)
            while len(scores) > 1:
                for left, right in zip(scores[::2], scores[1::2], strict=True):
                    asm.emit("vaddps", left, left, right)
                scores = scores[::2]
            asm.emit("vaddps", self.total, self.total, scores[0])
        self._next_group(again)
        asm.emit("vmovups", Memory(_FRAME, self.places.largest), self.largest)
        asm.emit("vmovups", Memory(_FRAME, self.places.total), self.total)
        least, one = vector(asm, 0), vector(asm, 1)
        load_constant(asm, least, _LEAST_TOTAL)
        load_constant(asm, one, 1.0)
        asm.emit("vmaxps", self.total, self.total, least)
        asm.emit("vdivps", self.total, one, self.total)

    def _weigh_values(self) -> None:
        """The results, transposed: as many elements at once as there are registers for."""
        most = self.asm.target.vector_registers - (3 if self.wide else 4)
        parts = -(-self.stack.values // most)
        for part in np.array_split(np.arange(self.stack.values), parts):
            self._weigh(int(part[0]), len(part))
        self.asm.emit("mov", Memory(_FRAME, NEXT_SLOT), _TABLE)

    def _weigh(self, first: int, count: int) -> None:
        asm, element = self.asm, np.arange(count)
        self._start_groups(VALUE_SLOT)
        sums = vector(asm, 2 - self.wide + element)
        for number in range(count):
            zero(asm, vector(asm, 2 - self.wide + number))
        again, share = asm.label("next values"), vector(asm, 0)
        asm.bind(again)
        self._point(FLOAT * KEYS)
        for number, row in enumerate(_KEY_ROWS):
            asm.emit("vmovups", share, Memory(_SCORES, number * self.vector_bytes))
            asm.stamp(count, self._product(sums, share, row, FLOAT * (first + element), 1))
        self._next_group(again)
        place = Memory(_FRAME, self.places.columns + self.vector_bytes * (first + element))
        asm.stamp(count, [line("vmulps", sums, sums, self.total), line("vmovups", place, sums)])

    def _exchange_sums(self, adds: bool) -> None:
        """Keep each row's largest score and sum, or fetch those of the tile that had it before."""
        asm, places = self.asm, self.places
        self._start(RESULT_SLOT)
        sums = places.scores + self.tiles.most_keys * self.vector_bytes
        pairs = (places.old_largest, places.old_total) if adds else (places.largest, places.total)
        for lane in range(self.lanes):
            asm.emit("mov", dword(rcx), Memory(_TABLE, FLOAT * (2 * self.lanes + lane)))
            asm.emit("add", rcx, _FRAME)
            for number, place in enumerate(pairs):
                kept = Memory(rcx, sums + FLOAT * number)
                own = Memory(_FRAME, place + FLOAT * lane)
                asm.emit("mov", dword(rax), kept if adds else own)
                asm.emit("mov", own if adds else kept, dword(rax))

    def _shares(self) -> None:
        """In place of sums, what the results of this tile and the one before count in both."""
        asm, places = self.asm, self.places
        sums = places.total, places.old_total
        both = largest = [vector(asm, 0), vector(asm, 1)]
        common, scratch = vector(asm, 2), [vector(asm, number) for number in range(3, 8)]
        for register, place in zip(largest, (places.largest, places.old_largest), strict=True):
            asm.emit("vmovups", register, Memory(_FRAME, place))
        asm.emit("vmaxps", common, *largest)
        for register in largest:
            asm.emit("vsubps", register, register, common)
        emit_exp2(asm, largest, scratch)
        for register, place in zip(both, sums, strict=True):
            asm.emit("vmulps", register, register, Memory(_FRAME, place))
        load_constant(asm, scratch[0], _LEAST_TOTAL)
        asm.emit("vaddps", common, *both)
        asm.emit("vmaxps", common, common, scratch[0])
        for register, place in zip(both, sums, strict=True):
            asm.emit("vdivps", register, register, common)
            asm.emit("vmovups", Memory(_FRAME, place), register)

    def _scatter_results(self, adds: bool) -> None:
        """Rows side by side to where each belongs."""
        asm, places = self.asm, self.places
        self._start(RESULT_SLOT)
        result, spare, share, old_share, old = (vector(asm, number) for number in range(5))
        for lane in range(self.lanes):
            asm.emit("mov", dword(rcx), Memory(_TABLE, FLOAT * (self.lanes + lane)))
            asm.emit("add", rcx, _BASE)
            if adds:
                for register, place in (share, places.total), (old_share, places.old_total):
                    asm.emit("vbroadcastss", register, Memory(_FRAME, place + FLOAT * lane))
            for first in range(0, self.stack.values, self.lanes):
                place = places.rows + lane * places.result_pitch + FLOAT * first
                asm.emit("vmovups", result, Memory(_FRAME, place))
                if adds:
                    load(asm, old, rcx, first, self.stack.values, spare)
                    asm.emit("vmulps", result, result, share)
                    asm.emit("vfmadd231ps", result, old, old_share)
                store(asm, result, rcx, first, self.stack.values, spare)
