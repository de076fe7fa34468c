"""What this core can do at most, measured by short machine-code loops."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np

from sparsejit.assembler import Assembler, line
from sparsejit.measure import time_native
from sparsejit.memory import ExecutableMemory
from sparsejit.operands import Memory, Register, r8, rax, rcx, rdi, ymm, zmm
from sparsejit.target import Target

_LOADS_IN_BODY = 16
_ACCUMULATORS = 12  # latency 4 at two a cycle needs 8; AVX2 has 16 registers
_FMA_PASSES = 1000
_MOST_MEMORY = 256 << 20
_PLACES = 5  # L2 and L3 are faster from some physical pages than from others


@dataclass(frozen=True)
class MachineLimits:
    """Measured on one core: load bandwidths in bytes a nanosecond, FMA rate in GFLOPS.

    The vector width is that of the instruction set `isa`.
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
        """The time below which no kernel can get, and what sets it: FMA, or a cache's bandwidth.

        `data_bytes` is the data one call touches, warm in the nearest cache that holds it.
        Code is left out: it arrives another way.
        """
        if data_bytes <= target.l1d_bytes:
            level, rate = "L1", self.l1_bytes_per_ns
        elif data_bytes <= target.l2_bytes:
            level, rate = "L2", self.l2_bytes_per_ns
        elif data_bytes <= target.l3_bytes:
            level, rate = "L3", self.l3_bytes_per_ns
        else:
            level, rate = "memory", self.memory_bytes_per_ns
        return max((data_bytes / rate, level), (flops / self.fma_gflops, "FMA"))


@cache
def machine_limits(target: Target) -> MachineLimits:
    """Measure this core at the target's vector width. Takes about a second."""
    return MachineLimits(
        target.isa,
        l1_bytes_per_ns=_load_bandwidth(target, target.l1d_bytes // 2, 16),
        l2_bytes_per_ns=_load_bandwidth(target, target.l2_bytes // 2, 1),
        l3_bytes_per_ns=_load_bandwidth(target, min(target.l3_bytes // 2, 4 * target.l2_bytes), 1),
        memory_bytes_per_ns=_load_bandwidth(target, min(4 * target.l3_bytes, _MOST_MEMORY), 1, 1),
        fma_gflops=_fma_gflops(target),
    )


def _load_bandwidth(target: Target, size: int, passes: int, places: int = _PLACES) -> float:
    """Bytes a nanosecond when `size` bytes are read over and over, where they lie best."""
    register = _register_maker(target)
    step = _LOADS_IN_BODY * target.vector_bytes
    offsets = np.arange(_LOADS_IN_BODY) * target.vector_bytes

    def one_pass(asm: Assembler) -> None:
        asm.emit("mov", rax, rdi)
        asm.emit("mov", rcx, size // step)
        inner = asm.label("inner")
        asm.bind(inner)
        loads = line("vmovups", register(np.arange(_LOADS_IN_BODY)), Memory(rax, offsets))
        asm.stamp(_LOADS_IN_BODY, [loads])
        asm.emit("add", rax, step)
        asm.emit("sub", rcx, 1)
        asm.jump("jnz", inner)

    buffers = [np.ones(size + 64, np.uint8) for _ in range(places)]
    starts = [buffer.ctypes.data + -buffer.ctypes.data % 64 for buffer in buffers]
    elapsed = _least_ns(target, lambda asm: _repeat(asm, passes, one_pass), starts)
    return size // step * step * passes / elapsed


def _fma_gflops(target: Target) -> float:
    """Rate of independent fused multiply-adds, two operations a lane."""
    register = _register_maker(target)
    targets = register(np.arange(_ACCUMULATORS))
    source = register(_ACCUMULATORS)

    def one_pass(asm: Assembler) -> None:
        asm.stamp(_ACCUMULATORS, [line("vfmadd231ps", targets, source, source)])

    def body(asm: Assembler) -> None:
        for number in range(_ACCUMULATORS + 1):  # zeros: stale bits could be slow denormals
            asm.emit("vxorps", ymm(number), ymm(number), ymm(number))
        _repeat(asm, _FMA_PASSES, one_pass)

    elapsed = _least_ns(target, body, [0])
    return 2 * target.lanes * _ACCUMULATORS * _FMA_PASSES / elapsed


def _repeat(asm: Assembler, times: int, body: Callable[[Assembler], None]) -> None:
    again = asm.label("again")
    asm.emit("mov", r8, times)
    asm.bind(again)
    body(asm)
    asm.emit("sub", r8, 1)
    asm.jump("jnz", again)


def _least_ns(target: Target, body: Callable[[Assembler], None], arguments: Sequence[int]) -> float:
    """The shortest time of a function over the arguments it may be given."""
    asm = Assembler(target)
    body(asm)
    asm.emit("vzeroupper")
    asm.emit("ret")
    memory = ExecutableMemory(asm.finish().data)
    return min(time_native(memory.address, (one,), samples=50).min_ns for one in arguments)


def _register_maker(target: Target) -> Callable[..., Register]:
    return zmm if target.isa == "avx512" else ymm
