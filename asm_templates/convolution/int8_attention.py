"""Attention in bytes, a head at a time: features are channels, lanes are 64 queries.

    ByteHeads             the shapes that the code depends on
    attention_constants   the constants that it reads
    emit_key_mask         the mask: an addend of each key's scores, in interleaved key order
    emit_byte_attention   the attention

The loops:

    keys  = four features of a key side by side, signed            once a head
    for 64 queries:
        q      = four features of a query side by side             vpunpck of four channels
        score  = sum of vpdpbusd q, key                            four keys by 64 queries
        power  = 2^((round(score) - largest) * c)                  all by lane
        share  = round(power / total / scale)                      four keys side by side
        y      = sum of vpdpbusd share, value                      four features by 64 queries

Both products use the same loop. Interleaving permutes queries, keys and values within each 64.
Shares are computed in the permuted order, to which values are permuted; packing restores queries.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import e, log2

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.int8_conversions import ByteQuantisation
from sparsejit.asm_templates.convolution.int8_planes import LINE, BytePlanes
from sparsejit.asm_templates.convolution.int8_results import pack_results
from sparsejit.asm_templates.pointwise.power_of_two import emit_exp2
from sparsejit.asm_templates.shared.interleave import interleaved
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.masks import set_tail_mask
from sparsejit.asm_templates.shared.rows import zero
from sparsejit.whole_numbers import ceil_div, round_up
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
    r12,
    r13,
    r14,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    rsp,
    zmm,
)
from sparsejit.x86.routines import call_routine, pop, push

FOUR, BLOCK, LANES = 4, 64, 16  # keys or features side by side; columns; floats
TILE_BYTES = FOUR * LINE
_SIGN = 0x80808080
# In steps of scores: the lowest addend of a mask, so that scores of a row whose keys are all masked
# are equal; and the addend of keys beyond the length, which is lower still.
_FORBIDDEN, _MISSING_SCORE = -1e30, -3e38
_SURELY_NOTHING = 200.0  # 2^-200 is 0
NAMES = (
    *("score", "least", "most", "power", "share", "result"),
    *("key zero", "query zero", "both zeros", "value zero", "zero", "ones", "sign"),
    *("of mask", "nothing", "missing"),
)
PLACE = {name: 4 * number for number, name in enumerate(NAMES)}


@dataclass(frozen=True)
class ByteHeads:
    """Shapes that the code depends on: planes of query, key, value and result, heads, length."""

    planes: tuple[BytePlanes, BytePlanes, BytePlanes, BytePlanes]
    heads: int
    length: int
    is_masked: bool = False

    @property
    def samples(self) -> int:
        return self.planes[0].columns // self.length

    @property
    def features(self) -> int:
        """Features of a head."""
        return self.planes[0].channels // self.heads

    @property
    def blocks(self) -> int:
        return ceil_div(self.length, BLOCK)

    @property
    def keys(self) -> int:
        """Keys of whole blocks; the last block may be longer than the sample."""
        return self.blocks * BLOCK

    @property
    def rows(self) -> int:
        """Keys up to the last one of the sample in interleaved order, a multiple of four."""
        order = _interleaved_order(self.keys)
        return round_up(int(np.flatnonzero(order < self.length)[-1]) + 1, FOUR)

    @property
    def places(self) -> dict[str, int]:
        """Byte offsets of the parts of the scratch, and of its end."""
        sizes = {
            "queries": self.features // FOUR * TILE_BYTES,
            "keys": self.features * self.keys,
            "starts": 4 * self.keys,
            "values": self.features * self.keys,
            "scores": self.keys * TILE_BYTES,
            "shares": self.keys // FOUR * TILE_BYTES,
            "mask": 4 * self.keys * self.is_masked,
        }
        ends = np.cumsum([0, *sizes.values()])
        return dict(zip([*sizes, "end"], ends.tolist(), strict=True))


@dataclass(frozen=True)
class AttentionSteps:
    """Quantisation of the query, the key, the value, scores, shares and the result.

    scale: factor of the scores after they are rounded.
    """

    query: ByteQuantisation
    key: ByteQuantisation
    value: ByteQuantisation
    scores: ByteQuantisation
    shares: ByteQuantisation
    result: ByteQuantisation
    scale: float


def attention_constants(heads: ByteHeads, steps: AttentionSteps) -> npt.NDArray[np.uint8]:
    """Return the bytes of constants that the code reads.

    They are numbers, a permutation, masks of the blocks' keys, and addends of scores for keys that
    do not exist.
    """
    key_zero, value_zero = steps.key.zero_point - 128, steps.value.zero_point - 128
    power = steps.scores.scale * steps.scale * log2(e)
    floats = {
        "score": steps.query.scale * steps.key.scale / steps.scores.scale,
        "least": -steps.scores.zero_point,
        "most": 255 - steps.scores.zero_point,
        "power": power,
        "share": 1 / steps.shares.scale,
        "result": steps.shares.scale * steps.value.scale / steps.result.scale,
    }
    integers = {
        "key zero": -key_zero,
        "query zero": -steps.query.zero_point,
        "both zeros": heads.features * steps.query.zero_point * key_zero,
        "value zero": -value_zero,
        "zero": steps.result.zero_point * 0x10001,
        "ones": 0x01010101,
        "sign": np.uint32(_SIGN).astype(np.int32),
    }
    masks = 1 / (steps.scores.scale * steps.scale), _FORBIDDEN, _MISSING_SCORE
    words = [np.array([n], np.float32).tobytes() for n in floats.values()]
    words += [np.array([n], np.int32).tobytes() for n in integers.values()]
    words.append(np.array(masks, np.float32).tobytes())
    order = np.arange(16)
    words.append((order % 4 * 4 + order // 4).astype(np.int32).tobytes())
    there = np.arange(heads.keys) < heads.length
    words.append(np.packbits(there, bitorder="little").tobytes())
    far = np.where(there, 0, -(_SURELY_NOTHING / abs(power) + 1024)).astype(np.float32)
    words.append(far[_interleaved_order(heads.keys)].tobytes())
    return np.frombuffer(b"".join(words), np.uint8)


def constant_places(heads: ByteHeads) -> tuple[int, int, int]:
    """Return the byte offsets of the permutation, the masks and the addends of scores."""
    masks = 4 * len(NAMES) + LINE
    return 4 * len(NAMES), masks, masks + heads.keys // 8


def _interleaved_order(columns: int) -> npt.NDArray[np.integer]:
    """Return the column that lies at each place after bytes are interleaved: 0 to 3, 16 to 19."""
    places = np.arange(columns).reshape(-1, 4, 4, 4)  # blocks, lanes of 128 bits, fours, columns
    return places.swapaxes(1, 2).reshape(-1)


_THERE = k(1)
_VALUE, _CUT, _OF_MASK, _NOTHING, _MISSING = (zmm(number) for number in range(16, 21))


def emit_key_mask(
    asm: Assembler,
    heads: ByteHeads,
    sample: int,
    constants: Register,
    mask: Register,
    scratch: Register,
) -> None:
    """Append code that turns a sample's row of the mask (samples, length) into addends of scores.

    They go to the scratch, a float for each key in interleaved order. Values become steps of the
    scores; keys beyond `length` get a lower value than keys that the mask forbids. Clobbers rax.
    """
    for name, register in zip(
        ("of mask", "nothing", "missing"), (_OF_MASK, _NOTHING, _MISSING), strict=True
    ):
        asm.emit("vbroadcastss", register, Memory(constants, PLACE[name]))
    for first in range(0, heads.keys, LANES):
        count = min(LANES, heads.length - first)
        asm.emit("vmovaps", _VALUE, _MISSING)
        if count > 0:
            set_tail_mask(asm, count, _THERE)
            place = Memory(mask, 4 * (sample * heads.length + first))
            asm.emit("vmovups", _CUT.masked(_THERE, zeroing=True), place)
            asm.emit("vmulps", _CUT, _CUT, _OF_MASK)
            asm.emit("vmaxps", _VALUE.masked(_THERE), _CUT, _NOTHING)
        block, lane = divmod(first, BLOCK)
        for four in range(FOUR):
            at = heads.places["mask"] + 4 * (BLOCK * block + LANES * four) + lane
            asm.emit("vextractf32x4", Memory(scratch, at), _VALUE, four)


# Addresses of the operands, the result, the scratch and the mask; then of constants.
QUERY, KEY, VALUE, RESULT, SCRATCH, MASK = rdi, rdx, r8, rsi, r9, rcx
_CONSTANTS, _MASKS = r10, r11
_HEADS_LEFT, _BLOCKS_LEFT, _LEFT, _INNER = r12, r13, r14, rax
_SAVED = (rbx, r12, r13, r14)
_X, _W, _INTO = rbx, rcx, r14
_QUARTERS = range(4)  # registers of 64 columns of four bytes each
_SUMS = [[zmm(4 * row + number) for number in _QUARTERS] for row in range(FOUR)]
_INPUTS, _WEIGHTS = [zmm(n) for n in range(16, 20)], [zmm(n) for n in range(20, 24)]
_STARTS = [zmm(n) for n in range(24, 28)]  # by column: the start value of its sums
_KEPT = [zmm(n) for n in range(28, 32)]  # by column: the largest score, or the share's scale
# Registers without inputs of products: a factor of all lanes; fours of shares, ones and 255.
_FACTOR, _FOUR_SHARES, _ONES, _MOST, _SPARE = zmm(16), zmm(0), zmm(16), zmm(17), zmm(18)
_STORED = k(1)
_NEAREST = 0  # vrndscaleps: to integers, ties to even


def emit_byte_attention(asm: Assembler, heads: ByteHeads, steps: AttentionSteps) -> None:
    """Append attention in bytes over the arrays at QUERY, KEY, VALUE ...; layers share its code."""
    asm.emit("lea", _CONSTANTS, Literal(asm.literal(attention_constants(heads, steps))))
    key: Hashable = ("byte attention", heads)
    call_routine(asm, key, lambda asm: _HeadsCode(asm, heads).emit())


class _HeadsCode:
    """Appends the code of attention in bytes, head after head."""

    def __init__(self, asm: Assembler, heads: ByteHeads) -> None:
        self.asm, self.heads = asm, heads
        self.order, self.masks, self.far = constant_places(heads)
        self.has_gaps = heads.length < heads.keys

    def emit(self) -> None:
        """Append the code for all heads of all samples; pointers advance from head to head."""
        heads, asm = self.heads, self.asm
        push(asm, (*_SAVED, MASK))
        moving = [*zip((QUERY, KEY, VALUE, RESULT), heads.planes, strict=True)]

        def head() -> None:
            self._head()
            for register, planes in moving:
                asm.emit("add", register, heads.features * planes.channel)

        for sample in range(heads.samples):
            if heads.is_masked:
                asm.emit("mov", MASK, Memory(rsp))
                emit_key_mask(asm, heads, sample, _CONSTANTS, MASK, SCRATCH)
            repeat(asm, heads.heads, _HEADS_LEFT, head)
            if sample + 1 < heads.samples:
                for register, planes in moving:
                    back = heads.planes[0].channels * planes.channel
                    asm.emit("sub", register, back - heads.length)
        pop(asm, (*_SAVED, MASK))

    def _constant(self, name: str) -> Memory:
        return Memory(_CONSTANTS, PLACE[name], broadcast=16)

    def _load(self, register: Register, name: str) -> None:
        self.asm.emit("vpbroadcastd", register, Memory(_CONSTANTS, PLACE[name]))

    def _scratch(self, register: Register, name: str) -> None:
        self.asm.emit("lea", register, Memory(SCRATCH, self.heads.places[name]))

    def _head(self) -> None:
        asm = self.asm
        self._keys()
        self._key_starts()
        self._values()
        asm.emit("lea", _MASKS, Memory(_CONSTANTS, self.masks))
        repeat(asm, self.heads.blocks, _BLOCKS_LEFT, self._block)
        passed = self.heads.blocks * BLOCK
        for register in (QUERY, RESULT):
            asm.emit("sub", register, passed)

    def _interleave(self, base: Register, pitch: int, is_signed: bool) -> None:
        """_INPUTS = four channels at `base`, side by side."""
        asm = self.asm
        for number, register in enumerate(_INPUTS):
            asm.emit("vmovdqu64", register, Memory(base, number * pitch))
            if is_signed:
                asm.emit("vpxord", register, register, self._constant("sign"))
        for _ in interleaved(asm, _INPUTS, _WEIGHTS):
            pass

    def _keys(self) -> None:
        """Write all keys of a head: a row of keys for every four features, in interleaved order."""
        asm, heads = self.asm, self.heads
        pitch, row = heads.planes[1].channel, 4 * heads.keys
        asm.emit("mov", _X, KEY)
        self._scratch(_INTO, "keys")

        def fours() -> None:
            for block in range(heads.blocks):
                asm.emit("lea", rcx, Memory(_X, block * BLOCK))
                self._interleave(rcx, pitch, True)
                for number, register in enumerate(_INPUTS):
                    place = block * TILE_BYTES + number * LINE
                    asm.emit("vmovdqu64", Memory(_INTO, place), register)
            asm.emit("add", _X, FOUR * pitch)
            asm.emit("add", _INTO, row)

        repeat(asm, heads.features // FOUR, _INNER, fours)

    def _key_starts(self) -> None:
        """Write the start value of each key's sums, which the zero points give."""
        asm, heads = self.asm, self.heads
        self._scratch(_X, "keys")
        self._scratch(_INTO, "starts")
        self._load(_WEIGHTS[0], "ones")

        def sixteen() -> None:
            total = _INPUTS[0]
            zero(asm, total)
            for four in range(heads.features // FOUR):
                asm.emit("vmovdqu64", _INPUTS[1], Memory(_X, four * 4 * heads.keys))
                asm.emit("vpdpbusd", total, _WEIGHTS[0], _INPUTS[1])
            asm.emit("vpmulld", total, total, self._constant("query zero"))
            asm.emit("vpaddd", total, total, self._constant("both zeros"))
            asm.emit("vmovdqu64", Memory(_INTO), total)
            for register in (_X, _INTO):
                asm.emit("add", register, LINE)

        repeat(asm, heads.keys // 16, _INNER, sixteen)

    def _values(self) -> None:
        """Write the signed values of a head, keys in interleaved order; 0 beyond the last key."""
        asm, heads = self.asm, self.heads
        asm.emit("mov", _X, VALUE)
        self._scratch(_INTO, "values")
        asm.emit("vmovdqu64", _WEIGHTS[0], Memory(_CONSTANTS, self.order))
        self._load(_WEIGHTS[1], "sign")

        def channel() -> None:
            for block in range(heads.blocks):
                value, place = _INPUTS[0], Memory(_X, block * BLOCK)
                asm.emit("vpxord", value, _WEIGHTS[1], place)
                if self.has_gaps and block == heads.blocks - 1:
                    asm.emit("kmovq", _STORED, Memory(_CONSTANTS, self.masks + 8 * block))
                    asm.emit("vmovdqu8", value.masked(_STORED, zeroing=True), value)
                asm.emit("vpermd", value, _WEIGHTS[0], value)
                asm.emit("vmovdqu64", Memory(_INTO, block * BLOCK), value)
            asm.emit("add", _X, heads.planes[2].channel)
            asm.emit("add", _INTO, heads.keys)

        repeat(asm, heads.features, _INNER, channel)

    def _block(self) -> None:
        """Append the attention of 64 queries: their scores, powers, shares and results."""
        asm = self.asm
        self._queries()
        self._scores()
        self._powers()
        self._shares()
        self._results()
        for register in (QUERY, RESULT):
            asm.emit("add", register, BLOCK)
        asm.emit("add", _MASKS, 8)

    def _queries(self) -> None:
        """Append code that writes 64 queries, four features side by side.

        _STARTS = the start values that they give the sums of scores.
        """
        asm, heads = self.asm, self.heads
        pitch = heads.planes[0].channel
        asm.emit("mov", _X, QUERY)
        self._scratch(_INTO, "queries")
        self._load(_KEPT[0], "ones")
        for start in _STARTS:
            zero(asm, start)

        def fours() -> None:
            self._interleave(_X, pitch, False)
            for number, (start, register) in enumerate(zip(_STARTS, _INPUTS, strict=True)):
                asm.emit("vmovdqu64", Memory(_INTO, number * LINE), register)
                asm.emit("vpdpbusd", start, register, _KEPT[0])
            asm.emit("add", _X, FOUR * pitch)
            asm.emit("add", _INTO, TILE_BYTES)

        repeat(asm, heads.features // FOUR, _INNER, fours)
        for start in _STARTS:
            asm.emit("vpmulld", start, start, self._constant("key zero"))

    def _product(self, fours: int, row: int, step: int) -> None:
        """Append the loop of both products: _SUMS += four rows of weights at _W times tiles at _X.

        The weights are keys or values, `row` bytes apart; `fours` turns take four bytes of a row
        each. `step`: bytes from four weights of a row to the next.
        """
        asm = self.asm

        def four() -> None:
            for number, register in enumerate(_INPUTS):
                asm.emit("vmovdqu64", register, Memory(_X, number * LINE))
            for number, weight in enumerate(_WEIGHTS):
                asm.emit("vpbroadcastd", weight, Memory(_W, number * row))
            for sums, weight in zip(_SUMS, _WEIGHTS, strict=True):
                for total, register in zip(sums, _INPUTS, strict=True):
                    asm.emit("vpdpbusd", total, register, weight)
            asm.emit("add", _X, TILE_BYTES)
            asm.emit("add", _W, step)

        repeat(asm, fours, _INNER, four)

    def _scores(self) -> None:
        """Write rounded scores, four keys at a time; _KEPT = the largest score of every query."""
        asm, heads = self.asm, self.heads
        places = heads.places
        for register in _KEPT:
            start = "missing" if heads.is_masked else "least"
            asm.emit("vbroadcastss", register, Memory(_CONSTANTS, PLACE[start]))
        row = 4 * heads.keys

        def four() -> None:
            for number, sums in enumerate(_SUMS):
                place = Memory(SCRATCH, places["starts"] + 4 * number, _LEFT, 4, broadcast=16)
                for total, start in zip(sums, _STARTS, strict=True):
                    asm.emit("vpaddd", total, start, place)
            self._scratch(_X, "queries")
            asm.emit("lea", _W, Memory(SCRATCH, places["keys"], _LEFT, 4))
            self._product(heads.features // FOUR, 4, row)
            for register, name in zip(_WEIGHTS, ("score", "least", "most"), strict=False):
                asm.emit("vbroadcastss", register, Memory(_CONSTANTS, PLACE[name]))
            asm.emit("mov", _X, _LEFT)
            asm.emit("shl", _X, 8)
            asm.emit("add", _X, SCRATCH)
            for row_number, sums in enumerate(_SUMS):
                far = Memory(_CONSTANTS, self.far + 4 * row_number, _LEFT, 4, broadcast=16)
                if heads.is_masked:
                    more = places["mask"] + 4 * row_number
                    far = Memory(SCRATCH, more, _LEFT, 4, broadcast=16)
                for number, total in enumerate(sums):
                    asm.emit("vcvtdq2ps", total, total)
                    asm.emit("vmulps", total, total, _WEIGHTS[0])
                    asm.emit("vrndscaleps", total, total, _NEAREST)
                    asm.emit("vmaxps", total, total, _WEIGHTS[1])
                    asm.emit("vminps", total, total, _WEIGHTS[2])
                    if self.has_gaps or heads.is_masked:
                        asm.emit("vaddps", total, total, far)
                    asm.emit("vmaxps", _KEPT[number], _KEPT[number], total)
                    into = places["scores"] + row_number * TILE_BYTES + number * LINE
                    asm.emit("vmovups", Memory(_X, into), total)

        self._by_fours(heads.rows, four)

    def _by_fours(self, count: int, body: Callable[[], None]) -> None:
        """Run `body` with _LEFT = 0, 4, 8 and so on below `count`."""
        asm, again = self.asm, self.asm.label("again")
        asm.emit("xor", dword(_LEFT), dword(_LEFT))
        asm.bind(again)
        body()
        asm.emit("add", _LEFT, FOUR)
        asm.emit("cmp", dword(_LEFT), count)
        asm.jump("jl", again)

    def _powers(self) -> None:
        """Append code that replaces scores by 2^(score - largest), the powers, for 64 queries.

        _KEPT = the factor that turns a query's powers into shares, 1 over their sum and scale.
        """
        asm = self.asm
        totals, powers = _STARTS, [zmm(n) for n in range(4)]
        for total in totals:
            zero(asm, total)
        self._scratch(_X, "scores")
        asm.emit("vbroadcastss", _FACTOR, Memory(_CONSTANTS, PLACE["power"]))

        def key() -> None:
            for number, power in enumerate(powers):
                asm.emit("vmovups", power, Memory(_X, number * LINE))
                asm.emit("vsubps", power, power, _KEPT[number])
                asm.emit("vmulps", power, power, _FACTOR)
            emit_exp2(asm, powers, [zmm(n) for n in range(4, 13)])
            for number, (total, power) in enumerate(zip(totals, powers, strict=True)):
                asm.emit("vaddps", total, total, power)
                asm.emit("vmovups", Memory(_X, number * LINE), power)
            asm.emit("add", _X, TILE_BYTES)

        repeat(asm, self.heads.rows, _INNER, key)
        asm.emit("vbroadcastss", _FACTOR, Memory(_CONSTANTS, PLACE["share"]))
        for kept, total in zip(_KEPT, totals, strict=True):
            asm.emit("vdivps", kept, _FACTOR, total)

    def _shares(self) -> None:
        """Write shares, four keys side by side; _STARTS = the start values of the results' sums."""
        asm, heads = self.asm, self.heads
        self._scratch(_X, "scores")
        self._scratch(_INTO, "shares")
        self._load(_ONES, "ones")
        asm.emit("vpsrld", _MOST, _ONES, 24)
        asm.emit("vpslld", _SPARE, _MOST, 8)
        asm.emit("vpsubd", _MOST, _SPARE, _MOST)
        for start in _STARTS:
            zero(asm, start)

        def fours() -> None:
            for number, (kept, start) in enumerate(zip(_KEPT, _STARTS, strict=True)):
                for key in range(FOUR):
                    share = zmm(key)
                    asm.emit("vmulps", share, kept, Memory(_X, key * TILE_BYTES + number * LINE))
                    asm.emit("vcvtps2dq", share, share)
                    asm.emit("vpminud", share, share, _MOST)
                    if key:
                        asm.emit("vpslld", share, share, 8 * key)
                        asm.emit("vpord", _FOUR_SHARES, _FOUR_SHARES, share)
                asm.emit("vmovdqu64", Memory(_INTO, number * LINE), _FOUR_SHARES)
                asm.emit("vpdpbusd", start, _FOUR_SHARES, _ONES)
            asm.emit("add", _X, FOUR * TILE_BYTES)
            asm.emit("add", _INTO, TILE_BYTES)

        repeat(asm, heads.rows // FOUR, _INNER, fours)
        for start in _STARTS:
            asm.emit("vpmulld", start, start, self._constant("value zero"))

    def _results(self) -> None:
        """Compute the results, four features at a time."""
        asm, heads = self.asm, self.heads
        channel = heads.planes[3].channel
        self._scratch(rbx, "values")
        if self.has_gaps:
            asm.emit("kmovq", _STORED, Memory(_MASKS))
        asm.emit("vbroadcastss", _KEPT[0], Memory(_CONSTANTS, PLACE["result"]))
        self._load(_KEPT[1], "zero")
        asm.emit("lea", _W, Memory(SCRATCH, heads.places["values"]))

        def four() -> None:
            for sums in _SUMS:
                for total, start in zip(sums, _STARTS, strict=True):
                    asm.emit("vmovdqa64", total, start)
            self._scratch(_X, "shares")
            self._product(heads.rows // FOUR, heads.keys, FOUR)
            asm.emit("add", _W, 4 * heads.keys - heads.rows)
            for number, sums in enumerate(_SUMS):
                for total in sums:
                    asm.emit("vcvtdq2ps", total, total)
                    asm.emit("vmulps", total, total, _KEPT[0])
                    asm.emit("vcvtps2dq", total, total)
                first = pack_results(asm, sums, _KEPT[1])
                into = Memory(RESULT, number * channel)
                if self.has_gaps:
                    asm.emit("vmovdqu8", into.masked(_STORED), first)
                else:
                    asm.emit("vmovdqu64", into, first)
            asm.emit("add", RESULT, FOUR * channel)

        repeat(asm, heads.features // FOUR, _LEFT, four)
        asm.emit("sub", RESULT, heads.features * channel)
