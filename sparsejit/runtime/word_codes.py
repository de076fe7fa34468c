"""A native reader of texts: runs of letters become the codes of the words that they are.

    read_words(text, arguments, result, spans) -> number of results

    each run of characters that are not 0 in `classes`, by these
        each eight of them       state = table[state, the eight]
        the rest                 code = table[state, the rest]
                                 the code is written, with its span, or counted
    a character of class 1       the code of a break, or the end of the counts of a text

A text is a string of ASCII characters, or bytes of UTF-32, of which a state takes three. The table
is exact: its keys are the characters themselves. A word of eight letters takes 10 ns where the
table lies in L1.
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
from sparsejit.runtime.token_counts import (
    ARGUMENTS,
    FIRST,
    FRAME,
    LENGTH,
    ROW,
    SEEN,
    Summing,
    TokenSums,
    emit_begin,
    emit_count,
    emit_end,
)
from sparsejit.runtime.trie_walk import FACTOR, ascending_places
from sparsejit.x86.assembler import Assembler, Label
from sparsejit.x86.operands import (
    Memory,
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
)
from sparsejit.x86.routines import pop, push

Array = npt.NDArray[Any]

SEPARATOR, BREAK, LETTER = 0, 1, 2  # classes of characters that are in no word, and of U+0000
_SAVED = (rbx, rbp, r12, r13, r14, r15)
_ROW_BYTES = 32
_HALF = 32
_NOWHERE = 1 << 31  # a state that no row has
# Further arguments, as int64 in an array.
_CLASSES, _TABLE, _MASK, _LEAST, _UNKNOWN, _OF_BREAK = range(ARGUMENTS, ARGUMENTS + 6)
_BYTES_SIZE, _BYTES_DATA = 16, 32  # PyBytesObject (Include/cpython/bytesobject.h)


class Width(NamedTuple):
    """Characters as a reader reads them: bytes, kinds of them, bits of a class, and their chunk."""

    bytes: int
    kinds: int
    bits: int
    chunk: int


ASCII, POINTS = Width(1, 1 << 7, 8, 8), Width(4, 0x11_0000, 21, 3)


class WordTable:
    """The codes of words, as native code reads them.

    `classes` are what stands for each character of a width: LETTER plus the character, in words,
    SEPARATOR, or BREAK. Words shorter than `least` have no code; `unknown` and `of_break` are codes
    as well.
    """

    def __init__(
        self,
        codes: Mapping[str, int],
        classes: Array,
        least: int,
        unknown: int,
        of_break: int,
        width: Width = ASCII,
    ) -> None:
        self._width = width
        known = _of_letters([*codes], classes)
        states: dict[tuple[int, int], int] = {}
        found: dict[tuple[int, int], int] = {}
        for word in known:
            state = 0
            for chunk in _chunks([LETTER + ord(each) for each in word], width):
                key = state, chunk
                state = states.setdefault(key, len(states) + 1)
            found[key] = codes[word]
        self._rows, mask = _rows_of(states, found, unknown)
        self._classes = np.ascontiguousarray(classes, f"u{width.bytes}")
        self._seen = np.zeros(max([0, *codes.values()]) + 1, np.int32)
        addresses = self._classes.ctypes.data, self._rows.ctypes.data
        rest = mask, least, unknown, of_break
        arguments = np.array([*[0] * ARGUMENTS, *addresses, *rest], np.int64)
        self._arguments = [arguments, arguments.copy()]
        self._arguments[True][SEEN] = self._seen.ctypes.data

    def read(self, text: str | bytes) -> tuple[Array, Array] | None:
        """The codes of words and breaks, int64 (n,), and their spans (n, 2) of characters.

        A text of ASCII characters is a string, all others UTF-32. None where this interpreter's
        objects are unknown.
        """
        native = _reader(self._width)
        if native is None:
            return None
        most = len(text) // self._width.bytes + 1
        codes, spans = np.empty(most, np.int64), np.empty((most, 2), np.int64)
        count = native(text, self._arguments[False], codes, spans)
        return codes[:count], spans[:count]

    def counts(self, text: str | bytes) -> Array | None:
        """Each code that is not negative once for each text, packed with its count.

        The text has at most MOST_TEXTS texts, and less than 2**COUNT_BITS characters. None as for
        `read`.
        """
        native = _reader(self._width)
        if native is None:
            return None
        packed = np.empty(len(text) // self._width.bytes + 1, np.int64)
        return packed[: native(text, self._arguments[True], packed, packed)]

    def sums(self, terms: TokenSums) -> Callable[[str | bytes, int], Array] | None:
        """A function of a text that returns the sums of each of its texts, (texts, outputs).

        The text has less than 2**COUNT_BITS characters. None as for `read`.
        """
        native = _reader(self._width)
        if native is None:
            return None
        summing = Summing(self._arguments[True], terms)

        def summed(text: str | bytes, texts: int, held: object = self) -> Array:
            found, most = summing.new(texts), len(text) // self._width.bytes + 1
            native(text, summing.arguments, np.empty(most, np.int64), found)
            return summing.result(found)

        return summed


def _of_letters(words: list[str], classes: Array) -> list[str]:
    """The words whose characters all stand for themselves."""
    kept = [word for word in words if word]
    joined = "".join(kept).encode("utf-32-le", "surrogatepass")
    points = np.frombuffer(joined, np.uint32).astype(np.int64)
    is_letter = points < len(classes)
    is_letter[is_letter] = classes[points[is_letter]] == points[is_letter] + LETTER
    lengths = np.array([*map(len, kept)], np.int64)
    if not kept:
        return []
    whole = np.logical_and.reduceat(is_letter, lengths.cumsum() - lengths)
    return [word for word, is_known in zip(kept, whole, strict=True) if is_known]


def _chunks(numbers: list[int], width: Width) -> list[int]:
    """The keys of a word's characters, whose first is the highest."""
    found = []
    for begin in range(0, len(numbers), width.chunk):
        key = 0
        for number in numbers[begin : begin + width.chunk]:
            key = key << width.bits | number
        found.append((key + (1 << 63)) % (1 << 64) - (1 << 63))
    return found


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
def _reader(width: Width) -> Callable[[str | bytes, Array, Array, Array], int] | None:
    if not layout_is_known():
        return None
    asm = Assembler(Target.detect())
    _emit(asm, width)
    code = ExecutableMemory(asm.finish().data)
    return builtin("read_words", code.address, METH_FASTCALL, code)


