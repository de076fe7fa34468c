"""Time kernels of templates: one kernel at several places in memory, or many kernels in turn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.families import Template
from sparsejit.ir.spec import Layer, MatMul
from sparsejit.machine.target import Target
from sparsejit.measuring.core_loops import CHAIN_CYCLES, dependent_additions, function_of
from sparsejit.runtime.native_timing import (
    aligned,
    duration_ns,
    median_of_least,
    native_loop,
    pinned,
    time_copies,
)
from sparsejit.runtime.program import build
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Literal, rdx

_PLACES, _SAMPLES = 3, 40
_CHAIN_CALLS = 16
_ROUNDS, _MOST_ROUNDS = 12, 48
_SAMPLE_NS = 150_000.0
# Greatest ratio of cycles in two halves of the rounds: beyond it, other work disturbed one half.
_MOST_DIFFERENCE = 1.08


def kernel_ns(
    template: Template, lowered: Any, spec: Layer, target: Target, all_bytes: int
) -> float:
    """Median over places in memory of the least nanoseconds a call; `all_bytes`: code + data."""

    def emit(asm: Assembler) -> None:
        if isinstance(spec, MatMul) and spec.added_pitch is not None:
            nothing = np.zeros(spec.out_features * spec.added_pitch, np.float32)
            asm.emit("lea", rdx, Literal(asm.literal(nothing)))
        template.emit(asm, lowered)

    program = build(template.name, target, emit, target.prefetch_distance(all_bytes))
    x = _x(spec)
    return median_of_least(time_copies(program.image.data, x, spec.y_shape, _PLACES, _SAMPLES))


def _x(spec: Layer) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(spec.x_shape).astype(np.float32)


@dataclass(frozen=True)
class SmallKernel:
    """A template's kernel of a layer for one x, which should take `expected_ns`."""

    template: Template
    lowered: Any
    spec: Layer
    expected_ns: float


class _Timed:
    """A kernel in a loop of its own, with an x and a y."""

    def __init__(self, kernel: SmallKernel, target: Target) -> None:
        self.kernel = kernel
        template, lowered = kernel.template, kernel.lowered
        self._memory = function_of(target, lambda asm: template.emit(asm, lowered))
        self._x = aligned(_x(kernel.spec))
        self._y = aligned(np.zeros(kernel.spec.y_shape, np.float32))
        arguments = self._x.ctypes.data, self._y.ctypes.data
        self._loop = native_loop([(self._memory.address, arguments)])
        self._calls = max(1, round(_SAMPLE_NS / (kernel.expected_ns + 10)))

    def ns(self) -> float:
        return duration_ns(self._loop, self._calls) / self._calls


def least_cycles(kernels: Sequence[SmallKernel], target: Target) -> list[float]:
    """Least cycles of a call of each kernel; a chain of additions beside each tells the clock.

    Kernels that other work kept disturbing count as well: choices are worse if one kernel has a
    measured cost and its rival an assumed one than if both costs are a little too high.
    """
    timed = [_Timed(kernel, target) for kernel in kernels]
    memory = function_of(target, dependent_additions)
    chain = native_loop([(memory.address, ())])
    halves = np.full((2, len(timed)), np.inf)
    steady = np.zeros(len(timed), bool)
    with pinned():
        for a_round in range(_MOST_ROUNDS):
            if a_round % _ROUNDS == 0 and steady.all():
                break
            for number, one in enumerate(timed):
                if steady[number]:
                    continue
                chain_ns = min(duration_ns(chain, _CHAIN_CALLS) for _ in range(2))
                cycles = one.ns() * CHAIN_CYCLES * _CHAIN_CALLS / chain_ns
                halves[a_round % 2, number] = min(cycles, halves[a_round % 2, number])
            if a_round % _ROUNDS == _ROUNDS - 1:
                steady = halves.max(axis=0) <= _MOST_DIFFERENCE * halves.min(axis=0)
    return [float(one) for one in halves.min(axis=0)]
