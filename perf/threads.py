"""What more cores gain: layers on one thread and on several, and what the meeting costs.

The caller is pinned to one core as everywhere here; its workers go where Linux puts them.
"""

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np

from sparsejit.api import Kernel, compile_matrix
from sparsejit.ir.spec import DType
from sparsejit.machine.target import Target
from sparsejit.perf.kernels import time_at_places
from sparsejit.perf.problems import FloatArray, MatVecProblem
from sparsejit.runtime.executable_memory import ExecutableMemory
from sparsejit.runtime.native_timing import median_of_least, time_native
from sparsejit.runtime.workers import NativePart, pool
from sparsejit.x86.assembler import Assembler, line
from sparsejit.x86.operands import rax, rcx

# A part of about two microseconds, all in registers: cores cannot disturb each other.
_CHAIN = 8192
_ROUNDS = 8


@dataclass(frozen=True)
class Gain:
    """One layer's time alone and shared: nanoseconds, least of several medians over places."""

    problem: str
    dtype: str
    kernel: str
    threads: int
    ns_alone: float
    ns_shared: float

    @property
    def speed_up(self) -> float:
        return self.ns_alone / self.ns_shared


@dataclass(frozen=True)
class _ThreadedLayer:
    """One layer compiled for one thread and for several, and its input."""

    problem: str
    alone: Kernel
    shared: Kernel
    x: FloatArray

    def times(self) -> tuple[float, float]:
        """Nanoseconds alone and shared, medians over places."""
        alone, shared = (time_at_places(kernel, self.x) for kernel in (self.alone, self.shared))
        return median_of_least(alone), median_of_least(shared)

    def gain(self, times: FloatArray) -> Gain:
        plan, dtype = self.shared.plan, self.shared.spec.dtype.value
        name, threads = plan.chosen.template.name, self.shared.stats["threads"]
        return Gain(self.problem, dtype, name, threads, float(times[0]), float(times[1]))


def barrier(threads: int) -> float:
    """Nanoseconds that a call of equal parts costs beyond one part: request and answer.

    The median over rounds, in each of which one part and all are timed at the same clock.
    """
    one, many = _function([_chain]), _function([_chain] * threads)
    return statistics.median(
        time_native(many.address).median_ns - time_native(one.address).median_ns
        for _ in range(_ROUNDS)
    )


def gains(
    problems: Iterable[MatVecProblem],
    threads: int,
    dtypes: Iterable[DType] = (DType.FLOAT32,),
    progress: Callable[[str], None] = lambda step: None,
) -> list[Gain]:
    """Time every problem in every dtype on one thread and on at most `threads`.

    In rounds over all of them, of which the least counts: another guest may slow either core for
    seconds (docs/threads.md).
    """
    cases = []
    for problem, dtype in product(problems, tuple(dtypes)):
        progress(f"compiling {problem.name}: {dtype.value}")
        weights, x = problem.weights(), problem.input()
        shared = compile_matrix(weights, dtype=dtype, threads=threads)
        cases.append(_ThreadedLayer(problem.name, compile_matrix(weights, dtype=dtype), shared, x))
    rounds = []
    for number in range(1, _ROUNDS + 1):
        progress(f"round {number} of {_ROUNDS}")
        rounds.append([case.times() for case in cases])
    return [case.gain(np.min(times, axis=0)) for case, *times in zip(cases, *rounds, strict=True)]


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
