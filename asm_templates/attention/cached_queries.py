"""Attention of a few queries to a cache that is filled up to a place which a call decides.

    the last key that the mask allows            keys behind it are not read
    scores of 8 keys, lanes over the depth       8 sums, added across lanes in pairs
    their masks, which are added, or stand in the place of the scores that they forbid
    powers 2^(score - largest), their sum
    results: values times powers, lanes over the values

The mask is the same for all queries. If it allows no key, all are read. On AVX-512 a vector has the
powers of 16 keys, and two keys of a depth of 8, or two values of that length:

    k0 k1   k2 k3   ..   k14 k15             multiplied by the query twice, added across lanes
    k0 k2 k4 k6  k1 k3 k5 k7  k8 ..          put in order by one vpermps
    p0 p0 .. p0  p1 p1 .. p1                 two powers out of 16, for two values
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import e as euler
from math import log2

import numpy as np

from sparsejit.asm_templates.pointwise.power_of_two import emit_exp2
from sparsejit.asm_templates.shared.constants import load_constant
from sparsejit.asm_templates.shared.loops import counted_down, counted_up
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.ir.ops.products import FORBIDDING
from sparsejit.ir.ops.row_chains import LEAST_SCORE, LEAST_TOTAL
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    k,
    r8,
    r9,
    r10,
    r11,
    rax,
    rcx,
    rdi,
    rdx,
    rsi,
    xmm,
    ymm,
    zmm,
)

_FLOAT, _LANES = 4, 8
KEYS = 16  # the number of keys in a cache is a multiple
_MOST_SUMS = 8  # accumulators of results
# Vector registers: what all keys share, and the first of 8 sums.
_TOTAL, _LARGEST, _FORBIDDING, _FACTOR, _SCALE, _SUMS = 6, 7, 4, 5, 6, 8
_IS_BELOW = 0x09  # of vcmpps: not greater than or equal, so true for NaN
# On AVX-512: the first of 8 orders that repeat two powers, the order of the scores of pairs of
# keys, and the query twice.
_REPEATS, _ORDER, _TWICE = 16, 24, 25
_SCORE_ORDER = np.arange(16).reshape(2, 2, 4).swapaxes(1, 2).ravel().astype(np.int32)


@dataclass(frozen=True)
class CachedQueries:
    """Sizes of attention: `stack` caches of `keys` rows, `queries` queries for each.

    `depth` and `values` are multiples of 8, `keys` is one of 16. If `is_safe`, a row whose masks
    are all -infinity becomes zeros, else NaN.
    """

    stack: int
    queries: int
    keys: int
    depth: int
    values: int
    scale: float
    is_safe: bool = True

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory: a row of scores, and two counters."""
        return _FLOAT * self.keys + 2 * 8


def emit_cached_queries(asm: Assembler, spec: CachedQueries) -> None:
    """Append softmax(scale Q K^T + mask) V over the keys that the mask allows.

    rdi: Q (stack, queries, depth); rsi: K (stack, keys, depth); rdx: V (stack, keys, values); r10:
    the mask, a float for each key; rcx: the result; r8: scratch. Clobbers rax, rcx, rdx, rsi, rdi,
    r9, r11 and the vector registers.
    """
    _QueryCode(asm, spec).emit()


