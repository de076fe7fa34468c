"""The first half of a tile: its queries transposed, their scores, and the powers 2^score."""

from math import e as euler
from math import log2

import numpy as np

from sparsejit.asm_templates.attention.frame import (
    BASE,
    FLOAT,
    FRAME,
    KEY_ROWS,
    KEY_SLOT,
    QUERY_SLOT,
    SCORES,
    TABLE,
    AttentionCode,
)
from sparsejit.asm_templates.attention.tables import KEYS
from sparsejit.asm_templates.pointwise.exponential import emit_exp2
from sparsejit.asm_templates.shared.constants import load_constant
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.rows import load, vector, zero
from sparsejit.asm_templates.shared.squares import transposed
from sparsejit.x86.assembler import Line, line
from sparsejit.x86.operands import Literal, Memory, dword, k, r8, rax, rbx, rcx

_DEPTH_LEFT, _QUERIES = r8, rbx
_UNROLL = 32  # products of a key in a turn of the loop over the depth
_SEEN_AT = 2 * FLOAT * KEYS
# Finite and positive, so that a row that sees no key becomes zeros and not NaN.
_LEAST_SCORE, LEAST_TOTAL = -3.0e38, 1e-30


def emit_queries(code: AttentionCode) -> None:
    """Transpose the tile's rows of Q, times scale * log2(e), so that scores are exponents of 2."""
    asm, depth, lanes = code.asm, code.stack.depth, code.lanes
    squares, rest = divmod(depth, lanes)
    code.start(QUERY_SLOT)
    asm.emit("lea", SCORES, Memory(FRAME, code.places.queries))
    load_constant(asm, code.total[0], code.stack.scale * log2(euler))

    def square() -> None:
        _transpose(code, lanes)
        asm.emit("add", BASE, code.vector_bytes)
        asm.emit("add", SCORES, lanes * code.row_bytes)

    def vector_of_rows() -> None:
        repeat(asm, squares, _DEPTH_LEFT, square)
        if rest:
            _transpose(code, rest)
        if code.tiles.width > 1:
            asm.emit("add", TABLE, FLOAT * lanes)
            asm.emit("sub", BASE, squares * code.vector_bytes)
            asm.emit("sub", SCORES, squares * lanes * code.row_bytes - code.vector_bytes)

    repeat(asm, code.tiles.width, _QUERIES, vector_of_rows)


def _transpose(code: AttentionCode, columns: int) -> None:
    """Transpose `columns` elements, from BASE on, of the rows in the table to SCORES, and scale."""
    asm, lanes = code.asm, code.lanes
    rows, spare = [vector(asm, number) for number in range(lanes)], vector(asm, lanes)
    for lane, row in enumerate(rows):
        code.point_row(rcx, lane, 0)
        asm.emit("add", rcx, BASE)
        load(asm, row, rcx, 0, columns, spare if row is rows[-1] else rows[-1])
    for number, column in enumerate(transposed(asm, rows, spare)[:columns]):
        asm.emit("vmulps", column, column, code.total[0])
        asm.emit("vmovups", Memory(SCORES, number * code.row_bytes), column)


def emit_scores(code: AttentionCode) -> None:
    """Append the scores of all keys, and the largest of each row."""
    asm, depth = code.asm, code.stack.depth
    registers = _Registers(code)
    code.start_groups(KEY_SLOT)
    asm.emit("lea", _QUERIES, Memory(FRAME, code.places.queries))
    for largest in code.largest:
        load_constant(asm, largest, _LEAST_SCORE)
    registers.load_constants()
    with code.each_group():
        code.point(0)
        for each in registers.sums:
            for total in each:
                zero(asm, total)
        unroll = _UNROLL // code.tiles.width
        turns, rest = divmod(depth, unroll)
        repeat(asm, turns, _DEPTH_LEFT, lambda: registers.depth(unroll, turns + (rest > 0) > 1))
        registers.depth(rest, moves=False)
        if turns + (rest > 0) > 1:
            asm.emit("sub", _QUERIES, turns * unroll * code.row_bytes)
        for key in range(KEYS):
            registers.keep(key)


class _Registers:
    """The registers of `emit_scores`: sums of each key, then factors of the products, and masks."""

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
        """Load the constants for `keep`."""
        if self.code.tiles.all_see_all:
            return
        load_constant(self.asm, self.forbidden, float("-inf"))
        if not self.code.wide:
            bits = self.asm.literal((1 << np.arange(self.code.lanes)).astype(np.int32))
            self.asm.emit("vmovups", self.bits, Literal(bits))

    def depth(self, count: int, moves: bool) -> None:
        """Add the products of `count` elements; with `moves` the pointers move on behind them."""
        code, element = self.code, np.arange(count)
        lines: list[Line] = []
        for number, query in enumerate(self.queries):
            offset = element * code.row_bytes + number * code.vector_bytes
            lines.append(line("vmovups", query, Memory(_QUERIES, offset)))
        for sums, row in zip(self.sums, KEY_ROWS, strict=True):
            if code.wide and len(sums) == 1:
                place = Memory(row, FLOAT * element, broadcast=code.lanes)
                lines.append(line("vfmadd231ps", sums[0], self.queries[0], place))
                continue
            lines.append(line("vbroadcastss", self.element, Memory(row, FLOAT * element)))
            for total, query in zip(sums, self.queries, strict=True):
                lines.append(line("vfmadd231ps", total, query, self.element))
        self.asm.stamp(count, lines)
        if moves:
            for row in KEY_ROWS:
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
        seen = Memory(TABLE, _SEEN_AT + FLOAT * (key * self.code.tiles.width + number))
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
    """Replace each score by 2^(score - largest); store each row's largest score, sum, 1 / sum."""
    asm, width = code.asm, code.tiles.width
    code.start_groups(KEY_SLOT)
    at_once = KEYS if code.wide else KEYS // 2
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
            for register, place in zip(scores, places, strict=True):
                asm.emit("vmovups", place, register)
            while len(scores) > width:
                half = len(scores) // 2
                for left, right in zip(scores[:half], scores[half:], strict=True):
                    asm.emit("vaddps", left, left, right)
                scores = scores[:half]
            for total, each in zip(code.total, scores, strict=True):
                asm.emit("vaddps", total, total, each)
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
