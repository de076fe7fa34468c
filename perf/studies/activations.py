"""Compare tanh and sigmoid with float64 on every float32; print the table of their errors.

    python -m sparsejit.perf.studies.activations                            (ten minutes)

Floats are counted by rank: 0.0 has rank 0, the next float above it rank 1, the next below -1.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.pointwise.elementwise import emit_elementwise
from sparsejit.ir import reference
from sparsejit.ir.spec import Activation, Elementwise
from sparsejit.machine.target import ISA_LEVELS, Target
from sparsejit.runtime.native_timing import time_native
from sparsejit.runtime.program import Program, build

FloatArray = npt.NDArray[np.float32]
RankArray = npt.NDArray[np.int64]

CHUNK = 1 << 16  # floats that one call of the function under test takes
RUN = 256  # consecutive floats in each run of `sampled_ranks`
INFINITY_RANK = 0x7F800000
_TIMED_LENGTH = 2048  # 8 KiB in, 8 KiB out: inside L1

_HEADER = (
    *("function", "instruction set", "floats", "largest error", "at x", "relative error"),
    *("decreasing pairs", "odd", "range", "ns per 16"),
)


@dataclass(frozen=True)
class Sweep:
    """Results of a function over ascending floats. Errors are against float64.

    `odd`: f(-x) and f(x) differ in the sign bit only, for every x.
    """

    floats: int
    largest_error: float
    worst_x: float
    relative_error: float
    decreasing_pairs: int
    odd: bool
    low: float
    high: float


def floats_of(ranks: RankArray) -> FloatArray:
    """The float32 of each rank in -INFINITY_RANK .. INFINITY_RANK."""
    magnitudes = np.abs(ranks).astype(np.uint32).view(np.float32)
    return np.where(ranks < 0, -magnitudes, magnitudes)


def all_ranks() -> Iterator[RankArray]:
    """Every rank, ascending, CHUNK at a time; the last chunk repeats infinity."""
    for first in range(-INFINITY_RANK, INFINITY_RANK + 1, CHUNK):
        yield np.minimum(np.arange(first, first + CHUNK), INFINITY_RANK)


def sampled_ranks(generator: np.random.Generator) -> Iterator[RankArray]:
    """A run of RUN consecutive floats at a random place in each 2^16 of them, ascending."""
    starts = np.arange(-INFINITY_RANK, INFINITY_RANK + 1, 1 << 16)
    starts += generator.integers((1 << 16) - RUN, size=len(starts))
    ranks = (starts[:, None] + np.arange(RUN)).ravel()
    for first in range(0, len(ranks), CHUNK):
        chunk = np.full(CHUNK, INFINITY_RANK)
        part = ranks[first : first + CHUNK]
        chunk[: len(part)] = np.minimum(part, INFINITY_RANK)
        yield chunk


def sweep(
    activation: Activation, compute: Callable[[FloatArray], FloatArray], chunks: Iterable[RankArray]
) -> Sweep:
    """Apply `compute` to ascending floats, (CHUNK,) at a time, and compare with the reference."""
    spec = Elementwise(CHUNK, activation)
    floats, worst, relative, decreasing, odd = 0, (0.0, 0.0), 0.0, 0, True
    last, low, high = np.float32(-np.inf), np.inf, -np.inf
    for ranks in chunks:
        x = floats_of(ranks)
        y, expected = compute(x), reference.elementwise(spec, x)
        error = np.abs(y - expected)
        at = int(np.argmax(error))
        worst = max(worst, (float(error[at]), float(x[at])))
        relative = max(relative, _largest_relative(error, expected))
        decreasing += int(np.count_nonzero(np.diff(y, prepend=last) < 0))
        odd = odd and (-y).tobytes() == compute(-x).tobytes()
        last, floats = y[-1], floats + int(np.count_nonzero(np.diff(ranks))) + 1
        low, high = min(low, float(y.min())), max(high, float(y.max()))
    return Sweep(floats, *worst, relative, decreasing, odd, low, high)


def _largest_relative(error: FloatArray, expected: npt.NDArray[np.float64]) -> float:
    """Largest relative error; infinite where a result should be 0 and is not."""
    size = np.abs(expected)
    if np.any(error[size == 0.0]):
        return np.inf
    return float(np.max(error / np.maximum(size, np.finfo(np.float64).tiny)))


class NativeActivation:
    """An activation compiled for one instruction set: float32 (length,) to (length,)."""

    def __init__(self, activation: Activation, isa: str, length: int) -> None:
        spec = Elementwise(length, activation)
        self.program: Program = build(
            f"{activation.value}-{isa}", Target.named(isa), lambda asm: emit_elementwise(asm, spec)
        )
        self._function = self.program.memory.function(2)
        self._length = length

    def __call__(self, x: FloatArray) -> FloatArray:
        assert x.shape == (self._length,) and x.dtype == np.float32
        x, y = np.ascontiguousarray(x), np.empty_like(x)
        self._function(x.ctypes.data, y.ctypes.data)
        return y


def _arrays_apart() -> tuple[FloatArray, FloatArray]:
    """x and y half a page apart modulo the page: a store stalls a load 4096 bytes from it."""
    half_page = 512
    buffer = np.random.default_rng(0).normal(size=2 * _TIMED_LENGTH + half_page)
    both = buffer.astype(np.float32)
    return both[:_TIMED_LENGTH], both[_TIMED_LENGTH + half_page :]


def _ns_per_16(activation: Activation, isa: str) -> float:
    x, y = _arrays_apart()
    native = NativeActivation(activation, isa, _TIMED_LENGTH)
    timing = time_native(native.program.pointer, (x.ctypes.data, y.ctypes.data))
    return timing.min_ns * 16 / _TIMED_LENGTH


def _row(activation: Activation, isa: str) -> tuple[str, ...]:
    result = sweep(activation, NativeActivation(activation, isa, CHUNK), all_ranks())
    return (
        activation.value,
        isa,
        f"{result.floats:,}",
        f"{result.largest_error:.3g}",
        f"{result.worst_x:.6g}",
        f"{result.relative_error:.3g}" if activation is Activation.TANH else "",
        f"{result.decreasing_pairs:,}",
        ("yes" if result.odd else "no") if activation is Activation.TANH else "",
        f"{result.low:g} to {result.high:g}",
        f"{_ns_per_16(activation, isa):.2f}",
    )


def main() -> None:
    """Print the table of errors, in Markdown."""
    machine = Target.detect()
    print("| " + " | ".join(_HEADER) + " |")
    print("|" + " --- |" * len(_HEADER))
    for activation in (Activation.TANH, Activation.SIGMOID):
        for isa in ISA_LEVELS:
            if Target.named(isa).runs_on(machine):
                print("| " + " | ".join(_row(activation, isa)) + " |", flush=True)
    print(f"\nTimes are minima on {machine.model}, {_TIMED_LENGTH} values in L1.")


if __name__ == "__main__":
    main()
