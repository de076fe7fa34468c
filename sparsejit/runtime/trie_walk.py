"""Native walks over symbols of texts: which sequences of them a text has, counted.

    walk(arguments) -> number of results

    each place    state = the root, or an empty hash
                  each of its next symbols, `most` at most, without gaps
                      state = table[state, symbol], or the next place
                                            from `least` symbols on, the sequence that ends here,
                                            if there is one, is counted
    a break       the end of the counts of a text

Sequences are in a trie, whose hash table has int64 pairs, a key and its value; a row with the key
-1 is free. A step takes about 2 ns where the table lies in L1. Or they are hashed: the code is the
remainder of the 32 bits of MurmurHash3, with seed 0, of the sequence in UTF-8, whose symbols are
characters, or words with spaces between (Appleby, SMHasher, 2011; public domain).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.runtime.token_counts import (
    ARGUMENTS,
    FIRST,
    FRAME,
    ROW,
    SEEN,
    Summing,
    TokenSums,
    emit_begin,
    emit_count,
    emit_end,
    emit_key,
)
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
)
from sparsejit.x86.routines import pop, push

Array = npt.NDArray[Any]

GAP, OF_BREAK = -1, -2  # symbols between others, which are in no sequence, and between texts
_SAVED = (rbx, rbp, r12, r13, r14, r15)
FACTOR = 0x9E37_79B9_7F4A_7C15  # 2**64 / golden ratio, odd (Knuth, 6.4)
_HALF = 32  # bits of a state, a symbol, and the number of a sequence
_FREE = -1
_ROW_BYTES = 16
# Further arguments, as int64 in an array; the function writes how many codes it found, or -1 for
# a character that UTF-8 does not have.
_SYMBOLS, _END, _RESULT, _SUMS, _LEAST, _MOST, _SHORT, _FOUND = range(ARGUMENTS, ARGUMENTS + 8)
_TABLE, _MASK = range(ARGUMENTS + 8, ARGUMENTS + 10)
_POINTS, _SPANS, _COLUMNS = range(ARGUMENTS + 8, ARGUMENTS + 11)
_ALL = ARGUMENTS + 11
_WORD = 0xFFFF_FFFF
_FACTORS, _ROTATIONS = (0xCC9E_2D51, 0x1B87_3593), (15, 13)
_ADDED = 0xE654_6B64
_LAST_STEPS = ((16, 0x85EB_CA6B), (13, 0xC2B2_AE35), (16, 1))


class Symbols(NamedTuple):
    """Symbols of texts, int64; words as spans (n, 2) int64 of `points`, uint32 characters."""

    numbers: Array
    points: Array | None = None
    spans: Array | None = None


class Reach(NamedTuple):
    """Numbers of symbols of a sequence; with `takes_short` shorter ones between gaps are taken."""

    least: int
    most: int
    takes_short: bool = False


class GramTable:
    """Sequences of symbols, each with a code below `codes`, as native code counts them."""

    def __init__(self, kind: str, reach: Reach, codes: int) -> None:
        self._kind, self._reach, self._lock = kind, reach, threading.Lock()
        self._seen = np.zeros(codes, np.int32)
        arguments = np.zeros(_ALL, np.int64)
        arguments[_LEAST : _SHORT + 1] = 8 * reach.least, 8 * reach.most, reach.takes_short
        self._arguments = [arguments, arguments.copy()]
        self._arguments[True][SEEN] = self._seen.ctypes.data

    def _set(self, arguments: dict[int, int]) -> None:
        for each in self._arguments:
            each[[*arguments]] = [*arguments.values()]

    def keys(self, symbols: Symbols) -> Array:
        """The key of each sequence, in the order of the symbols: text << KEY_BITS | code.

        Raises UnicodeError for characters that UTF-8 does not have.
        """
        return self._run(self._arguments[False], symbols)

    def counts(self, symbols: Symbols) -> Array:
        """Each code once for each text, packed with its count.

        There are at most MOST_TEXTS texts, each with less than 2**COUNT_BITS sequences, or BIAS if
        signed. Raises as `keys`.
        """
        return self._run(self._arguments[True], symbols)

    def sums(self, terms: TokenSums) -> Callable[[Symbols], Array]:
        """A function of symbols that returns the sums of each of their texts, (texts, outputs).

        No text has more sequences than for `counts`. The function raises as `keys`.
        """
        summing = Summing(self._arguments[True], terms)

        def summed(symbols: Symbols) -> Array:
            breaks = int(np.count_nonzero(symbols.numbers == OF_BREAK))
            found = summing.new(1 + breaks)
            self._run(summing.arguments, symbols, found)
            return summing.result(found)

        return summed

    def _run(self, arguments: Array, symbols: Symbols, sums: Array | None = None) -> Array:
        own, (numbers, points, spans) = arguments.copy(), symbols
        found = np.empty(len(numbers) * (self._reach.most - self._reach.least + 1), np.int64)
        begin = numbers.ctypes.data
        own[_SYMBOLS : _SUMS + 1] = (
            *(begin, begin + 8 * len(numbers), found.ctypes.data),
            0 if sums is None else sums.ctypes.data,
        )
        if points is not None and spans is not None:
            own[_POINTS : _SPANS + 1] = points.ctypes.data, spans.ctypes.data
        kind = f"{self._kind} of words" if spans is not None else self._kind
        with self._lock:
            _native(kind)(own.ctypes.data)
        count = int(own[_FOUND])
        if count < 0:
            raise UnicodeError("surrogates not allowed")
        return found[:count]


class TrieTable(GramTable):
    """The sequences of a trie.

    `keys` are state << 32 | symbol, all different; `states` are what follows, and `sequences` the
    number of the sequence that ends there, or -1. The root is state 0; states, symbols and
    sequences are below 2**31.
    """

    def __init__(self, keys: Array, states: Array, sequences: Array, reach: Reach) -> None:
        super().__init__("trie", reach, int(sequences.max(initial=0)) + 1)
        slots = 1 << max(4, int(2 * len(keys)).bit_length())
        keys = keys.astype(np.int64)
        with np.errstate(over="ignore"):
            hashes = keys.view(np.uint64) * np.uint64(FACTOR) >> np.uint64(_HALF)
        places = ascending_places(hashes.astype(np.int64) & slots - 1)
        self._rows = np.zeros((max(slots, int(places.max(initial=0)) + 1) + 1, 2), np.int64)
        self._rows[:, 0] = _FREE
        self._rows[places, 0] = keys
        self._rows[places, 1] = states.astype(np.int64) << _HALF | sequences.astype(np.int64) + 1
        self._set({_TABLE: self._rows.ctypes.data, _MASK: slots - 1})


class HashTable(GramTable):
    """All sequences, by hashes that are reduced to `columns`.

    With `is_signed` a hash below 0 is a step of -1, and a key has twice the column, and 1 for -1.
    """

    def __init__(self, columns: int, is_signed: bool, reach: Reach) -> None:
        super().__init__("signed hash" if is_signed else "hash", reach, columns)
        self._set({_COLUMNS: columns})


def ascending_places(hashes: Array) -> Array:
    """A row of a hash table for each key: the first that is free from its hash on.

    Keys are placed in the order of their hashes, so rows ascend: each is above the one before.
    """
    order = np.argsort(hashes, kind="stable")
    steps = np.arange(len(hashes))
    places = np.empty(len(hashes), np.int64)
    places[order] = np.maximum.accumulate(hashes[order] - steps) + steps
    return places


@cache
def _native(kind: str) -> Callable[[int], None]:
    asm = Assembler(Target.detect())
    _emit(asm, _Kind(kind.startswith("trie"), "signed" in kind, kind.endswith("words")))
    return ExecutableMemory(asm.finish().data).function(1, keeps_lock=True)


class _Kind(NamedTuple):
    is_trie: bool
    is_signed: bool
    of_words: bool

    @property
    def step(self) -> Register | int:
        """The step of a count."""
        return rdi if self.is_signed else 1


class _WalkLabels(NamedTuple):
    place: Label
    next: Label
    forget: Label
    failed: Label
    feed: Label


def _emit(asm: Assembler, kind: _Kind) -> None:
    """Append the walk. rdi: the arguments.

    Registers: r11: the arguments; r15: the place; r8: the next symbol; rbx: the end; r13: the next
    result. With a trie, r12: the table; r14: its mask; rdx: the state; rbp: 0, or the number of the
    last sequence and 1. With a hash, rbp: its state; r14: the bytes behind the last four; r9: how
    many bytes there were.
    """
    names = ("place", "next", "forget", "failed", "feed")
    labels = _WalkLabels(*map(asm.label, names))
    end, negative = asm.label("end"), asm.label("negative")
    push(asm, _SAVED)
    asm.emit("sub", rsp, FRAME)
    asm.emit("mov", r11, rdi)
    for register, number in ((r15, _SYMBOLS), (rbx, _END), (r13, _RESULT), (rax, _SUMS)):
        asm.emit("mov", register, Memory(r11, 8 * number))
    asm.emit("mov", Memory(rsp, 8 * ROW), rax)
    emit_begin(asm)
    if kind.is_trie:
        asm.emit("mov", r12, Memory(r11, 8 * _TABLE))
        asm.emit("mov", r14, Memory(r11, 8 * _MASK))
    asm.bind(labels.place)
    asm.emit("cmp", r15, rbx)
    asm.jump("jae", end)
    asm.emit("mov", rax, Memory(r15))
    asm.emit("test", rax, rax)
    asm.jump("js", negative)
    _emit_place(asm, kind, labels)
    asm.bind(labels.next)
    asm.emit("add", r15, 8)
    asm.jump("jmp", labels.place)
    asm.bind(negative)
    asm.emit("cmp", rax, OF_BREAK)
    asm.jump("jne", labels.next)
    asm.emit("mov", rsi, Memory(r11, 8 * SEEN))
    asm.jump("call", labels.forget)
    asm.jump("jmp", labels.next)
    asm.bind(end)
    asm.emit("mov", rsi, Memory(r11, 8 * SEEN))
    asm.jump("call", labels.forget)
    _emit_return(asm, labels.failed, labels.forget)
    asm.bind(labels.forget)
    emit_end(asm)
    asm.bind(labels.feed)
    if not kind.is_trie:
        _emit_feed(asm)


def _emit_return(asm: Assembler, failed: Label, forget: Label) -> None:
    """Write the number of results; in place of it -1, from `failed` on."""
    done = asm.label("done")
    # Sums leave no results behind.
    asm.emit("sub", r13, Memory(rsp, 8 * FIRST))
    asm.emit("shr", r13, 3)
    asm.bind(done)
    asm.emit("mov", Memory(r11, 8 * _FOUND), r13)
    asm.emit("add", rsp, FRAME)
    pop(asm, _SAVED)
    asm.emit("ret")
    asm.bind(failed)
    asm.emit("mov", rsi, Memory(r11, 8 * SEEN))
    asm.jump("call", forget)
    asm.emit("mov", r13, -1)
    asm.jump("jmp", done)


def _emit_place(asm: Assembler, kind: _Kind, labels: _WalkLabels) -> None:
    """Append the walk from a place on, up to the jump to the next one."""
    step, run_ends, behind, next_place = map(asm.label, ("step", "run ends", "behind", "on"))
    begin: Sequence[Register] = (rdx, rbp) if kind.is_trie else (rbp, r14, r9)
    for register in begin:
        asm.emit("xor", dword(register), dword(register))
    asm.emit("mov", r8, r15)
    asm.bind(step)
    asm.emit("cmp", r8, rbx)
    asm.jump("jae", run_ends)
    asm.emit("mov", rax, Memory(r8))
    asm.emit("test", rax, rax)
    asm.jump("js", run_ends)
    if kind.is_trie:
        _emit_step(asm, next_place)
    else:
        _emit_symbol(asm, kind, labels)
    asm.emit("add", r8, 8)
    asm.emit("mov", rax, r8)
    asm.emit("sub", rax, r15)
    asm.emit("cmp", rax, Memory(r11, 8 * _LEAST))
    asm.jump("jb", behind)
    _emit_sequence(asm, kind, behind)
    asm.bind(behind)
    asm.emit("mov", rax, r8)
    asm.emit("sub", rax, r15)
    asm.emit("cmp", rax, Memory(r11, 8 * _MOST))
    asm.jump("jb", step)
    asm.jump("jmp", next_place)
    asm.bind(run_ends)
    _emit_short(asm, kind, next_place)
    asm.bind(next_place)


def _emit_short(asm: Assembler, kind: _Kind, next_place: Label) -> None:
    """Count the sequence at the end of a run where it is all of a run that is shorter than least.
    """
    is_first = asm.label("is first")
    asm.emit("mov", rax, Memory(r11, 8 * _SHORT))
    asm.emit("test", rax, rax)
    asm.jump("jz", next_place)
    asm.emit("mov", rax, r8)
    asm.emit("sub", rax, r15)
    asm.emit("cmp", rax, Memory(r11, 8 * _LEAST))
    asm.jump("jae", next_place)
    asm.emit("cmp", r15, Memory(r11, 8 * _SYMBOLS))
    asm.jump("je", is_first)
    asm.emit("mov", rax, Memory(r15, -8))
    asm.emit("test", rax, rax)
    asm.jump("jns", next_place)
    asm.bind(is_first)
    _emit_sequence(asm, kind, next_place)


def _emit_step(asm: Assembler, next_place: Label) -> None:
    """Append the step of rdx and rbp by the symbol in rax, or a jump to the next place."""
    probe, known = asm.label("probe"), asm.label("known")
    asm.emit("shl", rdx, _HALF)
    asm.emit("or", rax, rdx)
    asm.emit("mov", rsi, FACTOR)
    asm.emit("mov", rdi, rax)
    asm.emit("imul", rdi, rsi)
    asm.emit("shr", rdi, _HALF)
    asm.emit("and", rdi, r14)
    asm.emit("shl", rdi, _ROW_BYTES.bit_length() - 1)
    asm.emit("add", rdi, r12)
    asm.bind(probe)
    asm.emit("mov", rdx, Memory(rdi))
    asm.emit("cmp", rdx, rax)
    asm.jump("je", known)
    asm.emit("test", rdx, rdx)
    asm.jump("js", next_place)
    asm.emit("add", rdi, _ROW_BYTES)
    asm.jump("jmp", probe)
    asm.bind(known)
    asm.emit("mov", rdx, Memory(rdi, 8))
    asm.emit("mov", dword(rbp), dword(rdx))
    asm.emit("shr", rdx, _HALF)


def _emit_sequence(asm: Assembler, kind: _Kind, behind: Label) -> None:
    """Count the sequence, and go on behind it. Keeps the state and r8."""
    following, write, keyed = map(asm.label, ("following", "write", "keyed"))
    if kind.is_trie:
        asm.emit("mov", dword(r10), dword(rbp))
        asm.emit("sub", r10, 1)
        asm.jump("js", behind)
        asm.emit("mov", r9, rdx)
    else:
        _emit_hash(asm, kind)
    asm.emit("mov", rsi, Memory(r11, 8 * SEEN))
    asm.emit("test", rsi, rsi)
    asm.jump("jz", keyed)
    emit_count(asm, following, kind.step)
    asm.bind(write)
    asm.emit("mov", Memory(r13), r10)
    asm.emit("add", r13, 8)
    asm.jump("jmp", following)
    asm.bind(keyed)
    if kind.is_signed:
        asm.emit("shr", rdi, 63)
        asm.emit("add", r10, r10)
        asm.emit("or", r10, rdi)
    emit_key(asm)
    asm.jump("jmp", write)
    asm.bind(following)
    if kind.is_trie:
        asm.emit("mov", rdx, r9)


def _emit_symbol(asm: Assembler, kind: _Kind, labels: _WalkLabels) -> None:
    """Append the symbol at r8, which is in rax, to the hash. Clobbers rax, rcx, rdx, rsi, rdi, r10.
    """
    if not kind.of_words:
        _emit_point(asm, labels)
        return
    first, more, done = map(asm.label, ("first", "more", "done"))
    asm.emit("cmp", r8, r15)
    asm.jump("je", first)
    asm.emit("mov", dword(rax), ord(" "))
    asm.jump("call", labels.feed)
    asm.bind(first)
    asm.emit("mov", rsi, r8)
    asm.emit("sub", rsi, Memory(r11, 8 * _SYMBOLS))
    asm.emit("add", rsi, rsi)
    asm.emit("add", rsi, Memory(r11, 8 * _SPANS))
    asm.emit("mov", rdi, Memory(rsi, 8))
    asm.emit("mov", rsi, Memory(rsi))
    asm.emit("mov", rdx, Memory(r11, 8 * _POINTS))
    for register in (rsi, rdi):
        asm.emit("shl", register, 2)
        asm.emit("add", register, rdx)
    asm.bind(more)
    asm.emit("cmp", rsi, rdi)
    asm.jump("jae", done)
    asm.emit("mov", dword(rax), Memory(rsi))
    asm.emit("add", rsi, 4)
    _emit_point(asm, labels)
    asm.jump("jmp", more)
    asm.bind(done)


def _emit_point(asm: Assembler, labels: _WalkLabels) -> None:
    """Append a character, in eax, as UTF-8, to the hash. Clobbers rax, rcx, rdx, r10."""
    plain, two, three, done = map(asm.label, ("plain", "two", "three", "done"))
    asm.emit("cmp", dword(rax), 0x80)
    asm.jump("jb", plain)
    asm.emit("mov", dword(r10), dword(rax))
    asm.emit("cmp", dword(rax), 0x800)
    asm.jump("jb", two)
    asm.emit("cmp", dword(rax), 0x1_0000)
    asm.jump("jb", three)
    _emit_bits(asm, labels, 18, 0xF0)
    _emit_bits(asm, labels, 12, 0x80, 63)
    _emit_bits(asm, labels, 6, 0x80, 63)
    asm.jump("jmp", done)
    asm.bind(three)
    asm.emit("shr", dword(rax), 11)
    asm.emit("cmp", dword(rax), 0xD800 >> 11)
    asm.jump("je", labels.failed)
    _emit_bits(asm, labels, 12, 0xE0)
    _emit_bits(asm, labels, 6, 0x80, 63)
    asm.jump("jmp", done)
    asm.bind(two)
    _emit_bits(asm, labels, 6, 0xC0)
    asm.bind(done)
    asm.emit("mov", dword(rax), dword(r10))
    asm.emit("and", dword(rax), 63)
    asm.emit("or", dword(rax), 0x80)
    asm.bind(plain)
    asm.jump("call", labels.feed)


def _emit_bits(
    asm: Assembler, labels: _WalkLabels, shift: int, mark: int, mask: int = _WORD >> 8
) -> None:
    """Append a byte of a character, in r10, to the hash: some bits of it, with a mark."""
    asm.emit("mov", dword(rax), dword(r10))
    asm.emit("shr", dword(rax), shift)
    asm.emit("and", dword(rax), mask)
    asm.emit("or", dword(rax), mark)
    asm.jump("call", labels.feed)


def _emit_feed(asm: Assembler) -> None:
    """Append the routine that appends the byte in eax to the hash. Clobbers rax, rcx."""
    done = asm.label("part of four")
    asm.emit("mov", dword(rcx), dword(r9))
    asm.emit("shl", dword(rcx), 3)
    asm.emit("shlx", dword(rax), dword(rax), dword(rcx))  # modulo 32
    asm.emit("or", dword(r14), dword(rax))
    asm.emit("add", r9, 1)
    asm.emit("test", dword(r9), 3)
    asm.jump("jnz", done)
    _emit_mixed(asm, r14)
    asm.emit("xor", dword(rbp), dword(r14))
    asm.emit("rol", dword(rbp), _ROTATIONS[1])
    asm.emit("lea", dword(rbp), Memory(rbp, _signed(_ADDED), rbp, 4))
    asm.emit("xor", dword(r14), dword(r14))
    asm.bind(done)
    asm.emit("ret")


def _emit_mixed(asm: Assembler, register: Register) -> None:
    """Multiply the four bytes in a register, twice, and rotate them."""
    asm.emit("imul", dword(register), dword(register), _signed(_FACTORS[0]))
    asm.emit("rol", dword(register), _ROTATIONS[0])
    asm.emit("imul", dword(register), dword(register), _signed(_FACTORS[1]))


def _emit_hash(asm: Assembler, kind: _Kind) -> None:
    """Set r10 to the code, and rdi to the step. Clobbers rax, rcx, rdx."""
    asm.emit("mov", dword(rcx), dword(r14))  # 0 without bytes behind the last four
    _emit_mixed(asm, rcx)
    asm.emit("mov", dword(rax), dword(rbp))
    asm.emit("xor", dword(rax), dword(rcx))
    asm.emit("xor", dword(rax), dword(r9))
    for shift, factor in _LAST_STEPS:
        asm.emit("mov", dword(rcx), dword(rax))
        asm.emit("shr", dword(rcx), shift)
        asm.emit("xor", dword(rax), dword(rcx))
        if factor != 1:
            asm.emit("imul", dword(rax), dword(rax), _signed(factor))
    asm.emit("mov", dword(rcx), dword(rax))
    asm.emit("sar", dword(rcx), 31)
    asm.emit("xor", dword(rax), dword(rcx))
    asm.emit("sub", dword(rax), dword(rcx))
    asm.emit("xor", dword(rdx), dword(rdx))
    asm.emit("mov", dword(r10), Memory(r11, 8 * _COLUMNS))
    asm.emit("div", dword(r10))
    asm.emit("mov", dword(r10), dword(rdx))
    if kind.is_signed:
        asm.emit("movsxd", rdi, dword(rcx))
        asm.emit("lea", rdi, Memory(rdi, 1, rdi))


def _signed(number: int) -> int:
    return number - (number >> 31 << 32)
