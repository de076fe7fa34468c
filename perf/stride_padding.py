"""Bandwidth of L2 by the number of lines read in a row, for `asm_templates.shared.padding`.

The loads are straight-line code, one for each line, repeated.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES, DENSE, StridePadding
from sparsejit.asm_templates.shared.storage import addresses
from sparsejit.machine.target import Target
from sparsejit.measuring.core_loops import cycles_per_ns, least_ns_reading
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import Memory, rdi, rdx, ymm, zmm

# Lines in a run, each run with one padding line after it; "all" has no padding.
RUNS = (1, 2, 3, 4, 5, 8)
SPACINGS = {"all": DENSE, **{str(run): StridePadding(run, run + 1) for run in reversed(RUNS)}}
KILOBYTES = (64, 96, 128, 192, 256, 384)
_PLACES = 3


@dataclass(frozen=True)
class Arrival:
    """Bytes a cycle of reading `kilobytes` in runs of `run` lines, or "all" in a row."""

    run: str
    kilobytes: int
    bytes_a_cycle: float


def compare(progress: Callable[[str], None] = lambda step: None) -> list[Arrival]:
    """Measure the bandwidth of L2 for every run length at every size, in turn."""
    target = Target.detect()
    arrivals = []
    for kilobytes in KILOBYTES:
        for run, space in SPACINGS.items():
            progress(f"{kilobytes} KB in runs of {run}")
            rate = straight_line_bandwidth(target, kilobytes << 10, space) / cycles_per_ns(target)
            arrivals.append(Arrival(run, kilobytes, rate))
    return arrivals


def straight_line_bandwidth(target: Target, size: int, space: StridePadding) -> float:
    """Bytes a nanosecond when `size` bytes of lines are read, each by an instruction of its own."""
    register = zmm if target.isa == "avx512" else ymm
    number = np.arange(size // CACHE_LINE_BYTES)
    address = addresses(space.place(number) * CACHE_LINE_BYTES, target.vector_bytes)

    def body(asm: Assembler) -> None:
        asm.stamp(
            len(number),
            [
                line("lea", rdx, Memory(rdi, address.base), when=address.moves),
                line("vmovups", register(number % 16), Memory(rdx, address.displacement)),
            ],
        )

    room = space.room(len(number)) * CACHE_LINE_BYTES
    return size / least_ns_reading(target, body, room, _PLACES)
