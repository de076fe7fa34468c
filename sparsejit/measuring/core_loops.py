"""Short loops of machine code that measure a core's clock, caches and decoders."""

from collections.abc import Callable, Sequence

import numpy as np

from sparsejit.asm_templates.shared.loops import counted_down, repeat
from sparsejit.asm_templates.shared.padding import (
    CACHE_LINE_BYTES,
    DENSE,
    PADDED,
    StridePadding,
    stride_padding,
)
from sparsejit.machine.target import Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.runtime.native_timing import time_native
from sparsejit.whole_numbers import round_up
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import Memory, Relative, r8, rax, rcx, rdi, ymm, zmm
from sparsejit.x86.placement import Placement

CHAIN_CYCLES = 4096
_LOADS = 16
# As in kernels: number of instructions between jumps, and placement of code within a page.
_REDIRECTED = 48
_PLACED = Placement(32 << 10, 1024)
_XOR_BYTES = 5


def cycles_per_ns(target: Target) -> float:
    """The core's clock in GHz, now."""
    return CHAIN_CYCLES / least_ns(target, dependent_additions)


def dependent_additions(asm: Assembler) -> None:
    """Append `CHAIN_CYCLES` additions; each takes one cycle and waits for the one before."""
    asm.stamp(CHAIN_CYCLES, [line("add", rax, rcx)])


def padded_l2_bandwidth(target: Target, places: int = 1, spaced: bool = False) -> float:
    """Bytes a nanosecond from L2, where data lies as kernels' literals do on this target.

    If `spaced`, with the lines left out that literals have where a core gains by it.
    """
    size = target.l2_bytes // 4
    space = PADDED if spaced else stride_padding(size, target)
    return load_bandwidth(target, size, places=places, space=space)


def load_bandwidth(
    target: Target, size: int, passes: int = 1, places: int = 1, space: StridePadding = DENSE
) -> float:
    """Bytes a nanosecond when `size` bytes are read over and over, in the fastest buffer.

    `places` is the number of buffers, `passes` the number of passes in each call, `space` the
    stride padding of the vectors.
    """
    register = zmm if target.isa == "avx512" else ymm
    # One run of lines a trip: with four runs (1 KB) a trip, padded lines come at 44 bytes a cycle.
    loads = _LOADS if space == DENSE else space.run
    offsets = space.place(np.arange(loads)) * target.vector_bytes
    step, trips = space.room(loads) * target.vector_bytes, size // (loads * target.vector_bytes)

    def one_pass(asm: Assembler) -> None:
        asm.emit("mov", rax, rdi)
        with counted_down(asm, rcx, trips):
            asm.stamp(loads, [line("vmovups", register(np.arange(loads)), Memory(rax, offsets))])
            asm.emit("add", rax, step)

    def body(asm: Assembler) -> None:
        repeat(asm, passes, r8, lambda: one_pass(asm))

    elapsed = least_ns_reading(target, body, trips * step, places)
    return trips * loads * target.vector_bytes * passes / elapsed


def code_bandwidth(
    target: Target, size: int, redirects: bool = False, placed: bool = False
) -> float:
    """Bytes a nanosecond of straight-line code of independent five-byte instructions.

    With `redirects`, jumps to the next instruction lie among them; if `placed`, the code lies as in
    a kernel that shall stay decoded.
    """

    def body(asm: Assembler) -> None:
        count = size // _XOR_BYTES
        now = (np.arange(count) % _REDIRECTED == 0) & redirects
        with asm.placed(_PLACED if placed else None):
            asm.stamp(
                count,
                [
                    line("jmp", Relative("next"), when=now),
                    line("vxorps", ymm(np.arange(count) % 8), ymm(8), ymm(9)),
                ],
            )

    return size / least_ns(target, body)


def shared_way(target: Target, code_rate: float, data_rate: float) -> float:
    """Share, 0 to 1, in which code and data that are read from L2 wait for each other.

    0: together they take as long as the slower alone; 1: as long as one after the other. Rates are
    in bytes a nanosecond. As in kernels, 20 bytes of code come with a vector of data.
    """
    register = zmm if target.isa == "avx512" else ymm
    count = target.l2_bytes // 3 // (target.vector_bytes + 4 * _XOR_BYTES)
    number = np.arange(count)
    offsets = number * target.vector_bytes
    xor = [line("vxorps", ymm(number % 8), ymm(8), ymm(9)) for _ in range(2)]

    def body(asm: Assembler) -> None:
        asm.stamp(count, [line("vmovups", register(number % 8), Memory(rdi, offsets)), *xor])

    both = least_ns_reading(target, body, count * target.vector_bytes, 1)
    code = 4 * _XOR_BYTES * count / code_rate
    data = target.vector_bytes * count / data_rate
    return float(np.clip((both - max(code, data)) / min(code, data), 0.0, 1.0))


def least_ns_reading(
    target: Target, body: Callable[[Assembler], None], size: int, places: int
) -> float:
    """The shortest time of a function that reads a buffer of `size` bytes, of `places` buffers.

    It gets the buffer's address, aligned to a cache line.
    """
    buffers = [np.ones(size + CACHE_LINE_BYTES, np.uint8) for _ in range(places)]
    starts = [round_up(buffer.ctypes.data, CACHE_LINE_BYTES) for buffer in buffers]
    return least_ns(target, body, starts)


def least_ns(
    target: Target, body: Callable[[Assembler], None], arguments: Sequence[int] = (0,)
) -> float:
    """The shortest time of a function, in nanoseconds, over the given arguments."""
    memory = function_of(target, body)
    timings = (time_native(memory.address, (one,), samples=50) for one in arguments)
    return min(timing.min_ns for timing in timings)


def function_of(target: Target, body: Callable[[Assembler], None]) -> ExecutableMemory:
    """A native function with the code that `body` appends."""
    asm = Assembler(target)
    body(asm)
    asm.emit("vzeroupper")
    asm.emit("ret")
    return ExecutableMemory(asm.finish().data)
