"""This core's rates, measured once by short machine-code loops and kept in a file.

Until `sparsejit calibrate` has been run, or where the file is damaged, the planner reckons with the
core's own data.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sparsejit.asm_templates.shared.padding import (
    CACHE_LINE_BYTES,
    DENSE,
    StridePadding,
    stride_padding,
)
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.files import check_writable
from sparsejit.machine.rates import Rates
from sparsejit.machine.target import Target
from sparsejit.planner.cache import cache_file, is_number, recall, remember
from sparsejit.runtime.executable_memory import ExecutableMemory
from sparsejit.runtime.native_timing import time_native
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import Memory, r8, rax, rcx, rdi, ymm, zmm

_CHAIN = 4096
_LOADS = 16
_BIG = 8 << 20  # bytes that L2 cannot hold, for rates beyond it

_REMEDY = "`sparsejit calibrate` writes it anew"
_LEVELS = {
    "data": ("L1", "padded L2", "L2", "L3", "memory"),
    "code": ("L1", "L2", "L3", "memory"),
}
# Cycles a nanosecond and bytes a cycle of any core there is; what lies outside was not measured.
_PLAUSIBLE = (1e-3, 1e5)


def rates_origin(target: Target) -> str:
    """In words, whose prices the planner reckons with."""
    return target.core.origin


def forget_rates() -> None:
    """Read what was measured anew when it is asked for next."""
    calibrated.cache_clear()


@cache
def calibrated(target: Target) -> Target:
    """The target at the rates measured on this kind of core earlier; as it is where none were."""
    file, core = _file(target), target.core
    try:
        stored = recall(file)
        if stored is None:
            return target
        rates = _checked(stored)
    except DamagedFile as damage:
        why = f"{core.origin}, because {file} is damaged: {damage}; {_REMEDY}"
        return replace(target, core=replace(core, measured=why))
    origin = f"measured on {stored['measured_on']} by `sparsejit calibrate`, {file}"
    return replace(target, core=replace(core, rates=rates, measured=origin))


def _checked(stored: object) -> Rates:
    """The rates in what was read from a file. Raises DamagedFile, naming the field."""
    found = _fields("the file", stored, {*(field.name for field in fields(Rates)), "measured_on"})
    clock = _rate("cycles_per_ns", found["cycles_per_ns"])
    data, code = (_levels(name, found[name]) for name in _LEVELS)
    try:
        date.fromisoformat(found["measured_on"])
    except (TypeError, ValueError) as error:
        raise DamagedFile("measured_on is no date") from error
    return Rates(clock, data, code)


def _levels(name: str, value: object) -> dict[str, float]:
    rates = _fields(name, value, set(_LEVELS[name]))
    return {level: _rate(f"{name}[{level!r}]", rates[level]) for level in _LEVELS[name]}


def _fields(name: str, value: object, keys: set[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != keys:
        raise DamagedFile(f"{name} has not the keys {', '.join(sorted(keys))}")
    return value


def _rate(name: str, value: Any) -> float:
    if not is_number(value, *_PLAUSIBLE):
        least, most = _PLAUSIBLE
        raise DamagedFile(f"{name} is no number from {least:g} to {most:g}")
    return float(value)


def calibrate(target: Target) -> Rates:
    """Measure this core's rates (about a second), keep them, and return them.

    Raises InvalidInput before it measures where they cannot be kept.
    """
    file = _file(target)
    try:
        check_writable(file)
    except InvalidInput as error:
        raise InvalidInput(f"rates could not be kept: {error}, with XDG_CACHE_HOME") from error
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
        **target.core.rates.code,
        "L2": _executed_bytes_per_ns(target, sizes["L2"]) / clock,
        "L3": _executed_bytes_per_ns(target, sizes["L3"]) / clock,
    }
    rates = Rates(clock, data, code)
    problem = remember(file, {**asdict(rates), "measured_on": date.today().isoformat()})
    if problem is not None:
        raise InvalidInput(problem)
    forget_rates()
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
