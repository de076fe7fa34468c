"""Limits of this core, measured by short machine-code loops.

The bandwidth of L2 by the number of lines read in a row, for `asm_templates.shared.padding`, is
measured by straight-line code: one load for each line, repeated.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from sparsejit.asm_templates.shared.loops import repeat
from sparsejit.asm_templates.shared.padding import CACHE_LINE_BYTES, DENSE, StridePadding
from sparsejit.asm_templates.shared.storage import addresses
from sparsejit.machine.target import Target
from sparsejit.measuring.core_loops import (
    cycles_per_ns,
    least_ns,
    least_ns_reading,
    load_bandwidth,
    padded_l2_bandwidth,
)
from sparsejit.planner.cost import nearest_places
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import Memory, rax, rdi, rdx, ymm, zmm

_ACCUMULATORS = 12  # latency 4 at two a cycle needs 8; AVX2 has 16 registers
_FMA_PASSES = 1000
_MOST_MEMORY = 256 << 20
_PLACES = 5  # L2 and L3 are faster from some physical pages than from others


@dataclass(frozen=True)
class MachineLimits:
    """Measured on one core: load bandwidths in bytes a nanosecond, FMA rate in GFLOPS.

    The loops use the vector width of the instruction set `isa`.
    """

    isa: str
    l1_bytes_per_ns: float
    l2_bytes_per_ns: float
    l3_bytes_per_ns: float
    memory_bytes_per_ns: float
    fma_gflops: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def least_ns(self, flops: int, data_bytes: int, target: Target) -> tuple[float, str]:
        """A lower bound on a kernel's nanoseconds, and its cause: FMA, or a cache's bandwidth.

        `data_bytes` counts the data that one call touches, warm in the nearest caches that hold it;
        the farthest of these is named. Code is left out: it is loaded another way.
        """
        rates = {
            "L1": self.l1_bytes_per_ns,
            "L2": self.l2_bytes_per_ns,
            "L3": self.l3_bytes_per_ns,
            "memory": self.memory_bytes_per_ns,
        }
        places = nearest_places(data_bytes, 0, target)
        loading = sum(count / rates[level] for level, count in places.items())
        return max((loading, [*places][-1]), (flops / self.fma_gflops, "FMA"))


@cache
def machine_limits(target: Target) -> MachineLimits:
    """The limits from the first call of `measure_limits` in this process."""
    return measure_limits(target)


def measure_limits(target: Target) -> MachineLimits:
    """Measure this core at the target's vector width. Takes about a second."""
    l3_bytes = min(target.l3_bytes // 2, 4 * target.l2_bytes)
    return MachineLimits(
        target.isa,
        l1_bytes_per_ns=load_bandwidth(target, target.l1d_bytes // 2, 16, _PLACES),
        l2_bytes_per_ns=max(
            load_bandwidth(target, target.l2_bytes // 2, 1, _PLACES),
            padded_l2_bandwidth(target, _PLACES),
        ),
        l3_bytes_per_ns=load_bandwidth(target, l3_bytes, 1, _PLACES),
        memory_bytes_per_ns=load_bandwidth(target, min(4 * target.l3_bytes, _MOST_MEMORY)),
        fma_gflops=_fma_gflops(target),
    )


def _fma_gflops(target: Target) -> float:
    """Rate of independent fused multiply-adds, two operations a lane."""
    register = zmm if target.isa == "avx512" else ymm
    targets = register(np.arange(_ACCUMULATORS))
    source = register(_ACCUMULATORS)

    def body(asm: Assembler) -> None:
        for number in range(_ACCUMULATORS + 1):  # zeros: stale bits could be slow denormals
            asm.emit("vxorps", ymm(number), ymm(number), ymm(number))
        multiply = line("vfmadd231ps", targets, source, source)
        repeat(asm, _FMA_PASSES, rax, lambda: asm.stamp(_ACCUMULATORS, [multiply]))

    elapsed = least_ns(target, body)
    return 2 * target.lanes * _ACCUMULATORS * _FMA_PASSES / elapsed


# Lines in a run, each run with one padding line after it; "all" has no padding.
RUNS = (1, 2, 3, 4, 5, 8)
SPACINGS = {"all": DENSE, **{str(run): StridePadding(run, run + 1) for run in reversed(RUNS)}}
KILOBYTES = (64, 96, 128, 192, 256, 384)
_STRIDE_PLACES = 3


@dataclass(frozen=True)
class Arrival:
    """Bytes a cycle from L2 where `kilobytes` are read in runs of `run` cache lines.

    A line is left out after each run; "all" leaves out none.
    """

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
    return size / least_ns_reading(target, body, room, _STRIDE_PLACES)
