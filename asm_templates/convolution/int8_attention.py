"""Attention in bytes, a head at a time: features are channels, lanes are 64 queries, or 16.

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

With AVX2 the lanes are 16 queries. Without AVX-VNNI two features or keys lie side by side as words,
from which zero points are subtracted, for vpmaddwd: two activations may saturate vpmaddubsw.

Both products use the same loop. Interleaving permutes queries, keys and values within each 64.
Shares are computed in the permuted order, to which values are permuted; packing restores queries.
Keys have one order at all levels, and so the totals have the same bits.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import e, log2
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.convolution.int8_conversions import ByteQuantisation
from sparsejit.asm_templates.convolution.int8_convolution import NARROW_PRODUCT
from sparsejit.asm_templates.convolution.int8_planes import LINE, BytePlanes
from sparsejit.asm_templates.convolution.int8_results import pack_results
from sparsejit.asm_templates.pointwise.power_of_two import emit_exp2
from sparsejit.asm_templates.shared.int8_inputs import store_bytes
from sparsejit.asm_templates.shared.interleave import interleaved
from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.masks import lane_mask, load_masked, set_tail_mask
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Operand,
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
    xmm,
    ymm,
)
from sparsejit.x86.routines import call_routine, pop, push

FOUR, BLOCK, SIXTEEN = 4, 64, 16  # rows of a product; columns; columns of a lane of a block
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


class HeadsForm(NamedTuple):
    """The form of the code: queries in the lanes; features or keys side by side in four bytes.

    together: 4 bytes, or 2 words.
    """

    queries: int
    together: int

    @property
    def copies(self) -> int:
        """Copies of a constant: AVX2 reads one for each lane."""
        return 1 if self.queries == BLOCK else 8

    @property
    def tile_bytes(self) -> int:
        return 4 * self.queries

    @property
    def has_words(self) -> bool:
        return self.together == 2

    def place(self, name: str) -> int:
        """Return the byte offset of a constant."""
        return 4 * self.copies * NAMES.index(name)


def heads_form(target: Target) -> HeadsForm:
    """Return the form for a target."""
    if target.isa == "avx512":
        return HeadsForm(BLOCK, 4)
    return HeadsForm(SIXTEEN, 4 if target.has("avx_vnni") else 2)


@dataclass(frozen=True)
class ByteHeads:
    """Shapes that the code depends on: planes of query, key, value and result, heads, length."""

    planes: tuple[BytePlanes, BytePlanes, BytePlanes, BytePlanes]
    heads: int
    length: int
    is_masked: bool
    form: HeadsForm

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
        tile, together = self.form.tile_bytes, self.form.together
        matrix = self.features * self.keys * 4 // together
        sizes = {
            "queries": self.features // together * tile,
            "keys": matrix,
            "starts": 4 * self.keys,
            "values": matrix,
            "scores": self.keys * tile,
            "shares": self.keys // together * tile,
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
    form = heads.form
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
    if form.has_words:
        zeros = {"query": steps.query, "key": steps.key, "value": steps.value}
        integers |= {f"{name} zero": 0x10001 * each.zero_point for name, each in zeros.items()}
    masks = 1 / (steps.scores.scale * steps.scale), _FORBIDDEN, _MISSING_SCORE
    words = [np.array([n], np.float32).tobytes() for n in floats.values()]
    words += [np.array([n], np.int32).tobytes() for n in integers.values()]
    words += [np.array([n], np.float32).tobytes() for n in masks]
    words = [form.copies * word for word in words]
    order = np.arange(16)
    words.append((order % 4 * 4 + order // 4).astype(np.int32).tobytes())
    there = np.arange(heads.keys) < heads.length
    words.append(np.packbits(there, bitorder="little").tobytes())
    far = np.where(there, 0, -(_SURELY_NOTHING / abs(power) + 1024)).astype(np.float32)
    words.append(far[_interleaved_order(heads.keys)].tobytes())
    return np.frombuffer(b"".join(words), np.uint8)


def constant_places(heads: ByteHeads) -> tuple[int, int, int]:
    """Return the byte offsets of the permutation, the masks and the addends of scores."""
    order = 4 * heads.form.copies * len(NAMES)
    return order, order + LINE, order + LINE + heads.keys // 8


def _interleaved_order(columns: int) -> npt.NDArray[np.integer]:
    """Return the column that lies at each place after bytes are interleaved: 0 to 3, 16 to 19."""
    places = np.arange(columns).reshape(-1, 4, 4, 4)  # blocks, lanes of 128 bits, fours, columns
    return places.swapaxes(1, 2).reshape(-1)


def _place(column: int) -> int:
    """Return the place of the first of four columns after interleaving, four aligned columns."""
    block, within = divmod(column, BLOCK)
    lane, four = divmod(within // FOUR, FOUR)
    return BLOCK * block + SIXTEEN * four + FOUR * lane


_THERE = k(1)


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
    lanes, first_register = asm.target.lanes, asm.target.vector_registers - 16
    value, cut, there, *kept = (vector(asm, first_register + number) for number in range(6))
    of_mask, nothing, missing = kept
    for name, register in zip(("of mask", "nothing", "missing"), kept, strict=True):
        asm.emit("vbroadcastss", register, Memory(constants, heads.form.place(name)))
    for first in range(0, heads.keys, lanes):
        count = min(lanes, heads.length - first)
        asm.emit("vmovaps", value, missing)
        if count > 0:
            place = Memory(mask, 4 * (sample * heads.length + first))
            if asm.target.isa == "avx512":
                set_tail_mask(asm, count, _THERE)
                there = _THERE
            else:
                asm.emit("vmovups", there, lane_mask(asm, count))
            load_masked(asm, cut, there, place)
            asm.emit("vmulps", cut, cut, of_mask)
            if asm.target.isa == "avx512":
                asm.emit("vmaxps", value.masked(_THERE), cut, nothing)
            else:
                asm.emit("vmaxps", cut, cut, nothing)
                asm.emit("vblendvps", value, value, cut, there)
        for four in range(lanes // FOUR):
            at = heads.places["mask"] + 4 * _place(first + FOUR * four)
            _store_quarter(asm, Memory(scratch, at), value, four)


def _store_quarter(asm: Assembler, into: Memory, value: Register, number: int) -> None:
    """Store 16 bytes of a register."""
    if value.kind == "zmm":
        asm.emit("vextractf32x4", into, value, number)
    elif number:
        asm.emit("vextracti128", into, value, number)
    else:
        asm.emit("vmovdqu", into, xmm(value.number))


# Addresses of the operands, the result, the scratch and the mask; then of constants.
QUERY, KEY, VALUE, RESULT, SCRATCH, MASK = rdi, rdx, r8, rsi, r9, rcx
_CONSTANTS, _MASKS = r10, r11
_HEADS_LEFT, _BLOCKS_LEFT, _LEFT, _INNER = r12, r13, r14, rax
_SAVED = (rbx, r12, r13, r14)
_X, _W, _INTO = rbx, rcx, r14
_STORED = k(1)
_NEAREST = 0  # rounding to integers, ties to even
_IN_ORDER = 0b11011000  # vpermq: exchanges the middle quarters


def emit_byte_attention(asm: Assembler, heads: ByteHeads, steps: AttentionSteps) -> None:
    """Append attention in bytes over the arrays at QUERY, KEY, VALUE ...; layers share its code."""
    asm.emit("lea", _CONSTANTS, Literal(asm.literal(attention_constants(heads, steps))))
    key: Hashable = ("byte attention", heads)
    code = _HeadsCode if asm.target.isa == "avx512" else _NarrowHeadsCode
    call_routine(asm, key, lambda asm: code(asm, heads).emit())


class _HeadsCode:
    """Appends the code of attention in bytes, head after head, with AVX-512.

    sums: four rows of registers, one row for each key or feature.
    inputs, weights: registers of tiles and of weights; free outside products.
    starts: by query, the start value of its sums, or the total of its powers.
    kept: by query, the largest score, or the share's scale.
    """

    names: ClassVar[dict[str, str]] = {
        "move": "vmovdqu64",
        "copy": "vmovdqa64",
        "or": "vpord",
        "round": "vrndscaleps",
        "product": "vpdpbusd",
    }

    def __init__(self, asm: Assembler, heads: ByteHeads) -> None:
        self.asm, self.heads, self.form = asm, heads, heads.form
        self.order, self.masks, self.far = constant_places(heads)
        self.has_gaps = heads.length < heads.keys
        self.lanes, self.vector_bytes = asm.target.lanes, asm.target.vector_bytes
        count = self.form.queries // self.lanes
        registers = [vector(asm, number) for number in range(8 * count)]
        eighths = [registers[first : first + count] for first in range(0, 8 * count, count)]
        *self.sums, self.inputs, self.weights, self.starts, self.kept = eighths
        self.free = [*self.inputs, *self.weights]

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

    def _emit(self, name: str, *operands: Operand) -> None:
        """Append the level's instruction of this name in `names`."""
        self.asm.emit(self.names[name], *operands)

    def _constant(self, name: str) -> Memory:
        """A constant in all lanes."""
        return Memory(_CONSTANTS, self.form.place(name), broadcast=self.lanes)

    def _load(self, register: Register, name: str) -> None:
        self.asm.emit("vpbroadcastd", register, Memory(_CONSTANTS, self.form.place(name)))

    def _spread(self, place: Memory, spare: Register) -> Operand:
        """The float or int32 at `place` in all lanes; AVX2 loads it into `spare`."""
        return place._replace(broadcast=self.lanes)

    def _scratch(self, register: Register, name: str) -> None:
        self.asm.emit("lea", register, Memory(SCRATCH, self.heads.places[name]))

    def _head(self) -> None:
        self._keys()
        if not self.form.has_words:
            self._key_starts()
        self._values()
        self._blocks()

    def _blocks(self) -> None:
        """Append the loop over the queries of a head."""
        asm = self.asm
        asm.emit("lea", _MASKS, Memory(_CONSTANTS, self.masks))

        def block() -> None:
            self._block()
            asm.emit("add", _MASKS, 8)

        repeat(asm, self.heads.blocks, _BLOCKS_LEFT, block)
        for register in (QUERY, RESULT):
            asm.emit("sub", register, self.heads.blocks * BLOCK)

    def _interleave(self, base: Register, pitch: int, is_signed: bool) -> None:
        """inputs = four channels at `base`, side by side."""
        asm = self.asm
        for number, register in enumerate(self.inputs):
            asm.emit("vmovdqu64", register, Memory(base, number * pitch))
            if is_signed:
                asm.emit("vpxord", register, register, self._constant("sign"))
        for _ in interleaved(asm, self.inputs, self.weights):
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
                for number, register in enumerate(self.inputs):
                    place = FOUR * block * BLOCK + number * LINE
                    asm.emit("vmovdqu64", Memory(_INTO, place), register)
            asm.emit("add", _X, FOUR * pitch)
            asm.emit("add", _INTO, row)

        repeat(asm, heads.features // FOUR, _INNER, fours)

    def _key_starts(self) -> None:
        """Write the start value of each key's sums, which the zero points give."""
        asm, heads, ones = self.asm, self.heads, self.weights[0]
        total, keys, *_ = self.free
        self._scratch(_X, "keys")
        self._scratch(_INTO, "starts")
        self._load(ones, "ones")

        def vector_of_keys() -> None:
            zero(asm, total)
            for four in range(heads.features // FOUR):
                self._emit("move", keys, Memory(_X, four * 4 * heads.keys))
                self._emit("product", total, ones, keys)
            asm.emit("vpmulld", total, total, self._constant("query zero"))
            asm.emit("vpaddd", total, total, self._constant("both zeros"))
            self._emit("move", Memory(_INTO), total)
            for register in (_X, _INTO):
                asm.emit("add", register, self.vector_bytes)

        repeat(asm, heads.keys // self.lanes, _INNER, vector_of_keys)

    def _values(self) -> None:
        """Write the signed values of a head, keys in interleaved order; 0 beyond the last key."""
        asm, heads, (value, *_), (order, sign, *_) = self.asm, self.heads, self.inputs, self.weights
        asm.emit("mov", _X, VALUE)
        self._scratch(_INTO, "values")
        asm.emit("vmovdqu64", order, Memory(_CONSTANTS, self.order))
        self._load(sign, "sign")

        def channel() -> None:
            for block in range(heads.blocks):
                asm.emit("vpxord", value, sign, Memory(_X, block * BLOCK))
                if self.has_gaps and block == heads.blocks - 1:
                    asm.emit("kmovq", _STORED, Memory(_CONSTANTS, self.masks + 8 * block))
                    asm.emit("vmovdqu8", value.masked(_STORED, zeroing=True), value)
                asm.emit("vpermd", value, order, value)
                asm.emit("vmovdqu64", Memory(_INTO, block * BLOCK), value)
            asm.emit("add", _X, heads.planes[2].channel)
            asm.emit("add", _INTO, heads.keys)

        repeat(asm, heads.features, _INNER, channel)

    def _block(self) -> None:
        """Append the attention of one tile's queries: scores, powers, shares and results."""
        self._queries()
        self._scores()
        self._powers()
        self._shares()
        self._results()
        for register in (QUERY, RESULT):
            self.asm.emit("add", register, self.form.queries)

    def _queries(self) -> None:
        """Append code that writes the queries of a tile, with features side by side.

        starts = the start values that they give the sums of scores, if bytes lie side by side.
        """
        asm, heads, together = self.asm, self.heads, self.form.together
        pitch = heads.planes[0].channel
        asm.emit("mov", _X, QUERY)
        self._scratch(_INTO, "queries")
        if not self.form.has_words:
            self._load(self.kept[0], "ones")
            for start in self.starts:
                zero(asm, start)

        def side_by_side() -> None:
            for number, register in enumerate(self._tile_of_queries(pitch)):
                self._emit("move", Memory(_INTO, number * self.vector_bytes), register)
                if not self.form.has_words:
                    self._emit("product", self.starts[number], register, self.kept[0])
            asm.emit("add", _X, together * pitch)
            asm.emit("add", _INTO, self.form.tile_bytes)

        repeat(asm, heads.features // together, _INNER, side_by_side)
        for start in () if self.form.has_words else self.starts:
            asm.emit("vpmulld", start, start, self._constant("key zero"))

    def _tile_of_queries(self, pitch: int) -> Sequence[Register]:
        """Registers that hold features at _X side by side."""
        self._interleave(_X, pitch, False)
        return self.inputs

    def _product(self, fours: int, row: int, step: int) -> None:
        """Append the loop of both products: sums += four rows of weights at _W times tiles at _X.

        The weights are keys or values, `row` bytes apart; `fours` turns take four of a row each.
        `step`: bytes from four bytes of weights of a row to the next.
        """
        asm, parts = self.asm, FOUR // self.form.together

        def four() -> None:
            for part in range(parts):
                first = part * self.form.tile_bytes
                for number, register in enumerate(self.inputs):
                    self._emit("move", register, Memory(_X, first + number * self.vector_bytes))
                self._multiply([Memory(_W, number * row + part * step) for number in range(FOUR)])
            asm.emit("add", _X, parts * self.form.tile_bytes)
            asm.emit("add", _W, parts * step)

        repeat(asm, fours, _INNER, four)

    def _multiply(self, places: Sequence[Memory]) -> None:
        """Add to the sums the products of the inputs and the weights at four places."""
        count = len(self.weights)
        for first in range(0, FOUR, count):
            rows = [*zip(self.weights, places[first:], self.sums[first:], strict=False)]
            for weight, place, _ in rows:
                self.asm.emit("vpbroadcastd", weight, place)
            for weight, _, sums in rows:
                for total, register in zip(sums, self.inputs, strict=True):
                    self._emit("product", total, register, weight)

    def _scores(self) -> None:
        """Write rounded scores, four keys at a time; kept = the largest score of every query."""
        asm, heads = self.asm, self.heads
        places, tile = heads.places, self.form.tile_bytes
        for register in self.kept:
            start = "missing" if heads.is_masked else "least"
            asm.emit("vbroadcastss", register, Memory(_CONSTANTS, self.form.place(start)))

        def four() -> None:
            for number, sums in enumerate(self.sums):
                place = Memory(SCRATCH, places["starts"] + 4 * number, _LEFT, 4)
                self._start(sums, None if self.form.has_words else place)
            self._scratch(_X, "queries")
            asm.emit("lea", _W, Memory(SCRATCH, places["keys"], _LEFT, 4))
            self._product(heads.features // FOUR, 4, 4 * heads.keys)
            for register, name in zip(self.free, ("score", "least", "most"), strict=False):
                asm.emit("vbroadcastss", register, Memory(_CONSTANTS, self.form.place(name)))
            asm.emit("mov", _X, _LEFT)
            asm.emit("shl", _X, tile.bit_length() - 1)
            asm.emit("add", _X, SCRATCH)
            for number, sums in enumerate(self.sums):
                far = Memory(_CONSTANTS, self.far + 4 * number, _LEFT, 4)
                if heads.is_masked:
                    far = Memory(SCRATCH, places["mask"] + 4 * number, _LEFT, 4)
                self._round(sums, far, places["scores"] + number * tile)

        self._by_fours(heads.rows, four)

    def _start(self, sums: Sequence[Register], place: Memory | None) -> None:
        """sums = the start values of queries plus the one of the key at `place`, or 0 for words."""
        for total, start in zip(sums, self.starts, strict=True):
            if place is None:
                zero(self.asm, total)
            else:
                self.asm.emit("vpaddd", total, start, self._spread(place, total))

    def _round(self, sums: Sequence[Register], far: Memory, into: int) -> None:
        """Store the rounded scores of a key, `into` bytes behind _X; `far` is their addend."""
        asm, (score, least, most, spare, *_) = self.asm, self.free
        more = self._spread(far, spare) if self.has_gaps or self.heads.is_masked else None
        for number, (total, largest) in enumerate(zip(sums, self.kept, strict=True)):
            asm.emit("vcvtdq2ps", total, total)
            asm.emit("vmulps", total, total, score)
            self._emit("round", total, total, _NEAREST)
            asm.emit("vmaxps", total, total, least)
            asm.emit("vminps", total, total, most)
            if more is not None:
                asm.emit("vaddps", total, total, more)
            asm.emit("vmaxps", largest, largest, total)
            asm.emit("vmovups", Memory(_X, into + number * self.vector_bytes), total)

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
        """Append code that replaces scores by 2^(score - largest), the powers, for a tile.

        kept = the factor that turns a query's powers into shares, 1 over their sum and scale.
        """
        asm, totals, (factor, *_) = self.asm, self.starts, self.inputs
        count = len(totals)
        powers = [vector(asm, number) for number in range(count)]
        spare = [vector(asm, number) for number in range(count, 3 * count + 1)]
        for total in totals:
            zero(asm, total)
        self._scratch(_X, "scores")
        asm.emit("vbroadcastss", factor, Memory(_CONSTANTS, self.form.place("power")))

        def key() -> None:
            places = [Memory(_X, number * self.vector_bytes) for number in range(count)]
            for power, place, largest in zip(powers, places, self.kept, strict=True):
                asm.emit("vmovups", power, place)
                asm.emit("vsubps", power, power, largest)
                asm.emit("vmulps", power, power, factor)
            emit_exp2(asm, powers, spare)
            for total, power, place in zip(totals, powers, places, strict=True):
                asm.emit("vaddps", total, total, power)
                asm.emit("vmovups", place, power)
            asm.emit("add", _X, self.form.tile_bytes)

        repeat(asm, self.heads.rows, _INNER, key)
        asm.emit("vbroadcastss", factor, Memory(_CONSTANTS, self.form.place("share")))
        for kept, total in zip(self.kept, totals, strict=True):
            asm.emit("vdivps", kept, factor, total)

    def _shares(self) -> None:
        """Write shares, several keys side by side.

        starts = the start values of the results' sums, if bytes lie side by side.
        """
        asm, heads, together = self.asm, self.heads, self.form.together
        ones, most, spare, *_ = self.free
        tile, shares = self.form.tile_bytes, [vector(asm, number) for number in range(together)]
        self._scratch(_X, "scores")
        self._scratch(_INTO, "shares")
        self._load(ones, "ones")
        asm.emit("vpsrld", most, ones, 24)
        asm.emit("vpslld", spare, most, 8)
        asm.emit("vpsubd", most, spare, most)
        for start in self.starts:
            zero(asm, start)

        def side_by_side() -> None:
            for number, (kept, start) in enumerate(zip(self.kept, self.starts, strict=True)):
                at = number * self.vector_bytes
                for key, share in enumerate(shares):
                    asm.emit("vmulps", share, kept, Memory(_X, key * tile + at))
                    asm.emit("vcvtps2dq", share, share)
                    asm.emit("vpminud", share, share, most)
                    if key:
                        asm.emit("vpslld", share, share, 32 // together * key)
                        self._emit("or", shares[0], shares[0], share)
                self._emit("move", Memory(_INTO, at), shares[0])
                if not self.form.has_words:
                    self._emit("product", start, shares[0], ones)
            asm.emit("add", _X, together * tile)
            asm.emit("add", _INTO, tile)

        repeat(asm, heads.rows // together, _INNER, side_by_side)
        for start in () if self.form.has_words else self.starts:
            asm.emit("vpmulld", start, start, self._constant("value zero"))

    def _results(self) -> None:
        """Compute the results, four features at a time."""
        asm, heads, (scale, zero_point, *_) = self.asm, self.heads, self.kept
        channel, four_bytes = heads.planes[3].channel, FOUR // self.form.together
        asm.emit("vbroadcastss", scale, Memory(_CONSTANTS, self.form.place("result")))
        self._load(zero_point, "zero")
        asm.emit("lea", _W, Memory(SCRATCH, heads.places["values"]))

        def four() -> None:
            for sums in self.sums:
                for total, start in zip(sums, self.starts, strict=True):
                    if self.form.has_words:
                        zero(asm, total)
                    else:
                        self._emit("copy", total, start)
            self._scratch(_X, "shares")
            self._product(heads.rows // FOUR, four_bytes * heads.keys, FOUR)
            asm.emit("add", _W, four_bytes * (FOUR * heads.keys - heads.rows))
            for total in (total for sums in self.sums for total in sums):
                asm.emit("vcvtdq2ps", total, total)
                asm.emit("vmulps", total, total, scale)
                asm.emit("vcvtps2dq", total, total)
            self._store_results(channel, zero_point)
            asm.emit("add", RESULT, FOUR * channel)

        repeat(asm, heads.features // FOUR, _LEFT, four)
        asm.emit("sub", RESULT, heads.features * channel)

    def _store_results(self, channel: int, zero_point: Register) -> None:
        """Store the sums of four features, as int32, as bytes."""
        asm = self.asm
        if self.has_gaps:
            asm.emit("kmovq", _STORED, Memory(_MASKS))
        for number, sums in enumerate(self.sums):
            first, into = pack_results(asm, sums, zero_point), Memory(RESULT, number * channel)
            if self.has_gaps:
                asm.emit("vmovdqu8", into.masked(_STORED), first)
            else:
                asm.emit("vmovdqu64", into, first)


class _NarrowHeadsCode(_HeadsCode):
    """Appends the code of AVX2: tiles of 16 queries, in two registers.

    The registers have queries 0 to 3 and 8 to 11, and 4 to 7 and 12 to 15, as unpacking leaves
    them; packing puts them in order.
    """

    names: ClassVar[dict[str, str]] = {
        "move": "vmovdqu",
        "copy": "vmovdqa",
        "or": "vpor",
        "round": "vroundps",
        "product": NARROW_PRODUCT,
    }

    def _constant(self, name: str) -> Memory:
        return super()._constant(name)._replace(broadcast=0)

    def _spread(self, place: Memory, spare: Register) -> Operand:
        self.asm.emit("vpbroadcastd", spare, place)
        return spare

    def _blocks(self) -> None:
        """Append the loop over the queries of a head; the last tile may overlap the one before."""
        asm, length = self.asm, self.heads.length
        whole, rest = divmod(length, SIXTEEN)
        key: Hashable = ("queries of byte attention", self.heads)

        def block() -> None:
            call_routine(asm, key, lambda _: self._block())

        if not (whole and rest):
            repeat(asm, whole or 1, _BLOCKS_LEFT, self._block)
        else:
            repeat(asm, whole, _BLOCKS_LEFT, block)
            for register in (QUERY, RESULT):
                asm.emit("sub", register, SIXTEEN - rest)
            block()
        for register in (QUERY, RESULT):
            asm.emit("sub", register, max(length, SIXTEEN))

    def _side_by_side(
        self, base: Register, place: int, pitch: int, is_key: bool
    ) -> Sequence[Register]:
        """The registers of 16 columns of the channels at `base` and `place`, side by side."""
        asm = self.asm
        if self.form.has_words:
            first, second, low, high = (ymm(number) for number in range(4))
            for number, register in enumerate((first, second)):
                asm.emit("vpmovzxbw", register, Memory(base, place + number * pitch))
                around = self._constant("key zero" if is_key else "query zero")
                asm.emit("vpsubw", register, register, around)
            asm.emit("vpunpcklwd", low, first, second)
            asm.emit("vpunpckhwd", high, first, second)
            return low, high
        inputs = [xmm(number) for number in range(4)]
        for number, register in enumerate(inputs):
            asm.emit("vmovdqu", register, Memory(base, place + number * pitch))
            if is_key:
                asm.emit("vpxor", register, register, self._constant("sign"))
        for _ in interleaved(asm, inputs, [xmm(number) for number in range(4, 8)]):
            pass
        for number in range(2):
            asm.emit("vinserti128", ymm(number), ymm(number), inputs[2 + number], 1)
        return ymm(0), ymm(1)

    def _keys(self) -> None:
        asm, heads, together = self.asm, self.heads, self.form.together
        pitch = heads.planes[1].channel
        asm.emit("mov", _X, KEY)
        self._scratch(_INTO, "keys")

        def side_by_side() -> None:
            for first in range(0, heads.length, SIXTEEN):
                made = self._side_by_side(_X, first, pitch, True)
                for four in range(FOUR):
                    into = Memory(_INTO, 4 * _place(first + FOUR * four))
                    _store_quarter(asm, into, made[four % 2], four // 2)
            asm.emit("add", _X, together * pitch)
            asm.emit("add", _INTO, 4 * heads.keys)

        repeat(asm, heads.features // together, _INNER, side_by_side)

    def _values(self) -> None:
        asm, heads, size = self.asm, self.heads, FOUR // self.form.together
        asm.emit("mov", _X, VALUE)
        self._scratch(_INTO, "values")

        def channel() -> None:
            for first in range(0, heads.keys, SIXTEEN):
                self._sixteen_values(first)
                for four in range(FOUR):
                    self._store_values(Memory(_INTO, size * _place(first + FOUR * four)), four)
            asm.emit("add", _X, heads.planes[2].channel)
            asm.emit("add", _INTO, size * heads.keys)

        repeat(asm, heads.features, _INNER, channel)

    def _sixteen_values(self, first: int) -> None:
        """Register 0 = the values of 16 keys; 128 less the zero point beyond the last key."""
        asm, count = self.asm, self.heads.length - first
        source: Operand = Memory(_X, first)
        if count < SIXTEEN:
            beyond = np.where(np.arange(SIXTEEN) < count, 0, 255).astype(np.uint8)
            missing = Literal(asm.literal(beyond // 255 * 128))
            if count > 0:
                asm.emit("vmovdqu", xmm(0), source)
                asm.emit("vpand", xmm(0), xmm(0), Literal(asm.literal(~beyond)))
                asm.emit("vpor", xmm(0), xmm(0), missing)
            else:
                asm.emit("vmovdqu", xmm(0), missing)
            source = xmm(0)
        if self.form.has_words:
            asm.emit("vpmovzxbw", ymm(0), source)
            asm.emit("vpsubw", ymm(0), ymm(0), self._constant("value zero"))
            return
        if count >= SIXTEEN:
            asm.emit("vmovdqu", xmm(0), source)
        asm.emit("vpxor", xmm(0), xmm(0), self._constant("sign"))

    def _store_values(self, into: Memory, four: int) -> None:
        """Store values 4 * four to 4 * four + 3 of register 0, in order of `four`."""
        asm, low = self.asm, xmm(0)
        if not self.form.has_words:
            asm.emit("vpextrd", into, low, four)
            return
        if four == 2:
            asm.emit("vextracti128", low, ymm(0), 1)
        asm.emit("vpextrq", into, low, four % 2)

    def _tile_of_queries(self, pitch: int) -> Sequence[Register]:
        return self._side_by_side(_X, 0, pitch, False)

    def _multiply(self, places: Sequence[Memory]) -> None:
        if not self.form.has_words:
            super()._multiply(places)
            return
        asm, weights, free = self.asm, self.weights, self.starts
        for first in range(0, FOUR, len(weights)):
            some = slice(first, first + len(weights))
            for weight, place in zip(weights, places[some], strict=True):
                asm.emit("vpbroadcastd", weight, place)
            by_input = zip(*self.sums[some], strict=True)
            products = [*zip(self.inputs, (free, weights), by_input, strict=True)]
            for register, made, _ in products:
                for product, weight in zip(made, weights, strict=True):
                    asm.emit("vpmaddwd", product, register, weight)
            for _, made, sums in products:
                for product, total in zip(made, sums, strict=True):
                    asm.emit("vpaddd", total, total, product)

    def _store_results(self, channel: int, zero_point: Register) -> None:
        asm, count = self.asm, min(self.heads.length, SIXTEEN)
        for number in range(0, FOUR, 2):
            first, second = self.sums[number : number + 2]
            low = pack_results(asm, [*first, *second], zero_point)
            asm.emit("vpermq", low, low, _IN_ORDER)
            places = [Memory(RESULT, (number + upper) * channel) for upper in range(2)]
            asm.emit("vextracti128", xmm(second[0].number), low, 1)
            for place, register in zip(places, (low, second[0]), strict=True):
                store_bytes(asm, place, register, count)