def _emit(asm: Assembler, width: Width) -> None:
    """Append the reader.

    Registers: rbx: classes; rbp: the text; r12: table; r13: the next code; r14: the next character;
    r15: the end; r11: the arguments; r9: the start of a word; rcx: characters of a chunk, whose
    number is in r8; rdx: the state; r10: the code; rdi: the factor.
    """
    failed, done = asm.label("failed"), asm.label("done")
    push(asm, _SAVED)
    asm.emit("sub", rsp, FRAME)
    asm.emit("mov", rax, Memory(rsi, 16))
    asm.emit("mov", r13, Memory(rax, ARRAY_DATA))
    emit_begin(asm)
    asm.emit("mov", rax, Memory(rsi, 24))
    asm.emit("mov", rax, Memory(rax, ARRAY_DATA))
    asm.emit("mov", Memory(rsp, 8 * ROW), rax)
    asm.emit("mov", rax, Memory(rsi, 8))
    asm.emit("mov", rbx, Memory(rax, ARRAY_DATA))
    asm.emit("mov", rdi, Memory(rsi))
    _emit_text(asm, width, failed)
    asm.emit("xor", dword(r14), dword(r14))
    asm.emit("mov", r11, rbx)
    asm.emit("mov", rbx, Memory(r11, 8 * _CLASSES))
    asm.emit("mov", r12, Memory(r11, 8 * _TABLE))
    asm.emit("mov", rdi, FACTOR)
    _emit_words(asm, width)
    asm.emit("mov", rdi, r13)
    asm.emit("sub", rdi, Memory(rsp, 8 * FIRST))
    asm.emit("shr", rdi, 3)
    asm.bind(done)
    emit_call(asm, python_function("PyLong_FromSsize_t"))
    asm.emit("add", rsp, FRAME)
    pop(asm, _SAVED)
    asm.emit("ret")
    asm.bind(failed)
    emit_call(asm, python_function("PyErr_Clear"))
    asm.emit("xor", dword(rdi), dword(rdi))
    asm.jump("jmp", done)


