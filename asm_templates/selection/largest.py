"""Places of elements: the largest of rows, and the true elements of a mask.

    emit_largest_elements   the largest, the first of equals first, NaN above all others
    emit_true_places        the places of the true elements, one after another

The largest: elements become int32 keys of the same order: the lower bits of negative floats are
inverted, -0 counts as 0, and NaN is the largest integer. For the least elements, all bits are
inverted once more. Then, for each element of the result:

    largest key of the row -> its first place -> that key becomes the smallest integer

True elements:

    places[count] = place; count += mask[place]     for each place, without a branch
    places[count ...] = 0
"""

from dataclasses import dataclass

from sparsejit.asm_templates.shared.constants import load_constant
from sparsejit.asm_templates.shared.loops import Span, counted_down, counted_up, emit_spans
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.machine.target import Target
from sparsejit.whole_numbers import round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Memory,
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

_FLOAT, _PLACE = 4, 8
_VECTORS_IN_STEP = 4
_GREATEST, _LEAST = 2**31 - 1, -(2**31)
_LAST = _LEAST + 1  # below the key of every number
_UNORDERED = 3  # of vcmpps
_FOUND = k(1)
_SWAPPED_HALVES, _SWAPPED_PAIRS = 0x4E, 0xB1  # of vpshufd


@dataclass(frozen=True)
class LargestElements:
    """A search for the `count` largest elements of each of `rows` float32 rows.

    Rows have `length` elements and are `pitch` bytes apart. `with_values`: return the elements too,
    not only their places. `least`: find the least instead.
    """

    rows: int
    length: int
    count: int
    pitch: int
    with_values: bool
    least: bool = False

    def scratch_bytes(self, target: Target) -> int:
        """Return the bytes of scratch: the integer keys of a row, and a vector behind them."""
        return _FLOAT * self.length + target.vector_bytes


def emit_largest_elements(asm: Assembler, spec: LargestElements) -> None:
    """Append the search.

    rdi: x; rsi: values, float32 (rows, count), if `with_values`; rdx: places, int64 (rows, count);
    rcx: scratch memory. Clobbers rax, rdx, rsi, rdi, r8-r10, the vector registers, k1 and k7.
    """
    with counted_down(asm, r8, spec.rows):
        _write_keys(asm, spec)
        with counted_down(asm, r9, spec.count):
            _largest_key(asm, spec)
            _first_place(asm)
            _take(asm, spec)
        asm.emit("add", rdi, spec.pitch)


def _write_keys(asm: Assembler, spec: LargestElements) -> None:
    """Write the keys of a row at rcx, and a vector of the least integer behind them."""
    nothing, greatest, spare = (vector(asm, 13 + number) for number in range(3))
    zero(asm, nothing)
    load_constant(asm, greatest, _LAST if spec.least else _GREATEST)
    ones = vector(asm, 12)
    if spec.least:
        load_constant(asm, ones, -1)

    def body(span: Span) -> None:
        for position in range(len(span.firsts)):
            key, sign = vector(asm, 2 * position), vector(asm, 2 * position + 1)
            span.load(key, rdi, position, spare)
            asm.emit("vaddps", key, key, nothing)
            asm.emit("vpsrad", sign, key, 31)
            asm.emit("vpsrld", sign, sign, 1)
            if spec.least:
                asm.emit("vxorps", sign, sign, ones)
            if asm.target.isa == "avx512":
                asm.emit("vcmpps", _FOUND, key, key, _UNORDERED)
                asm.emit("vpxord", key, key, sign)
                asm.emit("vmovdqa32", key.masked(_FOUND), greatest)
            else:
                asm.emit("vcmpps", spare, key, key, _UNORDERED)
                asm.emit("vpxor", key, key, sign)
                asm.emit("vblendvps", key, key, greatest, spare)
            span.store(key, rcx, position, spare)

    emit_spans(asm, spec.length, _VECTORS_IN_STEP, body)
    load_constant(asm, spare, _LEAST)
    asm.emit("vmovups", Memory(rcx, _FLOAT * spec.length), spare)


def _largest_key(asm: Assembler, spec: LargestElements) -> None:
    """Vector 0 = the largest key in every lane."""
    lanes = asm.target.lanes
    best = [vector(asm, number) for number in range(_VECTORS_IN_STEP)]
    load_constant(asm, best[0], _LEAST)
    for register in best[1:]:
        asm.emit("vmovups", register, best[0])

    def body(span: Span) -> None:
        for register, first in zip(best, span.firsts, strict=False):
            keys = Memory(rcx, _FLOAT * first, span.index)
            asm.emit("vpmaxsd", register, register, keys)

    emit_spans(asm, round_up(spec.length, lanes), _VECTORS_IN_STEP, body)
    for register in best[1:]:
        asm.emit("vpmaxsd", best[0], best[0], register)
    low, high = xmm(0), xmm(1)
    if asm.target.isa == "avx512":
        asm.emit("vextracti64x4", ymm(1), best[0], 1)
        asm.emit("vpmaxsd", ymm(0), ymm(0), ymm(1))
    asm.emit("vextracti128", high, ymm(0), 1)
    asm.emit("vpmaxsd", low, low, high)
    for order in (_SWAPPED_HALVES, _SWAPPED_PAIRS):
        asm.emit("vpshufd", high, low, order)
        asm.emit("vpmaxsd", low, low, high)
    asm.emit("vpbroadcastd", best[0], low)


def _first_place(asm: Assembler) -> None:
    """r10 = the first place whose key is vector 0; there is always one."""
    again = asm.label("next keys")
    asm.emit("mov", r10, -asm.target.vector_bytes)
    asm.bind(again)
    asm.emit("add", r10, asm.target.vector_bytes)
    keys = Memory(rcx, 0, r10)
    if asm.target.isa == "avx512":
        asm.emit("vpcmpeqd", _FOUND, vector(asm, 0), keys)
        asm.emit("kmovw", dword(rax), _FOUND)
    else:
        asm.emit("vpcmpeqd", ymm(1), ymm(0), keys)
        asm.emit("vmovmskps", dword(rax), ymm(1))
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jz", again)
    asm.emit("bsf", dword(rax), dword(rax))
    asm.emit("shr", r10, 2)
    asm.emit("add", r10, rax)


def _take(asm: Assembler, spec: LargestElements) -> None:
    """Write the place in r10, its value if `with_values`, and exclude it from the next search."""
    asm.emit("mov", Memory(rdx), r10)
    asm.emit("add", rdx, _PLACE)
    if spec.with_values:
        asm.emit("mov", dword(rax), Memory(rdi, 0, r10, _FLOAT))
        asm.emit("mov", Memory(rsi), dword(rax))
        asm.emit("add", rsi, _FLOAT)
    asm.emit("mov", dword(rax), _LEAST)
    asm.emit("mov", Memory(rcx, 0, r10, _FLOAT), dword(rax))


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