class _QueryCode:
    """Code of an attention; r9 is the number of keys to read, a multiple of 16."""

    def __init__(self, asm: Assembler, spec: CachedQueries) -> None:
        self._asm, self._spec = asm, spec
        self._is_wide = asm.target.isa == "avx512"
        self._pairs_keys = self._is_wide and spec.depth == _LANES
        self._pairs_values = self._is_wide and spec.values == _LANES

    def emit(self) -> None:
        asm, spec = self._asm, self._spec
        self._count_keys()
        orders = {_ORDER: _SCORE_ORDER} if self._pairs_keys else {}
        if self._pairs_values:
            pairs = np.arange(16, dtype=np.int32).reshape(8, 2).repeat(8, axis=1)
            orders |= {_REPEATS + number: order for number, order in enumerate(pairs)}
        for number, order in orders.items():
            asm.emit("vmovups", zmm(number), Literal(asm.literal(order)))
        counters = [Memory(r8, _FLOAT * spec.keys + 8 * number) for number in range(2)]
        with counted_down(asm, counters[0], spec.stack):
            with counted_down(asm, counters[1], spec.queries):
                (self._paired_scores if self._pairs_keys else self._scores)()
                self._powers()
                if self._pairs_values:
                    self._paired_results()
                else:
                    self._all_results()
                asm.emit("add", rdi, _FLOAT * spec.depth)
                asm.emit("add", rcx, _FLOAT * spec.values)
            asm.emit("add", rsi, _FLOAT * spec.depth * spec.keys)
            asm.emit("add", rdx, _FLOAT * spec.values * spec.keys)

    def _count_keys(self) -> None:
        asm, found, again = self._asm, *map(self._asm.label, ("last key", "keys before"))
        least, parts = ymm(_FORBIDDING), (ymm(0), ymm(1))
        load_constant(asm, least, FORBIDDING)
        asm.emit("mov", dword(r9), self._spec.keys)
        asm.bind(again)
        for number, part in enumerate(parts):
            place = Memory(r10, _FLOAT * (_LANES * number - KEYS), r9, _FLOAT)
            asm.emit("vcmpps", part, least, place, _IS_BELOW)
        asm.emit("vorps", parts[0], *parts)
        asm.emit("vmovmskps", dword(rax), parts[0])
        asm.emit("test", dword(rax), dword(rax))
        asm.jump("jnz", found)
        asm.emit("sub", r9, KEYS)
        asm.jump("jnz", again)
        asm.emit("mov", dword(r9), self._spec.keys)
        asm.bind(found)

    def _scores(self) -> None:
        """Write the scores to the scratch; ymm7 = the largest in each lane."""
        asm, spec, pitch = self._asm, self._spec, _FLOAT * self._spec.depth
        now = ymm(0)
        load_constant(asm, ymm(_LARGEST), LEAST_SCORE)
        load_constant(asm, ymm(_FORBIDDING), FORBIDDING)
        load_constant(asm, ymm(_SCALE), spec.scale)
        asm.emit("mov", r11, rsi)
        asm.emit("xor", dword(rax), dword(rax))
        sums = [ymm(_SUMS + number) for number in range(_LANES)]
        with counted_up(asm, rax, _LANES, r9):
            for part in range(0, pitch, _FLOAT * _LANES):
                asm.emit("vmovups", now, Memory(rdi, part))
                for number, total in enumerate(sums):
                    mnemonic = "vfmadd231ps" if part else "vmulps"
                    asm.emit(mnemonic, total, now, Memory(r11, number * pitch + part))
            self._add_lanes()
            score, mask = sums[0], ymm(1)
            asm.emit("vmovups", mask, Memory(r10, 0, rax, _FLOAT))
            asm.emit("vfmadd213ps", score, ymm(_SCALE), mask)
            asm.emit("vcmpps", now, ymm(_FORBIDDING), mask, _IS_BELOW)
            asm.emit("vblendvps", score, mask, score, now)
            asm.emit("vmaxps", ymm(_LARGEST), ymm(_LARGEST), score)
            asm.emit("vmovups", Memory(r8, 0, rax, _FLOAT), score)
            asm.emit("add", r11, _LANES * pitch)

    def _paired_scores(self) -> None:
        """Write the scores of keys of 8 elements to the scratch; ymm7 = the largest by lane."""
        asm, score, mask = self._asm, zmm(_SUMS), zmm(1)
        load_constant(asm, zmm(_LARGEST), LEAST_SCORE)
        load_constant(asm, zmm(_FORBIDDING), FORBIDDING)
        load_constant(asm, zmm(_SCALE), self._spec.scale)
        asm.emit("vbroadcastf64x4", zmm(_TWICE), Memory(rdi))
        asm.emit("mov", r11, rsi)
        asm.emit("xor", dword(rax), dword(rax))
        with counted_up(asm, rax, KEYS, r9):
            for number in range(_LANES):
                pair = Memory(r11, 2 * number * _FLOAT * _LANES)
                asm.emit("vmulps", zmm(_SUMS + number), zmm(_TWICE), pair)
            self._unpack(zmm)
            low, high, other = zmm(_SUMS), zmm(_SUMS + 4), zmm(_SUMS + 1)
            asm.emit("vshuff32x4", other, low, high, 0x88)
            asm.emit("vshuff32x4", high, low, high, 0xDD)
            asm.emit("vaddps", low, other, high)
            asm.emit("vpermps", score, zmm(_ORDER), low)
            asm.emit("vmovups", mask, Memory(r10, 0, rax, _FLOAT))
            asm.emit("vfmadd213ps", score, zmm(_SCALE), mask)
            asm.emit("vcmpps", k(1), zmm(_FORBIDDING), mask, _IS_BELOW)
            asm.emit("vblendmps", score.masked(k(1)), mask, score)
            asm.emit("vmaxps", zmm(_LARGEST), zmm(_LARGEST), score)
            asm.emit("vmovups", Memory(r8, 0, rax, _FLOAT), score)
            asm.emit("add", r11, KEYS * _FLOAT * _LANES)
        self._fold("vmaxps", _LARGEST)

    def _fold(self, mnemonic: str, number: int) -> None:
        """Combine both halves of a zmm register in its lower one."""
        self._asm.emit("vextractf64x4", ymm(0), zmm(number), 1)
        self._asm.emit(mnemonic, ymm(number), ymm(number), ymm(0))

    def _unpack(self, vector: Callable[[int], Register]) -> None:
        """Add lanes of vectors 8 to 15 within 128 bits; the sums of each four lie in 8 and 12."""
        asm, part = self._asm, vector(0)
        for pairs, kind in (((0, 1), (2, 3), (4, 5), (6, 7)), "ps"), (((0, 2), (4, 6)), "pd"):
            for total, other in (map(vector, (_SUMS + a, _SUMS + b)) for a, b in pairs):
                asm.emit(f"vunpckl{kind}", part, total, other)
                asm.emit(f"vunpckh{kind}", total, total, other)
                asm.emit("vaddps", total, total, part)

    def _add_lanes(self) -> None:
        """ymm8 = the sum of the lanes of each of ymm8 to ymm15, a lane each."""
        asm = self._asm
        self._unpack(ymm)
        low, high, other = ymm(_SUMS), ymm(_SUMS + 4), ymm(_SUMS + 1)
        asm.emit("vperm2f128", other, low, high, 0x20)
        asm.emit("vperm2f128", high, low, high, 0x31)
        asm.emit("vaddps", low, other, high)

    def _across(self, mnemonic: str, number: int) -> None:
        """Combine all lanes of a ymm register, in every lane."""
        asm, register, other = self._asm, ymm(number), ymm(0)
        asm.emit("vperm2f128", other, register, register, 0x01)
        asm.emit(mnemonic, register, register, other)
        for pattern in (0x4E, 0xB1):
            asm.emit("vpermilps", other, register, pattern)
            asm.emit(mnemonic, register, register, other)

    def _powers(self) -> None:
        """Replace the scores by their powers; ymm6 = 1 / their sum in every lane."""
        asm = self._asm
        self._across("vmaxps", _LARGEST)
        vector, count = (zmm, 1) if self._is_wide else (ymm, 2)
        largest, total, factor, *rest = map(vector, (_LARGEST, _TOTAL, _FACTOR, *range(8, 15)))
        powers, scratch = rest[:count], rest[count:]
        if self._is_wide:
            asm.emit("vbroadcastss", largest, xmm(_LARGEST))
        zero(asm, total)
        load_constant(asm, factor, log2(euler))
        asm.emit("xor", dword(rax), dword(rax))
        places = [Memory(r8, _FLOAT * _LANES * n, rax, _FLOAT) for n in range(count)]
        with counted_up(asm, rax, KEYS, r9):
            for power, place in zip(powers, places, strict=True):
                asm.emit("vmovups", power, place)
                asm.emit("vsubps", power, power, largest)
                asm.emit("vmulps", power, power, factor)
            emit_exp2(asm, powers, scratch)
            for power, place in zip(powers, places, strict=True):
                asm.emit("vaddps", total, total, power)
                asm.emit("vmovups", place, power)
        if self._is_wide:
            self._fold("vaddps", _TOTAL)
        self._across("vaddps", _TOTAL)
        if self._spec.is_safe:
            load_constant(asm, ymm(0), LEAST_TOTAL)
            asm.emit("vmaxps", ymm(_TOTAL), ymm(0), ymm(_TOTAL))
        load_constant(asm, ymm(0), 1.0)
        asm.emit("vdivps", ymm(_TOTAL), ymm(0), ymm(_TOTAL))

    def _all_results(self) -> None:
        """Write a query's result, as many values at a time as there are accumulators for."""
        most, values = _MOST_SUMS * _LANES, self._spec.values
        for first in range(0, values, most):
            self._results(first, min(most, values - first) // _LANES)

    def _results(self, first: int, vectors: int) -> None:
        """Write `vectors` vectors of a query's result, from value `first` on."""
        asm, pitch = self._asm, _FLOAT * self._spec.values
        keys = max(each for each in (1, 2, 4) if each * vectors <= _MOST_SUMS)
        sums = [ymm(_SUMS + number) for number in range(keys * vectors)]
        for total in sums:
            zero(asm, total)
        asm.emit("lea", r11, Memory(rdx, _FLOAT * first))
        asm.emit("xor", dword(rax), dword(rax))
        with counted_up(asm, rax, keys, r9):
            for number, total in enumerate(sums):
                key, part = divmod(number, vectors)
                if part == 0:
                    asm.emit("vbroadcastss", ymm(0), Memory(r8, _FLOAT * key, rax, _FLOAT))
                value = Memory(r11, key * pitch + _FLOAT * _LANES * part)
                asm.emit("vfmadd231ps", total, ymm(0), value)
            asm.emit("add", r11, keys * pitch)
        for number in range(vectors, len(sums)):
            asm.emit("vaddps", sums[number % vectors], sums[number % vectors], sums[number])
        for part, total in enumerate(sums[:vectors]):
            asm.emit("vmulps", total, total, ymm(_TOTAL))
            asm.emit("vmovups", Memory(rcx, _FLOAT * (first + _LANES * part)), total)

    def _paired_results(self) -> None:
        """Write a query's result of 8 values: two values in a vector, under their two powers."""
        asm, powers, sums = self._asm, zmm(0), [zmm(_SUMS + number) for number in range(4)]
        for total in sums:
            zero(asm, total)
        asm.emit("mov", r11, rdx)
        asm.emit("xor", dword(rax), dword(rax))
        with counted_up(asm, rax, KEYS, r9):
            asm.emit("vmovups", powers, Memory(r8, 0, rax, _FLOAT))
            for number in range(_LANES):
                pair, repeated = Memory(r11, 2 * number * _FLOAT * _LANES), zmm(1 + number % 2)
                asm.emit("vpermps", repeated, zmm(_REPEATS + number), powers)
                asm.emit("vfmadd231ps", sums[number % len(sums)], repeated, pair)
            asm.emit("add", r11, KEYS * _FLOAT * _LANES)
        for first, second in ((0, 1), (2, 3), (0, 2)):
            asm.emit("vaddps", sums[first], sums[first], sums[second])
        self._fold("vaddps", _SUMS)
        result = ymm(_SUMS)
        asm.emit("vmulps", result, result, ymm(_TOTAL))
        asm.emit("vmovups", Memory(rcx), result)
