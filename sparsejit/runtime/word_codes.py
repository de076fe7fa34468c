"""A native reader of ASCII texts: runs of letters become the codes of the words that they are.

    read_words(text, arguments, result) -> number of results

    each run of characters that are not 0 in `classes`, by these
        each eight of them       state = table[state, the eight]
        the rest                 code = table[state, the rest]
                                 the code is written, or counted: count[seen[code]] += 1
    a character of class 1       the code of a break, or the end of the counts of a text

The table is exact: its keys are the characters themselves. A word of eight letters takes 10 ns
where the table lies in L1. Counts are packed into one number, text << 48 | code << 17 | count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

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

SEPARATOR, BREAK = 0, 1  # classes of characters that are in no word
_SAVED = (rbx, rbp, r12, r13, r14, r15)
_CHUNK, _ROW_BYTES = 8, 32
_FRAME = 40  # bytes of the stack, which is aligned to 16 bytes at calls
_HALF = 32
_NOWHERE = 1 << 31  # a state that no row has
# The arguments, as int64 in an array.
_CLASSES, _TABLE, _MASK, _LEAST, _UNKNOWN, _OF_BREAK, _SEEN = range(7)
# Bits of a packed count, which a text of less than 2**COUNT_BITS characters fits, and of a code.
COUNT_BITS, CODE_BITS = 17, 31
MOST_TEXTS = 1 << 15
# Places on the stack: the length of the text, the first result, the first of a text, the text.
_LENGTH, _FIRST, _OWN, _TEXT = range(4)


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
            np.array([*addresses, *rest, seen], np.int64) for seen in (0, self._seen.ctypes.data)
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
        count = native(text, self._arguments[counts], result)
        return result[:count]


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
def _reader() -> Callable[[str, Array, Array], int] | None:
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
    names = ("next", "letter", "more", "end of word", "take", "write", "of break", "look up")
    following, letter, more, ended, take, write, of_break, look_up = map(asm.label, names)
    forget, end, done = map(asm.label, ("forget", "end", "done"))
    asm.bind(following)
    _emit_class(asm, end)
    asm.emit("mov", r9, r14)
    asm.emit("add", r14, 1)
    asm.emit("cmp", dword(rax), BREAK)
    asm.jump("jb", following)
    asm.jump("je", of_break)
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
    asm.jump("jz", take)
    asm.jump("call", look_up)
    asm.bind(take)
    asm.emit("mov", rsi, Memory(r11, 8 * _SEEN))
    asm.emit("test", rsi, rsi)
    asm.jump("jz", write)
    _emit_count(asm, write, following)
    asm.bind(write)
    asm.emit("mov", Memory(r13), r10)
    asm.emit("add", r13, 8)
    asm.jump("jmp", following)
    asm.bind(of_break)
    asm.emit("mov", r10, Memory(r11, 8 * _OF_BREAK))
    asm.emit("mov", rsi, Memory(r11, 8 * _SEEN))
    asm.emit("test", rsi, rsi)
    asm.jump("jz", write)
    asm.jump("call", forget)
    asm.jump("jmp", following)
    asm.bind(end)
    asm.emit("mov", rsi, Memory(r11, 8 * _SEEN))
    asm.emit("test", rsi, rsi)
    asm.jump("jz", done)
    asm.jump("call", forget)
    asm.jump("jmp", done)
    asm.bind(look_up)
    _emit_look_up(asm)
    asm.bind(forget)
    _emit_forget(asm)
    asm.bind(done)


def _emit_count(asm: Assembler, write: Label, following: Label) -> None:
    """Count the code in r10, or pack it for `write` where the text has it for the first time.

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
    """Append the routine at the end of a text: no code is seen. Clobbers rax, rcx, rdx."""
    again, end = asm.label("again"), asm.label("end")
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
    asm.emit("ret")


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