def _emit_text(asm: Assembler, width: Width, failed: Label) -> None:
    """Set rbp to the characters of the object in rdi, and r15 to their number."""
    if width == POINTS:
        asm.emit("mov", r15, Memory(rdi, _BYTES_SIZE))
        asm.emit("shr", r15, 2)
        asm.emit("mov", rbp, rdi)
        asm.emit("add", rbp, _BYTES_DATA)
        return
    asm.emit("mov", rsi, rsp)
    emit_call(asm, python_function("PyUnicode_AsUTF8AndSize"))
    asm.emit("test", rax, rax)
    asm.jump("jz", failed)
    asm.emit("mov", rbp, rax)
    asm.emit("mov", r15, Memory(rsp, 8 * LENGTH))


def _emit_words(asm: Assembler, width: Width) -> None:
    """Append the loop over all characters."""
    names = ("next", "write", "of break", "end", "look up", "forget", "done")
    following, write, of_break, end, look_up, forget, done = map(asm.label, names)
    asm.bind(following)
    _emit_class(asm, width, end)
    asm.emit("mov", r9, r14)
    asm.emit("add", r14, 1)
    asm.emit("cmp", dword(rax), BREAK)
    asm.jump("jb", following)
    asm.jump("je", of_break)
    _emit_word(asm, width, look_up, following)
    _jump_unless_seen(asm, write)
    emit_count(asm, following)
    asm.emit("mov", Memory(r13), r10)
    asm.emit("add", r13, 8)
    asm.jump("jmp", following)
    asm.bind(of_break)
    asm.emit("mov", r10, Memory(r11, 8 * _OF_BREAK))
    _jump_unless_seen(asm, write)
    asm.jump("call", forget)
    asm.emit("mov", rdi, FACTOR)
    asm.jump("jmp", following)
    asm.bind(write)
    _emit_write(asm)
    asm.jump("jmp", following)
    asm.bind(end)
    _jump_unless_seen(asm, done)
    asm.jump("call", forget)
    asm.jump("jmp", done)
    asm.bind(look_up)
    _emit_look_up(asm)
    asm.bind(forget)
    emit_end(asm)
    asm.bind(done)


def _emit_write(asm: Assembler) -> None:
    """Write the code in r10, and the span from r9 to r14. Clobbers rax."""
    asm.emit("mov", Memory(r13), r10)
    asm.emit("add", r13, 8)
    asm.emit("mov", rax, Memory(rsp, 8 * ROW))
    asm.emit("mov", Memory(rax), r9)
    asm.emit("mov", Memory(rax, 8), r14)
    asm.emit("add", rax, 16)
    asm.emit("mov", Memory(rsp, 8 * ROW), rax)


def _jump_unless_seen(asm: Assembler, label: Label) -> None:
    """Set rsi to the numbers of counts by code; jump to the label where codes are not counted."""
    asm.emit("mov", rsi, Memory(r11, 8 * SEEN))
    asm.emit("test", rsi, rsi)
    asm.jump("jz", label)


def _emit_word(asm: Assembler, width: Width, look_up: Label, following: Label) -> None:
    """Set r10 to the code of the word whose first letter is in eax; or jump to the next character.
    """
    letter, more, ended, taken = map(asm.label, ("letter", "more", "end of word", "taken"))
    for register in (rcx, rdx, r8):
        asm.emit("xor", dword(register), dword(register))
    asm.bind(letter)
    asm.emit("shl", rcx, width.bits)
    asm.emit("or", rcx, rax)
    asm.emit("add", r8, 1)
    asm.emit("cmp", r8, width.chunk)
    asm.jump("jne", more)
    asm.jump("call", look_up)
    asm.emit("xor", dword(rcx), dword(rcx))
    asm.emit("xor", dword(r8), dword(r8))
    asm.bind(more)
    _emit_class(asm, width, ended)
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


def _emit_class(asm: Assembler, width: Width, end: Label) -> None:
    """Set eax to the class of the next character; jump to `end` behind the last."""
    asm.emit("cmp", r14, r15)
    asm.jump("jae", end)
    if width == ASCII:
        asm.emit("movzx", dword(rax), Memory(rbp, 0, r14))
        asm.emit("movzx", dword(rax), Memory(rbx, 0, rax))
    else:
        asm.emit("mov", dword(rax), Memory(rbp, 0, r14, 4))
        asm.emit("mov", dword(rax), Memory(rbx, 0, rax, 4))


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
