"""Places of elements: the largest of rows, and the true elements of a mask.

    emit_largest_elements   the largest, the first of equals first, NaN above all others
    emit_true_places        the places of the true elements, one after another

The largest: elements become keys, int32 or int64, of the same order: the lower bits of negative
floats are inverted, -0 counts as 0, and NaN is the largest integer. For the least elements, all
bits are inverted once more. Then, for each element of the result:

    largest key of the row -> its first place -> that key becomes the smallest integer

True elements:

    places[count] = place; count += mask[place]     for each place, without a branch
    places[count ...] = 0
"""

from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.shared.constants import load_constant
from sparsejit.asm_templates.shared.loops import Span, counted_down, counted_up, emit_spans
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import round_up
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
    rax,
    rcx,
    rdi,
    rdx,
    rsi,
    xmm,
    ymm,
)

_FLOAT, _DOUBLE, _PLACE = 4, 8, 8
_VECTORS_IN_STEP = 4
_UNORDERED = 3  # of vcmpps
_FOUND = k(1)
_SWAPPED_HALVES, _SWAPPED_PAIRS = 0x4E, 0xB1  # of vpshufd


@dataclass(frozen=True)
class _WordForm:
    """Keys of one size: bytes, and the letters of mnemonics for floats and for whole numbers."""

    bytes: int
    float: str
    whole: str

    @property
    def greatest(self) -> int:
        return (1 << (8 * self.bytes - 1)) - 1

    @property
    def least(self) -> int:
        return -self.greatest - 1

    @property
    def last(self) -> int:
        """The key below the keys of all numbers."""
        return self.least + 1

    def fill(self, asm: Assembler, register: Register, value: int) -> None:
        """register = the value in every lane."""
        if self.bytes == _FLOAT:
            load_constant(asm, register, value)
        else:
            values = np.full(asm.target.vector_bytes // self.bytes, value, np.int64)
            asm.emit("vmovups", register, Literal(asm.literal(values)))

    def signs(self, asm: Assembler, d: Register, a: Register, nothing: Register) -> None:
        """d = -1 where a is negative, else 0; `nothing` is 0."""
        if self.bytes == _DOUBLE and asm.target.isa != "avx512":
            asm.emit("vpcmpgtq", d, nothing, a)
        else:
            asm.emit(f"vpsra{self.whole}", d, a, 8 * self.bytes - 1)

    def largest(self, asm: Assembler, d: Register, a: Register, b: Register | Memory) -> None:
        """d = the larger of two, lane by lane. AVX2 clobbers vectors 4 and 5 for 64 bits."""
        if self.bytes == _FLOAT or asm.target.isa == "avx512":
            asm.emit(f"vpmaxs{self.whole}", d, a, b)
            return
        kind = xmm if d.kind == "xmm" else ymm
        asm.emit("vmovups", kind(4), b)
        asm.emit("vpcmpgtq", kind(5), a, kind(4))
        asm.emit("vblendvpd", d, kind(4), a, kind(5))


_WORDS = {_FLOAT: _WordForm(_FLOAT, "s", "d"), _DOUBLE: _WordForm(_DOUBLE, "d", "q")}


@dataclass(frozen=True)
class LargestElements:
    """A search for the `count` largest elements of each of `rows` rows, of float32 or float64.

    Rows have `length` elements of `x_bytes` and are `pitch` bytes apart. `with_values`: return the
    elements too, not only their places. `least`: find the least instead.
    """

    rows: int
    length: int
    count: int
    pitch: int
    with_values: bool
    least: bool = False
    x_bytes: int = 4

    @property
    def words(self) -> _WordForm:
        return _WORDS[self.x_bytes]

    @property
    def floats(self) -> int:
        """The 32-bit words of a row."""
        return self.length * self.x_bytes // _FLOAT

    def scratch_bytes(self, target: Target) -> int:
        """Return the bytes of scratch: the integer keys of a row, and a vector behind them."""
        return _FLOAT * self.floats + target.vector_bytes


def emit_largest_elements(asm: Assembler, spec: LargestElements) -> None:
    """Append the search.

    rdi: x; rsi: values (rows, count), as x, if `with_values`; rdx: places, int64 (rows, count);
    rcx: scratch memory. Clobbers rax, rdx, rsi, rdi, r8-r10, the vector registers, k1 and k7.
    """
    with counted_down(asm, r8, spec.rows):
        _write_keys(asm, spec)
        with counted_down(asm, r9, spec.count):
            _largest_key(asm, spec)
            _first_place(asm, spec)
            _take(asm, spec)
        asm.emit("add", rdi, spec.pitch)


def _write_keys(asm: Assembler, spec: LargestElements) -> None:
    """Write the keys of a row at rcx, and a vector of the least integer behind them."""
    words, is_wide = spec.words, asm.target.isa == "avx512"
    nothing, greatest, spare = (vector(asm, 13 + number) for number in range(3))
    zero(asm, nothing)
    words.fill(asm, greatest, words.last if spec.least else words.greatest)
    ones = vector(asm, 12)
    if spec.least:
        words.fill(asm, ones, -1)

    def body(span: Span) -> None:
        for position in range(len(span.firsts)):
            key, sign = vector(asm, 2 * position), vector(asm, 2 * position + 1)
            span.load(key, rdi, position, spare)
            asm.emit(f"vaddp{words.float}", key, key, nothing)
            words.signs(asm, sign, key, nothing)
            asm.emit(f"vpsrl{words.whole}", sign, sign, 1)
            if spec.least:
                asm.emit("vxorps", sign, sign, ones)
            if is_wide:
                asm.emit(f"vcmpp{words.float}", _FOUND, key, key, _UNORDERED)
                asm.emit("vpxord", key, key, sign)
                asm.emit(f"vmovdqa{8 * words.bytes}", key.masked(_FOUND), greatest)
            else:
                asm.emit(f"vcmpp{words.float}", spare, key, key, _UNORDERED)
                asm.emit("vpxor", key, key, sign)
                asm.emit(f"vblendvp{words.float}", key, key, greatest, spare)
            span.store(key, rcx, position, spare)

    emit_spans(asm, spec.floats, _VECTORS_IN_STEP, body)
    words.fill(asm, spare, words.least)
    asm.emit("vmovups", Memory(rcx, _FLOAT * spec.floats), spare)


def _largest_key(asm: Assembler, spec: LargestElements) -> None:
    """Vector 0 = the largest key in every lane."""
    words, lanes = spec.words, asm.target.lanes
    best = [vector(asm, number) for number in range(_VECTORS_IN_STEP)]
    words.fill(asm, best[0], words.least)
    for register in best[1:]:
        asm.emit("vmovups", register, best[0])

    def body(span: Span) -> None:
        for register, first in zip(best, span.firsts, strict=False):
            words.largest(asm, register, register, Memory(rcx, _FLOAT * first, span.index))

    emit_spans(asm, round_up(spec.floats, lanes), _VECTORS_IN_STEP, body)
    for register in best[1:]:
        words.largest(asm, best[0], best[0], register)
    low, high = xmm(0), xmm(1)
    if asm.target.isa == "avx512":
        asm.emit("vextracti64x4", ymm(1), best[0], 1)
        words.largest(asm, ymm(0), ymm(0), ymm(1))
    asm.emit("vextracti128", high, ymm(0), 1)
    words.largest(asm, low, low, high)
    for order in (_SWAPPED_HALVES, _SWAPPED_PAIRS)[: _DOUBLE // words.bytes]:
        asm.emit("vpshufd", high, low, order)
        words.largest(asm, low, low, high)
    asm.emit(f"vpbroadcast{words.whole}", best[0], low)


def _first_place(asm: Assembler, spec: LargestElements) -> None:
    """r10 = the first place whose key is vector 0; there is always one."""
    words = spec.words
    again = asm.label("next keys")
    asm.emit("mov", r10, -asm.target.vector_bytes)
    asm.bind(again)
    asm.emit("add", r10, asm.target.vector_bytes)
    keys = Memory(rcx, 0, r10)
    if asm.target.isa == "avx512":
        asm.emit(f"vpcmpeq{words.whole}", _FOUND, vector(asm, 0), keys)
        asm.emit("kmovw", dword(rax), _FOUND)
    else:
        asm.emit(f"vpcmpeq{words.whole}", ymm(1), ymm(0), keys)
        asm.emit(f"vmovmskp{words.float}", dword(rax), ymm(1))
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jz", again)
    asm.emit("bsf", dword(rax), dword(rax))
    asm.emit("shr", r10, words.bytes.bit_length() - 1)
    asm.emit("add", r10, rax)


def _take(asm: Assembler, spec: LargestElements) -> None:
    """Write the place in r10, its value if `with_values`, and exclude it from the next search."""
    words = spec.words
    word = rax if words.bytes == _DOUBLE else dword(rax)
    asm.emit("mov", Memory(rdx), r10)
    asm.emit("add", rdx, _PLACE)
    if spec.with_values:
        asm.emit("mov", word, Memory(rdi, 0, r10, words.bytes))
        asm.emit("mov", Memory(rsi), word)
        asm.emit("add", rsi, words.bytes)
    if words.bytes == _DOUBLE:
        asm.emit("mov", rax, Literal(asm.literal(np.array([words.least]), _DOUBLE)))
    else:
        asm.emit("mov", word, words.least)
    asm.emit("mov", Memory(rcx, 0, r10, words.bytes), word)


_INDEX = 8


def emit_true_places(asm: Assembler, length: int) -> None:
    """Append code that lists the places of the true elements of a mask of `length` elements.

    rdi: mask, a byte of 0 or 1 each; rsi: places, int64 (length,); rdx: their number, int64. The
    places behind the last become 0. `length` is 1 or more. Clobbers rax, rcx and r8.
    """
    for register in (rax, r8):
        asm.emit("xor", dword(register), dword(register))
    filled, fill = asm.label("all places"), asm.label("next zero")
    with counted_up(asm, rax, 1, length):
        asm.emit("mov", Memory(rsi, 0, r8, _INDEX), rax)
        asm.emit("movzx", dword(rcx), Memory(rdi, 0, rax))
        asm.emit("add", r8, rcx)
    asm.emit("mov", Memory(rdx), r8)
    asm.emit("xor", dword(rax), dword(rax))
    asm.bind(fill)
    asm.emit("cmp", r8, length)
    asm.jump("jae", filled)
    asm.emit("mov", Memory(rsi, 0, r8, _INDEX), rax)
    asm.emit("add", r8, 1)
    asm.jump("jmp", fill)
    asm.bind(filled)
