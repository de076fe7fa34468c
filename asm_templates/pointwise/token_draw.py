"""The draw of a token by its logits: the largest one, or one of the likeliest at a temperature.

    logits -> copy, -inf behind    the largest, and its first place: greedy ends here
    weights 2^((logit - largest) * factor)
    top_k: weights below the k-th largest become 0
    top_p: weights below the largest t become 0 for which weights >= t hold that part of the sum
    the first place where the running sum exceeds uniform * sum

Both thresholds are found bit by bit: non-negative floats are in the order of their bits. Weights
that equal a threshold all stay, as in PyTorch's samplers by top_k. A weight of 0 is never drawn.
"""

from collections.abc import Callable

from sparsejit.asm_templates.pointwise.power_of_two import emit_exp2
from sparsejit.asm_templates.shared.loops import Span, counted_up, emit_spans
from sparsejit.asm_templates.shared.rows import vector, zero
from sparsejit.whole_numbers import round_up
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import (
    Memory,
    Register,
    dword,
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
)

# The parameters of a draw, at rcx: float32, float32, int32.
FACTOR, TOP_P, TOP_K = 0, 4, 8  # factor: log2 e / temperature, 0 for the largest logit
_PADDED, _STEP = 16, 8  # lanes: scratch is whole vectors of either level; loops take 8 at a time
# Predicates of vcmpps; false for NaN, but for the second.
_IS_EQUAL, _IS_UNORDERED, _IS_AT_MOST, _IS_AT_LEAST = 0x00, 0x03, 0x02, 0x1D
# Bits of float32, as signed numbers.
_ONE, _INFINITY, _MINUS_INFINITY = 0x3F800000, 0x7F800000, -0x00800000
_HIGHEST_BIT = 1 << 29  # of weights, which are at most 1
_NO_TOKEN = -1


def token_scratch_bytes(classes: int) -> int:
    """Return the scratch of a draw in bytes: the weights, and a place for the uniform number."""
    return 4 * (round_up(classes, _PADDED) + _PADDED)


def emit_token_draw(asm: Assembler, classes: int) -> None:
    """Append the draw of a token; rax = its number, -1 where logits are NaN or none is finite.

    rdi: logits, float32 (classes,); rdx: scratch of `token_scratch_bytes`; rcx: parameters; xmm0: a
    uniform number in [0, 1), float32. An infinite logit is refused at a temperature only. Clobbers
    rsi, rdi, r8 to r11, the vector registers and k7.
    """
    _TokenDraw(asm, classes).emit()


