"""A native walk through a trie of sequences of symbols: which known sequences begin at each place.

    walk(symbols, reach, least, table) -> [[place, sequence], ...]

    each place    state = the root
                  each of its next symbols    state = table[state, symbol], or the next place
                                              from `least` symbols on, a sequence that ends here
                                              is found

The table is a hash table of int64 pairs, a key and its value; a row with the key -1 is free. A step
takes about 2 ns where the table lies in L1.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
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
)
from sparsejit.x86.routines import pop, push

Array = npt.NDArray[Any]

_SAVED = (rbx, rbp, r12, r13, r14, r15)
FACTOR = 0x9E37_79B9_7F4A_7C15  # 2**64 / golden ratio, odd (Knuth, 6.4)
_HALF = 32  # bits of a state, a symbol, and the number of a sequence
_FREE = -1
_ROW_BYTES = 16
# The arguments, as int64 in an array; the function writes the number of the sequences found.
_SYMBOLS, _REACH, _LEAST, _PLACES, _TABLE, _MASK, _FOUND, _COUNT = range(8)


class TrieTable:
    """The hash table of a trie, as native code reads it.

    `keys` are state << 32 | symbol, all different; `states` are what follows, and `sequences` the
    number of the sequence that ends there, or -1. The root is state 0; states, symbols and
    sequences are below 2**31.
    """

    def __init__(self, keys: Array, states: Array, sequences: Array) -> None:
        slots = 1 << max(4, int(2 * len(keys)).bit_length())
        self._mask = slots - 1
        keys = keys.astype(np.int64)
        with np.errstate(over="ignore"):
            hashes = keys.view(np.uint64) * np.uint64(FACTOR) >> np.uint64(_HALF)
        places = ascending_places(hashes.astype(np.int64) & self._mask)
        self._rows = np.zeros((max(slots, int(places.max(initial=0)) + 1) + 1, 2), np.int64)
        self._rows[:, 0] = _FREE
        self._rows[places, 0] = keys
        self._rows[places, 1] = states.astype(np.int64) << _HALF | sequences.astype(np.int64) + 1

    def walk(self, symbols: Array, reach: Array, least: Array) -> Array:
        """The known sequences of symbols, int64 (found, 2): the place of the first, and its number.

        `symbols` are int64, negative where no sequence has them; `reach` is the number of symbols
        from each place on that a sequence may have; shorter ones than its `least` are left out.
        """
        given = [np.ascontiguousarray(each, np.int64) for each in (symbols, reach, least)]
        if {each.shape for each in given} != {(len(symbols),)}:
            raise ValueError("symbols, reach and least have different shapes")
        most = int(np.maximum(given[1] - np.maximum(given[2], 1) + 1, 0).sum())
        found = np.empty((most, 2), np.int64)
        addresses = [each.ctypes.data for each in given]
        arguments = np.array(
            [*addresses, len(symbols), self._rows.ctypes.data, self._mask, found.ctypes.data, 0],
            np.int64,
        )
        _native()(arguments.ctypes.data)
        return found[: arguments[_COUNT]]


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
def _native() -> Callable[[int], None]:
    asm = Assembler(Target.detect())
    _emit(asm)
    return ExecutableMemory(asm.finish().data).function(1)


def _emit(asm: Assembler) -> None:
    """Append the walk. rdi: the arguments.

    Registers: r8, r9, r10: symbols, reach and least of a place; r11: the table; r12: its mask; r13:
    the next pair of results; r14: the factor; r15: the place; rbx: places left; rdx: the state;
    rsi: symbols taken; rcx: the reach; rbp: the least.
    """
    place, step, next_place, end = map(asm.label, ("place", "step", "next", "end"))
    push(asm, (*_SAVED, rdi))
    for register, number in (
        *((r8, _SYMBOLS), (r9, _REACH), (r10, _LEAST), (rbx, _PLACES)),
        *((r11, _TABLE), (r12, _MASK), (r13, _FOUND)),
    ):
        asm.emit("mov", register, Memory(rdi, 8 * number))
    asm.emit("mov", r14, FACTOR)
    asm.emit("xor", dword(r15), dword(r15))
    asm.emit("test", rbx, rbx)
    asm.jump("jz", end)
    asm.bind(place)
    asm.emit("mov", rcx, Memory(r9))
    asm.emit("mov", rbp, Memory(r10))
    asm.emit("xor", dword(rdx), dword(rdx))
    asm.emit("xor", dword(rsi), dword(rsi))
    asm.emit("test", rcx, rcx)
    asm.jump("jle", next_place)
    asm.bind(step)
    _emit_step(asm, next_place)
    asm.emit("cmp", rsi, rcx)
    asm.jump("jl", step)
    asm.bind(next_place)
    for register in (r8, r9, r10):
        asm.emit("add", register, 8)
    asm.emit("add", r15, 1)
    asm.emit("sub", rbx, 1)
    asm.jump("jnz", place)
    asm.bind(end)
    asm.emit("pop", rdi)
    asm.emit("sub", r13, Memory(rdi, 8 * _FOUND))
    asm.emit("shr", r13, 4)
    asm.emit("mov", Memory(rdi, 8 * _COUNT), r13)
    pop(asm, _SAVED)
    asm.emit("ret")


def _emit_step(asm: Assembler, next_place: Label) -> None:
    """Append the step to the next state, or a jump to the next place where there is none."""
    probe, known, behind = map(asm.label, ("probe", "known", "behind"))
    asm.emit("mov", rdi, Memory(r8, 0, rsi, 8))
    asm.emit("test", rdi, rdi)
    asm.jump("js", next_place)
    asm.emit("mov", rax, rdx)
    asm.emit("shl", rax, _HALF)
    asm.emit("or", rax, rdi)
    asm.emit("mov", rdi, rax)
    asm.emit("imul", rdi, r14)
    asm.emit("shr", rdi, _HALF)
    asm.emit("and", rdi, r12)
    asm.emit("shl", rdi, _ROW_BYTES.bit_length() - 1)
    asm.emit("add", rdi, r11)
    asm.bind(probe)
    asm.emit("mov", rdx, Memory(rdi))
    asm.emit("cmp", rdx, rax)
    asm.jump("je", known)
    asm.emit("test", rdx, rdx)
    asm.jump("js", next_place)
    asm.emit("add", rdi, _ROW_BYTES)
    asm.jump("jmp", probe)
    asm.bind(known)
    asm.emit("mov", rax, Memory(rdi, 8))
    asm.emit("mov", rdx, rax)
    asm.emit("shr", rdx, _HALF)
    asm.emit("add", rsi, 1)
    asm.emit("cmp", rsi, rbp)
    asm.jump("jl", behind)
    asm.emit("mov", dword(rax), dword(rax))
    asm.emit("sub", rax, 1)
    asm.jump("js", behind)
    asm.emit("mov", Memory(r13), r15)
    asm.emit("mov", Memory(r13, 8), rax)
    asm.emit("add", r13, _ROW_BYTES)
    asm.bind(behind)
