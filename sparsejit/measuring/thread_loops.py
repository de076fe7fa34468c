"""Measure the costs of working with another core: a barrier, and bytes that the other core wrote.

    barrier    two parts of additions at once, and one of them alone
    crossing   two parts that each read and write a block: always its own, and both in turn

The two loops of a pair take turns, so that a change of clock affects both; virtual cores move in
their host within milliseconds, nearer or farther apart, so there are many turns.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.machine.target import Target
from sparsejit.measuring.core_loops import function_of, least_ns
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.runtime.native_timing import duration_ns, native_loop, pinned
from sparsejit.runtime.workers import NativePart, pool
from sparsejit.whole_numbers import round_up
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import Memory, rax, rcx, ymm

# A part of about two microseconds, all in registers: cores cannot disturb each other.
_CHAIN = 8192
_BLOCK = 64 << 10  # bytes; two of them fit L2
_CALLS, _TURNS, _TRIES = 16, 400, 3
# Longest barrier, as a share of a part: where it takes longer, the other core had other work.
_MOST_BARRIER = 0.5
_VECTORS = 16
_Emit = Callable[[Assembler], None]


def barrier_ns(target: Target, threads: int = 2) -> float:
    """Nanoseconds that a call of equal parts on `threads` cores takes beyond one part alone."""
    one, many = _function(target, [_chain]), _function(target, [_chain] * threads)
    return statistics.median(_differences([one.address], [many.address]))


def sharing(target: Target) -> tuple[float, float] | None:
    """Nanoseconds of a barrier, and bytes a nanosecond that cross; None if no core was free."""
    most = _MOST_BARRIER * least_ns(target, _chain)
    for _ in range(_TRIES):
        before, crossing, behind = barrier_ns(target), _crossing_bytes(target), barrier_ns(target)
        if min(before, behind) > 0 and max(before, behind) < most:
            return max(before, behind), crossing
    return None


def _crossing_bytes(target: Target) -> float:
    """Bytes a nanosecond at which a core fetches a block that the other core wrote last."""
    blocks = np.zeros(2 * _BLOCK + 64, np.uint8)
    start = round_up(blocks.ctypes.data, 64)
    first, second = (partial(_touch, start=start + at) for at in (0, _BLOCK))
    own, swapped = _function(target, [first, second]), _function(target, [second, first])
    in_turn = _differences([own.address, own.address], [own.address, swapped.address])
    added = statistics.median(in_turn) / 2
    return _BLOCK / added if added > 0 else np.inf


def _differences(few: Sequence[int], more: Sequence[int]) -> list[float]:
    """Nanoseconds by which calling functions `more` takes longer than `few`, for each turn."""
    base, whole = (native_loop([(address, ()) for address in each]) for each in (few, more))
    with pinned():
        for loop in (base, whole):
            duration_ns(loop, _CALLS)
        return [
            (duration_ns(whole, _CALLS) - duration_ns(base, _CALLS)) / _CALLS for _ in range(_TURNS)
        ]


def _chain(asm: Assembler) -> None:
    asm.stamp(_CHAIN, [line("add", rax, rcx)])


def _touch(asm: Assembler, start: int) -> None:
    """Emit code that reads and writes the block of memory that begins at an address."""
    number = np.arange(_VECTORS)
    vectors = ymm(number), Memory(rax, 32 * number)
    asm.emit("mov", rax, start)
    with counted_down(asm, rcx, _BLOCK // (32 * _VECTORS)):
        asm.stamp(_VECTORS, [line("vmovups", *vectors), line("vmovups", *reversed(vectors))])
        asm.emit("add", rax, 32 * _VECTORS)
    asm.emit("vzeroupper")


def _function(target: Target, parts: Sequence[_Emit]) -> ExecutableMemory:
    """void f(), which runs all parts at once."""
    pool().require(len(parts) - 1)

    def body(asm: Assembler) -> None:
        natives = [NativePart(asm.label("part"), 0) for _ in parts]
        if len(parts) > 1:
            pool().emit_dispatcher(asm, natives, np.inf)
        for native, emit in zip(natives, parts, strict=True):
            asm.align(64)
            asm.bind(native.label)
            emit(asm)
            asm.emit("ret")

    return function_of(target, body)
