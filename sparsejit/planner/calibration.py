"""This core's rates, measured once by short machine-code loops and kept in a file.

Until `sparsejit calibrate` has been run, or where the file is unusable, the planner reckons with
`cost.ZEN5_RATES`.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from sparsejit.asm_templates.shared.padding import (
    CACHE_LINE_BYTES,
    DENSE,
    StridePadding,
    stride_padding,
)
from sparsejit.files import atomic_path
from sparsejit.machine.target import Target
from sparsejit.planner.cost import ZEN5_RATES, Rates
from sparsejit.runtime.executable_memory import ExecutableMemory
from sparsejit.runtime.native_timing import time_native
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import Memory, r8, rax, rcx, rdi, ymm, zmm

_CHAIN = 4096
_LOADS = 16
_BIG = 8 << 20  # bytes that L2 cannot hold, for rates beyond it


def cache_file(kind: str, *parts: str) -> Path:
    """The file in the user's cache directory for what `parts` identify together."""
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    return user_cache_path("sparsejit") / f"{kind}-{digest}.json"


@cache
def known_rates(target: Target) -> Rates:
    """The rates measured on this kind of core earlier, or Zen 5's."""
    try:
        stored = json.loads(_file(target).read_text())
        data = {level: stored["data"][level] for level in ZEN5_RATES.data}
        return Rates(stored["cycles_per_ns"], data, stored["code"])
    except (OSError, ValueError, KeyError, TypeError):
        return ZEN5_RATES


def calibrate(target: Target) -> Rates:
    """Measure this core's rates (about a second), keep them, and return them."""
    clock = cycles_per_ns(target)
    sizes = {
        "L1": target.l1d_bytes // 2,
        "L2": target.l2_bytes // 2,
        "L3": _BIG,
        "memory": 2 * target.l3_bytes,
    }
    data = {
        level: load_bandwidth(target, size) / clock for level, size in sizes.items()
    }
    data["padded L2"] = padded_l2_bandwidth(target) / clock
    # In L1 the execution ports are the limit, and code from memory would take a second to fault
    # in for a case that no kernel should be in: for these the table's figures stay.
    code = {
        **ZEN5_RATES.code,
        "L2": _executed_bytes_per_ns(target, sizes["L2"]) / clock,
        "L3": _executed_bytes_per_ns(target, sizes["L3"]) / clock,
    }
    rates = Rates(clock, data, code)
    with atomic_path(_file(target)) as path:
        path.write_text(json.dumps(asdict(rates), indent=2))
    known_rates.cache_clear()
    return rates


def _file(target: Target) -> Path:
    return cache_file("rates", target.model, target.isa)


def cycles_per_ns(target: Target) -> float:
    """The core's clock in GHz, now."""
    return _CHAIN / least_ns(target, _dependent_additions)


def _dependent_additions(asm: Assembler) -> None:
    """Each addition waits for the one before: one cycle each."""
    asm.stamp(_CHAIN, [line("add", rax, rcx)])


def padded_l2_bandwidth(target: Target, places: int = 1) -> float:
    """Bytes a nanosecond from L2 at the padding that kernels give their pools on this target."""
    size = target.l2_bytes // 4
    return load_bandwidth(target, size, places=places, space=stride_padding(size, target))


def load_bandwidth(
    target: Target, size: int, passes: int = 1, places: int = 1, space: StridePadding = DENSE
) -> float:
    """Bytes a nanosecond when `size` bytes are read over and over, where they lie best.

    `passes` are made in each call, in each of `places` buffers. `space` is that of the vectors.
    """
    register = zmm if target.isa == "avx512" else ymm
    # One run a trip: in steps of 1 KB, four runs a trip, padded lines come at 44 bytes a cycle.
    loads = _LOADS if space == DENSE else space.run
    offsets = space.place(np.arange(loads)) * target.vector_bytes
    step, trips = space.room(loads) * target.vector_bytes, size // (loads * target.vector_bytes)

    def one_pass(asm: Assembler) -> None:
        again = asm.label("again")
        asm.emit("mov", rax, rdi)
        asm.emit("mov", rcx, trips)
        asm.bind(again)
        asm.stamp(loads, [line("vmovups", register(np.arange(loads)), Memory(rax, offsets))])
        asm.emit("add", rax, step)
        asm.emit("sub", rcx, 1)
        asm.jump("jnz", again)

    def body(asm: Assembler) -> None:
        repeat(asm, passes, one_pass)

    elapsed = least_ns_reading(target, body, trips * step, places)
    return trips * loads * target.vector_bytes * passes / elapsed


def _executed_bytes_per_ns(target: Target, size: int) -> float:
    """Straight-line code of independent five-byte VEX instructions, as kernels consist of."""

    def body(asm: Assembler) -> None:
        count = size // 5
        asm.stamp(count, [line("vxorps", ymm(np.arange(count) % 8), ymm(8), ymm(9))])

    return size / least_ns(target, body)


def repeat(asm: Assembler, times: int, body: Callable[[Assembler], None]) -> None:
    """Append a loop around `body`, which must keep r8."""
    again = asm.label("repeat")
    asm.emit("mov", r8, times)
    asm.bind(again)
    body(asm)
    asm.emit("sub", r8, 1)
    asm.jump("jnz", again)


def least_ns_reading(
    target: Target, body: Callable[[Assembler], None], size: int, places: int
) -> float:
    """The shortest time of a function over buffers of `size` bytes, each aligned to a line."""
    buffers = [np.ones(size + CACHE_LINE_BYTES, np.uint8) for _ in range(places)]
    starts = [buffer.ctypes.data + -buffer.ctypes.data % CACHE_LINE_BYTES for buffer in buffers]
    return least_ns(target, body, starts)


def least_ns(
    target: Target, body: Callable[[Assembler], None], arguments: Sequence[int] = (0,)
) -> float:
    """The shortest time of a function over the arguments it may be given."""
    asm = Assembler(target)
    body(asm)
    asm.emit("vzeroupper")
    asm.emit("ret")
    memory = ExecutableMemory(asm.finish().data)
    timings = (time_native(memory.address, (one,), samples=50) for one in arguments)
    return min(timing.min_ns for timing in timings)