class _TokenDraw:
    """Code of a draw: rcx: parameters; rdx: weights; rsi: an index in bytes."""

    def __init__(self, asm: Assembler, classes: int) -> None:
        self._asm, self._classes = asm, classes
        self._bytes = 4 * round_up(classes, _PADDED)
        self._uniform = Memory(rdx, self._bytes)

    def emit(self) -> None:
        asm = self._asm
        bad, end = asm.label("no token"), asm.label("token drawn")
        asm.emit("vmovss", self._uniform, xmm(0))
        self._copy()
        self._find_largest(bad)
        asm.emit("mov", dword(r9), Memory(rcx, FACTOR))
        asm.emit("test", dword(r9), dword(r9))
        asm.jump("jz", end)
        asm.emit("vmovd", dword(r8), xmm(1))
        asm.emit("and", dword(r8), _INFINITY)
        asm.emit("cmp", dword(r8), _INFINITY)
        asm.jump("je", bad)
        self._weigh()
        self._keep_top_k()
        self._keep_top_p()
        self._draw()
        asm.jump("jmp", end)
        asm.bind(bad)
        asm.emit("mov", rax, _NO_TOKEN)
        asm.bind(end)

    def _loop(self, body: Callable[[Memory], None]) -> None:
        """Append `body` for each vector of 8 weights; rsi counts bytes."""
        self._asm.emit("xor", dword(rsi), dword(rsi))
        with counted_up(self._asm, rsi, 4 * _STEP, self._bytes):
            body(Memory(rdx, 0, rsi))

    def _copy(self) -> None:
        """Copy the logits to the scratch, -inf behind them."""
        asm = self._asm

        def copy(span: Span) -> None:
            held, spare = vector(asm, 1), vector(asm, 2)
            span.load(held, rdi, 0, spare)
            span.store(held, rdx, 0, spare)

        emit_spans(asm, self._classes, 1, copy)
        asm.emit("mov", dword(r8), _MINUS_INFINITY)
        for place in range(4 * self._classes, self._bytes, 4):
            asm.emit("mov", Memory(rdx, place), dword(r8))

    def _find_largest(self, bad: Label) -> None:
        """ymm1 = the largest logit in every lane, rax = its first place; jump where one is NaN."""
        asm, (largest, unordered, now, other) = self._asm, map(ymm, range(1, 5))
        asm.emit("vmovups", largest, Memory(rdx))
        zero(asm, unordered)

        def compare(place: Memory) -> None:
            asm.emit("vmovups", now, place)
            asm.emit("vmaxps", largest, largest, now)
            asm.emit("vcmpps", now, now, now, _IS_UNORDERED)
            asm.emit("vorps", unordered, unordered, now)

        self._loop(compare)
        asm.emit("vmovmskps", dword(rax), unordered)
        asm.emit("test", dword(rax), dword(rax))
        asm.jump("jnz", bad)
        self._across("vmaxps", largest, other)
        found, again = asm.label("largest found"), asm.label("next logits")
        asm.emit("xor", dword(rsi), dword(rsi))
        asm.bind(again)
        asm.emit("vcmpps", now, largest, Memory(rdx, 0, rsi), _IS_EQUAL)
        asm.emit("vmovmskps", dword(rax), now)
        asm.emit("test", dword(rax), dword(rax))
        asm.jump("jnz", found)
        asm.emit("add", rsi, 4 * _STEP)
        asm.jump("jmp", again)
        asm.bind(found)
        asm.emit("bsf", dword(rax), dword(rax))
        asm.emit("shr", rsi, 2)
        asm.emit("add", rax, rsi)

    def _across(self, mnemonic: str, register: Register, other: Register) -> None:
        """Combine all 8 lanes, in every lane."""
        asm = self._asm
        asm.emit("vperm2f128", other, register, register, 0x01)
        asm.emit(mnemonic, register, register, other)
        for pattern in (0x4E, 0xB1):
            asm.emit("vpermilps", other, register, pattern)
            asm.emit(mnemonic, register, register, other)

    def _weigh(self) -> None:
        """Replace all logits by their weights; the largest is in ymm1."""
        asm = self._asm
        largest, factor, weight, *scratch = (vector(asm, number) for number in range(1, 7))
        asm.emit("vbroadcastss", largest, xmm(1))
        asm.emit("vbroadcastss", factor, Memory(rcx, FACTOR))
        asm.emit("xor", dword(rsi), dword(rsi))
        with counted_up(asm, rsi, 4 * asm.target.lanes, self._bytes):
            asm.emit("vmovups", weight, Memory(rdx, 0, rsi))
            asm.emit("vsubps", weight, weight, largest)
            asm.emit("vmulps", weight, weight, factor)
            emit_exp2(asm, [weight], scratch)
            asm.emit("vmovups", Memory(rdx, 0, rsi), weight)

    def _keep_top_k(self) -> None:
        asm, all_stay = self._asm, self._asm.label("no top_k")
        threshold, now = ymm(1), ymm(2)
        asm.emit("mov", dword(r9), Memory(rcx, TOP_K))
        asm.emit("test", dword(r9), dword(r9))
        asm.jump("jz", all_stay)

        def count(place: Memory) -> None:
            asm.emit("vmovups", now, place)
            asm.emit("vcmpps", now, now, threshold, _IS_AT_LEAST)
            asm.emit("vmovmskps", dword(rax), now)
            asm.emit("popcnt", dword(rax), dword(rax))
            asm.emit("add", dword(rdi), dword(rax))

        def is_enough(below: Label) -> None:
            asm.emit("xor", dword(rdi), dword(rdi))
            self._loop(count)
            asm.emit("cmp", dword(rdi), dword(r9))
            asm.jump("jl", below)

        self._keep_from(is_enough)
        asm.bind(all_stay)

    def _keep_top_p(self) -> None:
        asm, all_stay = self._asm, self._asm.label("no top_p")
        threshold, now, total, other, part = map(ymm, range(1, 6))
        asm.emit("mov", dword(r9), Memory(rcx, TOP_P))
        asm.emit("cmp", dword(r9), _ONE)
        asm.jump("jge", all_stay)

        def add(place: Memory) -> None:
            asm.emit("vmovups", now, place)
            asm.emit("vcmpps", other, now, threshold, _IS_AT_LEAST)
            asm.emit("vandps", now, now, other)
            asm.emit("vaddps", total, total, now)

        def sum_of() -> None:
            """total = the sum of the weights from the threshold on."""
            zero(asm, total)
            self._loop(add)
            self._across("vaddps", total, other)

        def is_enough(below: Label) -> None:
            sum_of()
            asm.emit("vucomiss", xmm(int(total.number)), xmm(int(part.number)))
            asm.jump("jb", below)

        zero(asm, threshold)
        sum_of()
        asm.emit("vmulss", xmm(5), xmm(3), Memory(rcx, TOP_P))
        self._keep_from(is_enough)
        asm.bind(all_stay)

    def _keep_from(self, is_enough: Callable[[Label], None]) -> None:
        """Zero all weights below the largest threshold that keeps enough of them.

        `is_enough` appends code that compares the weights with the threshold in ymm1. The code runs
        to its end if enough weights reach the threshold, else it jumps to the label it is given.
        """
        asm, threshold, now = self._asm, ymm(1), ymm(2)
        again, below = asm.label("next bit"), asm.label("too little")
        asm.emit("xor", dword(r10), dword(r10))
        asm.emit("mov", dword(r11), _HIGHEST_BIT)
        asm.bind(again)
        asm.emit("or", dword(r10), dword(r11))
        self._set_threshold()
        is_enough(below)
        kept = asm.label("bit stays")
        asm.jump("jmp", kept)
        asm.bind(below)
        asm.emit("xor", dword(r10), dword(r11))
        asm.bind(kept)
        asm.emit("shr", dword(r11), 1)
        asm.jump("jnz", again)
        self._set_threshold()

        def keep(place: Memory) -> None:
            asm.emit("vcmpps", now, threshold, place, _IS_AT_MOST)
            asm.emit("vandps", now, now, place)
            asm.emit("vmovups", place, now)

        self._loop(keep)

    def _set_threshold(self) -> None:
        self._asm.emit("vmovd", xmm(1), dword(r10))
        self._asm.emit("vbroadcastss", ymm(1), xmm(1))

    def _draw(self) -> None:
        """rax = the first place where the running sum, in float64, exceeds uniform * sum."""
        asm, (total, part, running, limit) = self._asm, map(xmm, range(1, 5))

        def block(place: Memory) -> None:
            asm.emit("vmovups", ymm(2), place)
            self._across("vaddps", ymm(2), ymm(5))
            asm.emit("vcvtss2sd", part, part, part)

        def add(place: Memory) -> None:
            block(place)
            asm.emit("vaddsd", total, total, part)

        zero(asm, total)
        self._loop(add)
        asm.emit("vxorps", limit, limit, limit)
        asm.emit("vcvtss2sd", limit, limit, self._uniform)
        asm.emit("vmulsd", limit, limit, total)
        again, found = asm.label("next weights"), asm.label("among these")
        zero(asm, running)
        asm.emit("xor", dword(rsi), dword(rsi))
        asm.bind(again)
        block(Memory(rdx, 0, rsi))
        asm.emit("vaddsd", total, running, part)
        asm.emit("vucomisd", total, limit)
        asm.jump("ja", found)
        asm.emit("vmovapd", running, total)
        asm.emit("add", rsi, 4 * _STEP)
        asm.jump("jmp", again)
        asm.bind(found)
        self._draw_among(running, part, limit)

    def _draw_among(self, running: Register, part: Register, limit: Register) -> None:
        """rax = the place among the 8 weights from rsi on, of which one is not 0."""
        asm = self._asm
        again, drawn, next_one = map(asm.label, ("next weight", "drawn", "weight of 0"))
        asm.emit("shr", rsi, 2)
        asm.emit("lea", r9, Memory(rsi, _STEP))
        asm.bind(again)
        asm.emit("mov", dword(r8), Memory(rdx, 0, rsi, 4))
        asm.emit("test", dword(r8), dword(r8))
        asm.jump("jz", next_one)
        asm.emit("mov", rax, rsi)
        asm.emit("vcvtss2sd", part, part, Memory(rdx, 0, rsi, 4))
        asm.emit("vaddsd", running, running, part)
        asm.emit("vucomisd", running, limit)
        asm.jump("ja", drawn)
        asm.bind(next_one)
        asm.emit("add", rsi, 1)
        asm.emit("cmp", rsi, r9)
        asm.jump("jb", again)
        asm.bind(drawn)
