"""How well the planner predicts: predicted against measured time over a grid of layers."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sparsejit.api import compile_matrix
from sparsejit.ir.sparse_matrix import BLOCK_1X8, BLOCK_1X16, UNSTRUCTURED, BlockShape
from sparsejit.ir.spec import DType
from sparsejit.perf.kernels import time_at_places
from sparsejit.perf.problems import Problem
from sparsejit.runtime.native_timing import median_of_least

SHAPES = ((64, 64), (256, 256), (768, 256), (1152, 384), (1024, 1024), (3072, 1024))
SPARSITIES = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98)
PATTERNS = (UNSTRUCTURED, BLOCK_1X8, BLOCK_1X16)
WITHIN = 1.5
_PLACES = 3


@dataclass(frozen=True)
class Prediction:
    """One layer of the grid with the kernel that the planner chose for it; times in ns."""

    shape: tuple[int, int]
    sparsity: float
    pattern: str
    dtype: str
    template: str
    predicted_ns: float
    measured_ns: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_ns / self.measured_ns

    @property
    def within(self) -> bool:
        """Whether prediction and measurement differ by less than a factor of `WITHIN`."""
        return 1 / WITHIN < self.ratio < WITHIN


def grid(dtypes: tuple[DType, ...] = tuple(DType)) -> Iterator[tuple[Problem, DType]]:
    """Every combination that differs from another one."""
    for shape in SHAPES:
        for sparsity in SPARSITIES:
            for pattern in PATTERNS[: 1 if sparsity == 0 else None]:
                for dtype in dtypes:
                    yield layer(shape, sparsity, pattern), dtype


def compare(
    dtypes: tuple[DType, ...] = tuple(DType), progress: Callable[[str], None] = lambda step: None
) -> list[Prediction]:
    """Time the planner's choice for every layer of the grid: the median over places in memory."""
    predictions = []
    for problem, dtype in grid(dtypes):
        progress(f"{problem.name} {dtype.value}")
        predictions.append(predict_and_time(problem, dtype))
    return predictions


def predict_and_time(problem: Problem, dtype: DType) -> Prediction:
    """Compile one layer as the planner chooses, and time it at several places in memory."""
    kernel = compile_matrix(problem.weights(), dtype=dtype)
    times = time_at_places(kernel, problem.input(), _PLACES)
    chosen = kernel.plan.chosen
    return Prediction(
        (problem.out_features, problem.in_features),
        problem.sparsity,
        problem.pattern.name,
        dtype.value,
        chosen.template.name,
        chosen.cost.ns,
        median_of_least(times),
    )


def layer(shape: tuple[int, int], sparsity: float, pattern: BlockShape) -> Problem:
    """One layer of the grid: its shape is (out, in)."""
    name = f"{shape[0]} x {shape[1]}, {sparsity:.0%} zero, {pattern.name}"
    return Problem(name, *shape, sparsity, pattern, seed=1)
