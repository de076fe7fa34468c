"""A native reader of ASCII texts: runs of letters become the codes of the words that they are.

    read_words(text, arguments, result) -> number of results

    each run of characters that are not 0 in `classes`, by these
        each eight of them       state = table[state, the eight]
        the rest                 code = table[state, the rest]
                                 the code is written, or counted: count[seen[code]] += 1
    a character of class 1       the code of a break, or the end of the counts of a text

    at the end of a text, if asked:   result[text] = sum of value * weights[code] / their norm
                                      with value = values[count] * frequencies[code]

The table is exact: its keys are the characters themselves. A word of eight letters takes 10 ns
where the table lies in L1. Counts are packed into one number, text << 48 | code << 17 | count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory, builtin, python_function
from sparsejit.runtime.python_objects import (
    ARRAY_DATA,
    METH_FASTCALL,
    emit_call,
    layout_is_known,
)
from sparsejit.runtime.trie_walk import FACTOR, ascending_places
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
    rsp,
    xmm,
    ymm,
)
from sparsejit.x86.routines import pop, push

Array = npt.NDArray[Any]

SEPARATOR, BREAK = 0, 1  # classes of characters that are in no word
_SAVED = (rbx, rbp, r12, r13, r14, r15)
_CHUNK, _ROW_BYTES = 8, 32
_FRAME = 40  # bytes of the stack, which is aligned to 16 bytes at calls
_HALF = 32
_NOWHERE = 1 << 31  # a state that no row has
# The arguments, as int64 in an array.
_CLASSES, _TABLE, _MASK, _LEAST, _UNKNOWN, _OF_BREAK, _SEEN = range(7)
_VALUES, _FREQUENCIES, _WEIGHTS, _PITCH, _NORM = range(7, 12)
NORMS = ("", "l1", "l2")
# Bits of a packed count, which a text of less than 2**COUNT_BITS characters fits, and of a code.
COUNT_BITS, CODE_BITS = 17, 31
MOST_TEXTS = 1 << 15
# Places on the stack: the length of the text, the first code, the first of a text, the text, and
# the next row of sums.
_LENGTH, _FIRST, _OWN, _TEXT, _ROW = range(5)
_VECTOR = 4  # doubles


class WordSums(NamedTuple):
    """The terms of a sum over the words of a text, all float64.

    A word that a text has n times has the value values[n] * frequencies[code], which is divided by
    the norm of all of a text, one of NORMS, and multiplied by weights[code] (codes, outputs).
    Frequencies and `values` (2**COUNT_BITS,) are not negative.
    """

    values: Array
    frequencies: Array
    weights: Array
    norm: str


class WordTable:
    """The codes of words, as native code reads them.

    `classes` (256,) uint8 are the characters that stand for each byte, SEPARATOR, or BREAK. Words
    shorter than `least` have no code; `unknown` and `of_break` are codes as well.
    """

    def __init__(
        self, codes: Mapping[str, int], classes: Array, least: int, unknown: int, of_break: int
    ) -> None:
        letters = set(classes[classes > BREAK].tolist())
        states: dict[tuple[int, int], int] = {}
        found: dict[tuple[int, int], int] = {}
        for word, code in codes.items():
            if not word.isascii() or not letters.issuperset(data := word.encode()) or not data:
                continue
            state, *chunks = 0, *(data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK))
            for chunk in chunks:
                key = state, int.from_bytes(chunk, "big")
                state = states.setdefault(key, len(states) + 1)
            found[key] = code
        self._rows, mask = _rows_of(states, found, unknown)
        self._classes = np.ascontiguousarray(classes, np.uint8)
        self._seen = np.zeros(max(codes.values(), default=0) + 1, np.int32)
        addresses = self._classes.ctypes.data, self._rows.ctypes.data
        rest = mask, least, unknown, of_break
        self._arguments = [
            np.array([*addresses, *rest, seen, *[0] * 5], np.int64)
            for seen in (0, self._seen.ctypes.data)
        ]

    def read(self, text: str, counts: bool = False) -> Array | None:
        """The codes of an ASCII text, int64; None where this interpreter's objects are unknown.

        With `counts` each code that is not negative once for each text, packed with its count.
        Such a text has at most MOST_TEXTS texts, and less than 2**COUNT_BITS characters.
        """
        native = _reader()
        if native is None:
            return None
        result = np.empty(len(text) + 1, np.int64)
        count = native(text, self._arguments[counts], result, result)
        return result[:count]

    def sums(self, terms: WordSums) -> Callable[[str, int], Array] | None:
        """A function of an ASCII text that returns the sums of each of its texts, (texts, outputs).

        The text has less than 2**COUNT_BITS characters. None as for `read`.
        """
        native = _reader()
        if native is None:
            return None
        outputs = terms.weights.shape[1]
        pitch = outputs if outputs < _VECTOR else round_up(outputs, _VECTOR)
        weights = np.zeros((len(terms.weights), pitch))
        weights[:, :outputs] = terms.weights
        values, frequencies = (
            np.ascontiguousarray(each, np.float64) for each in (terms.values, terms.frequencies)
        )
        addresses = [each.ctypes.data for each in (values, frequencies, weights)]
        arguments = self._arguments[True].copy()
        arguments[_VALUES:] = *addresses, 8 * pitch, NORMS.index(terms.norm)
        held = self, values, frequencies, weights

        def summed(text: str, texts: int, held: object = held) -> Array:
            found = np.empty((texts, pitch))
            native(text, arguments, np.empty(len(text) + 1, np.int64), found)
            return found if pitch == outputs else np.ascontiguousarray(found[:, :outputs])

        return summed


def _rows_of(
    states: Mapping[tuple[int, int], int], codes: Mapping[tuple[int, int], int], unknown: int
) -> tuple[Array, int]:
    """The rows (slots, 4): eight characters, the state before and behind, the code; and a mask."""
    slots = 1 << max(4, (2 * len(states)).bit_length())
    before, chunks = np.array([*states] or np.zeros((0, 2)), np.int64).reshape(-1, 2).T
    mixed = (before << _HALF ^ chunks).view(np.uint64)
    with np.errstate(over="ignore"):
        hashes = (mixed * np.uint64(FACTOR) >> np.uint64(_HALF)).astype(np.int64) & (slots - 1)
    places = ascending_places(hashes)
    rows = np.full((max(slots, int(places.max(initial=0)) + 1) + 1, 4), -1, np.int64)
    behind = [*states.values()]
    own = [codes.get(key, unknown) for key in states]
    rows[places] = np.stack([chunks, before, behind, own], axis=1) if behind else rows[places]
    return rows, slots - 1


@cache
def _reader() -> Callable[[str, Array, Array, Array], int] | None:
    if not layout_is_known():
        return None
    asm = Assembler(Target.detect())
    _emit(asm)
    code = ExecutableMemory(asm.finish().data)
    return builtin("read_words", code.address, METH_FASTCALL, code)


def _emit(asm: Assembler) -> None:
    """Append the reader.

    Registers: rbx: classes; rbp: the text; r12: table; r13: the next code; r14: the next character;
    r15: the end; r11: the arguments; r9: the start of a word; rcx: characters of a chunk, whose
    number is in r8; rdx: the state; r10: the code; rdi: the factor.
    """
    failed, done = asm.label("failed"), asm.label("done")
    push(asm, _SAVED)
    asm.emit("sub", rsp, _FRAME)
    asm.emit("mov", rax, Memory(rsi, 16))
    asm.emit("mov", r13, Memory(rax, ARRAY_DATA))
    asm.emit("xor", dword(rax), dword(rax))
    for place, register in ((_FIRST, r13), (_OWN, r13), (_TEXT, rax)):
        asm.emit("mov", Memory(rsp, 8 * place), register)
    asm.emit("mov", rax, Memory(rsi, 24))
    asm.emit("mov", rax, Memory(rax, ARRAY_DATA))
    asm.emit("mov", Memory(rsp, 8 * _ROW), rax)
    asm.emit("mov", rax, Memory(rsi, 8))
    asm.emit("mov", rbx, Memory(rax, ARRAY_DATA))
    asm.emit("mov", rdi, Memory(rsi))
    asm.emit("mov", rsi, rsp)
    emit_call(asm, python_function("PyUnicode_AsUTF8AndSize"))
    asm.emit("test", rax, rax)
    asm.jump("jz", failed)
    asm.emit("mov", rbp, rax)
    asm.emit("xor", dword(r14), dword(r14))
    asm.emit("mov", r15, Memory(rsp))
    asm.emit("mov", r11, rbx)
    asm.emit("mov", rbx, Memory(r11, 8 * _CLASSES))
    asm.emit("mov", r12, Memory(r11, 8 * _TABLE))
    asm.emit("mov", rdi, FACTOR)
    _emit_words(asm)
    asm.emit("mov", rdi, r13)
    asm.emit("sub", rdi, Memory(rsp, 8 * _FIRST))
    asm.emit("shr", rdi, 3)
    asm.bind(done)
    emit_call(asm, python_function("PyLong_FromSsize_t"))
    asm.emit("add", rsp, _FRAME)
    pop(asm, _SAVED)
    asm.emit("ret")
    asm.bind(failed)
    emit_call(asm, python_function("PyErr_Clear"))
    asm.emit("xor", dword(rdi), dword(rdi))
    asm.jump("jmp", done)


def _emit_words(asm: Assembler) -> None:
    """Append the loop over all characters."""
    names = ("next", "write", "of break", "end", "look up", "forget", "done")
    following, write, of_break, end, look_up, forget, done = map(asm.label, names)
    asm.bind(following)
    _emit_class(asm, end)
    asm.emit("mov", r9, r14)
    asm.emit("add", r14, 1)
    asm.emit("cmp", dword(rax), BREAK)
    asm.jump("jb", following)
    asm.jump("je", of_break)
    _emit_word(asm, look_up, following)
    _jump_unless_seen(asm, write)
    _emit_count(asm, following)
    asm.bind(write)
    asm.emit("mov", Memory(r13), r10)
    asm.emit("add", r13, 8)
    asm.jump("jmp", following)
    asm.bind(of_break)
    asm.emit("mov", r10, Memory(r11, 8 * _OF_BREAK))
    _jump_unless_seen(asm, write)
    asm.jump("call", forget)
    asm.jump("jmp", following)
    asm.bind(end)
    _jump_unless_seen(asm, done)
    asm.jump("call", forget)
    asm.jump("jmp", done)
    asm.bind(look_up)
    _emit_look_up(asm)
    asm.bind(forget)
    _emit_forget(asm)
    asm.bind(done)


def _jump_unless_seen(asm: Assembler, label: Label) -> None:
    """Set rsi to the numbers of counts by code; jump to the label where codes are not counted."""
    asm.emit("mov", rsi, Memory(r11, 8 * _SEEN))
    asm.emit("test", rsi, rsi)
    asm.jump("jz", label)


def _emit_word(asm: Assembler, look_up: Label, following: Label) -> None:
    """Set r10 to the code of the word whose first letter is in eax; or jump to the next character.
    """
    letter, more, ended, taken = map(asm.label, ("letter", "more", "end of word", "taken"))
    for register in (rcx, rdx, r8):
        asm.emit("xor", dword(register), dword(register))
    asm.bind(letter)
    asm.emit("shl", rcx, 8)
    asm.emit("or", rcx, rax)
    asm.emit("add", r8, 1)
    asm.emit("cmp", r8, _CHUNK)
    asm.jump("jne", more)
    asm.jump("call", look_up)
    asm.emit("xor", dword(rcx), dword(rcx))
    asm.emit("xor", dword(r8), dword(r8))
    asm.bind(more)
    _emit_class(asm, ended)
    asm.emit("cmp", dword(rax), BREAK)
    asm.jump("jbe", ended)
    asm.emit("add", r14, 1)
    asm.jump("jmp", letter)
    asm.bind(ended)
    asm.emit("mov", rax, r14)
    asm.emit("sub", rax, r9)
    asm.emit("cmp", rax, Memory(r11, 8 * _LEAST))
    asm.jump("jl", following)
    asm.emit("test", r8, r8)
    asm.jump("jz", taken)
    asm.jump("call", look_up)
    asm.bind(taken)


def _emit_count(asm: Assembler, following: Label) -> None:
    """Count the code in r10, or pack it there, to be written, where the text has it first.

    rsi: for each code, the number of its count among all, or 0. Clobbers rax, rcx, rdx.
    """
    is_new = asm.label("new")
    asm.emit("test", r10, r10)
    asm.jump("js", following)
    asm.emit("mov", rcx, Memory(rsp, 8 * _FIRST))
    asm.emit("mov", dword(rax), Memory(rsi, 0, r10, 4))
    asm.emit("test", dword(rax), dword(rax))
    asm.jump("jz", is_new)
    asm.emit("mov", rdx, Memory(rcx, -8, rax, 8))
    asm.emit("add", rdx, 1)
    asm.emit("mov", Memory(rcx, -8, rax, 8), rdx)
    asm.jump("jmp", following)
    asm.bind(is_new)
    asm.emit("mov", rax, r13)
    asm.emit("sub", rax, rcx)
    asm.emit("shr", rax, 3)
    asm.emit("add", rax, 1)
    asm.emit("mov", Memory(rsi, 0, r10, 4), dword(rax))
    asm.emit("shl", r10, COUNT_BITS)
    asm.emit("or", r10, Memory(rsp, 8 * _TEXT))
    asm.emit("add", r10, 1)


def _emit_forget(asm: Assembler) -> None:
    """Append the routine at the end of a text, whose sums are written if asked: no code is seen.

    Clobbers rax, rcx, rdx, r8 to r10 and vectors.
    """
    again, end, is_summed = map(asm.label, ("again", "end", "is summed"))
    asm.emit("mov", r10, Memory(r11, 8 * _WEIGHTS))
    asm.emit("test", r10, r10)
    asm.jump("jz", is_summed)
    _emit_sums(asm)
    asm.bind(is_summed)
    own, text = (Memory(rsp, 8 * place + 8) for place in (_OWN, _TEXT))
    asm.emit("xor", dword(rdx), dword(rdx))
    asm.emit("mov", rax, own)
    asm.emit("mov", own, r13)
    asm.bind(again)
    asm.emit("cmp", rax, r13)
    asm.jump("jae", end)
    asm.emit("mov", rcx, Memory(rax))
    asm.emit("shr", rcx, COUNT_BITS)
    asm.emit("and", rcx, (1 << CODE_BITS) - 1)
    asm.emit("mov", Memory(rsi, 0, rcx, 4), dword(rdx))
    asm.emit("add", rax, 8)
    asm.jump("jmp", again)
    asm.bind(end)
    asm.emit("mov", rax, 1 << (COUNT_BITS + CODE_BITS))
    asm.emit("add", rax, text)
    asm.emit("mov", text, rax)
    without = asm.label("without sums")
    asm.emit("mov", rax, Memory(r11, 8 * _WEIGHTS))
    asm.emit("test", rax, rax)
    asm.jump("jz", without)
    asm.emit("mov", r13, Memory(rsp, 8 * _FIRST + 8))
    asm.emit("mov", own, r13)
    asm.bind(without)
    asm.emit("ret")


def _emit_sums(asm: Assembler) -> None:
    """Write the sums of a text. r10: the weights. rsi is kept."""
    word, scalar, on, summed, end = map(asm.label, ("word", "scalar", "on", "summed", "end"))
    row, pitch = Memory(rsp, 8 * _ROW + 8), Memory(r11, 8 * _PITCH)
    asm.emit("mov", rcx, row)
    asm.emit("mov", r8, Memory(r11, 8 * _VALUES))
    asm.emit("mov", r9, Memory(r11, 8 * _FREQUENCIES))
    for register in (xmm(1), xmm(2), xmm(3)):
        asm.emit("vxorpd", register, register, register)
    _for_outputs(asm, lambda place: asm.emit("vmovsd", place(rcx), xmm(3)), 1)
    asm.emit("mov", rax, Memory(rsp, 8 * _OWN + 8))
    asm.bind(word)
    asm.emit("cmp", rax, r13)
    asm.jump("jae", summed)
    asm.emit("mov", rdx, Memory(rax))
    asm.emit("mov", rdi, rdx)
    asm.emit("and", rdi, (1 << COUNT_BITS) - 1)
    asm.emit("vmovsd", xmm(0), Memory(r8, 0, rdi, 8))
    asm.emit("shr", rdx, COUNT_BITS)
    asm.emit("and", rdx, (1 << CODE_BITS) - 1)
    asm.emit("vmulsd", xmm(0), xmm(0), Memory(r9, 0, rdx, 8))
    asm.emit("vaddsd", xmm(1), xmm(1), xmm(0))
    asm.emit("vfmadd231sd", xmm(2), xmm(0), xmm(0))
    asm.emit("imul", rdx, pitch)
    asm.emit("add", rdx, r10)
    asm.emit("mov", rdi, pitch)
    asm.emit("cmp", rdi, 8 * _VECTOR)
    asm.jump("jb", scalar)
    asm.emit("vbroadcastsd", ymm(0), xmm(0))
    for label, vector, move, lanes in ((None, ymm, "vmovupd", _VECTOR), (scalar, xmm, "vmovsd", 1)):
        if label is not None:
            asm.jump("jmp", on)
            asm.bind(label)

        def add(place: Place, vector: Any = vector, move: str = move) -> None:
            multiply = "vfmadd231pd" if vector is ymm else "vfmadd231sd"
            asm.emit(move, vector(3), place(rcx))
            asm.emit(multiply, vector(3), vector(0), place(rdx))
            asm.emit(move, place(rcx), vector(3))

        _for_outputs(asm, add, lanes)
    asm.bind(on)
    asm.emit("add", rax, 8)
    asm.jump("jmp", word)
    asm.bind(summed)
    _emit_norm(asm, end)
    asm.bind(end)
    asm.emit("add", rcx, pitch)
    asm.emit("mov", row, rcx)
    asm.emit("mov", rdi, FACTOR)
    asm.emit("vzeroupper")


def _emit_norm(asm: Assembler, end: Label) -> None:
    """Divide the sums at rcx by the norm; jump to the end for none. xmm1, xmm2: sums, of squares"""
    is_first = asm.label("l1")
    asm.emit("mov", rdx, Memory(r11, 8 * _NORM))
    asm.emit("cmp", rdx, NORMS.index("l1"))
    asm.jump("jb", end)
    asm.jump("je", is_first)
    asm.emit("vsqrtsd", xmm(1), xmm(2), xmm(2))
    asm.bind(is_first)
    asm.emit("vxorpd", xmm(3), xmm(3), xmm(3))
    asm.emit("vucomisd", xmm(1), xmm(3))
    asm.jump("je", end)

    def divide(place: Place) -> None:
        asm.emit("vmovsd", xmm(3), place(rcx))
        asm.emit("vdivsd", xmm(3), xmm(3), xmm(1))
        asm.emit("vmovsd", place(rcx), xmm(3))

    _for_outputs(asm, divide, 1)


Place = Callable[[Register], Memory]


def _for_outputs(asm: Assembler, emit: Callable[[Place], object], lanes: int) -> None:
    """A loop over the outputs of a row, some lanes at once, by rdi."""
    again = asm.label("output")
    asm.emit("xor", dword(rdi), dword(rdi))
    asm.bind(again)
    emit(lambda base: Memory(base, 0, rdi, 1))
    asm.emit("add", rdi, 8 * lanes)
    asm.emit("cmp", rdi, Memory(r11, 8 * _PITCH))
    asm.jump("jb", again)


def _emit_class(asm: Assembler, end: Label) -> None:
    """Set eax to the class of the next character; jump to `end` behind the last."""
    asm.emit("cmp", r14, r15)
    asm.jump("jae", end)
    asm.emit("movzx", dword(rax), Memory(rbp, 0, r14))
    asm.emit("movzx", dword(rax), Memory(rbx, 0, rax))


def _emit_look_up(asm: Assembler) -> None:
    """Append the routine that sets the state and the code behind a chunk. Clobbers rax, rsi."""
    probe, on, missed = map(asm.label, ("probe", "on", "missed"))
    asm.emit("mov", rsi, rdx)
    asm.emit("shl", rsi, _HALF)
    asm.emit("xor", rsi, rcx)
    asm.emit("imul", rsi, rdi)
    asm.emit("shr", rsi, _HALF)
    asm.emit("and", rsi, Memory(r11, 8 * _MASK))
    asm.emit("shl", rsi, _ROW_BYTES.bit_length() - 1)
    asm.emit("add", rsi, r12)
    asm.bind(probe)
    asm.emit("mov", rax, Memory(rsi, 8))
    asm.emit("test", rax, rax)
    asm.jump("js", missed)
    asm.emit("cmp", rax, rdx)
    asm.jump("jne", on)
    asm.emit("cmp", rcx, Memory(rsi))
    asm.jump("jne", on)
    asm.emit("mov", rdx, Memory(rsi, 16))
    asm.emit("mov", r10, Memory(rsi, 24))
    asm.emit("ret")
    asm.bind(on)
    asm.emit("add", rsi, _ROW_BYTES)
    asm.jump("jmp", probe)
    asm.bind(missed)
    asm.emit("mov", dword(rdx), _NOWHERE)
    asm.emit("mov", r10, Memory(r11, 8 * _UNKNOWN))
    asm.emit("ret")
