"""What more cores gain: layers on one thread and on several, and what the meeting costs.

The caller is pinned to one core as everywhere here; its workers go where Linux puts them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from sparsejit.api import compile_matrix
from sparsejit.assembler import Assembler, line
from sparsejit.measure import Timing, median_of_least, time_native
from sparsejit.memory import ExecutableMemory
from sparsejit.operands import rax, rcx
from sparsejit.perf.kernels import time_at_places
from sparsejit.perf.problems import MatVecProblem
from sparsejit.spec import DType
from sparsejit.target import Target
from sparsejit.workers import NativePart, pool

# A part of about two microseconds, all in registers: cores cannot disturb each other.
_CHAIN = 8192


@dataclass(frozen=True)
class Gain:
    """One layer's time alone and shared: nanoseconds, medians over places of the minimum."""

    problem: str
    dtype: str
    kernel: str
    threads: int
    ns_alone: float
    ns_shared: float

    @property
    def speed_up(self) -> float:
        return self.ns_alone / self.ns_shared


def barrier(threads: int) -> Timing:
    """What a call of equal parts costs beyond one part: request, answer and the calls between."""
    one, many = _function([_chain]), _function([_chain] * threads)
    alone = time_native(one.address, budget_ns=10**9)
    shared = time_native(many.address, budget_ns=10**9)
    beyond = (shared.min_ns - alone.min_ns, shared.median_ns - alone.median_ns)
    return Timing(*beyond, shared.samples)


def gains(
    problems: Iterable[MatVecProblem],
    threads: int,
    dtypes: Iterable[DType] = (DType.FLOAT32,),
    progress: Callable[[str], None] = lambda step: None,
) -> list[Gain]:
    """Time every problem in every dtype on one thread and on at most `threads`."""
    found = []
    dtypes = tuple(dtypes)
    for problem in problems:
        weights, x = problem.weights(), problem.input()
        for dtype in dtypes:
            progress(f"{problem.name}: {dtype.value}")
            alone = compile_matrix(weights, dtype=dtype)
            shared = compile_matrix(weights, dtype=dtype, threads=threads)
            found.append(
                Gain(
                    problem.name,
                    dtype.value,
                    shared.plan.chosen.template.name,
                    shared.stats["threads"],
                    median_of_least(time_at_places(alone, x)),
                    median_of_least(time_at_places(shared, x)),
                )
            )
    return found


def _chain(asm: Assembler) -> None:
    asm.stamp(_CHAIN, [line("add", rax, rcx)])


def _function(parts: list[Callable[[Assembler], None]]) -> ExecutableMemory:
    """void f(x, y), which runs all parts at once."""
    asm = Assembler(Target.detect())
    pool().require(len(parts) - 1)
    natives = [NativePart(asm.label("part"), 0) for _ in parts]
    if len(parts) > 1:
        pool().emit_dispatcher(asm, natives, np.inf)
    for native, emit in zip(natives, parts, strict=True):
        asm.align(64)
        asm.bind(native.label)
        emit(asm)
        asm.emit("ret")
    return ExecutableMemory(asm.finish().data)
