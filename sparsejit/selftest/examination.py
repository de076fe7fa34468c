"""Examination of the kernel of a case: compiled, run, its results and side effects checked.

    compile_case, examine   the kernel of a case, and its examination
    Verdict                 its result
    Tally                   counts of kernels that passed and failed a selftest
"""

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparsejit.api.kernels.compile_layer import compile_matrix
from sparsejit.errors import CompileError
from sparsejit.ir import reference
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, Layout, MatMul
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.model_code import build_model
from sparsejit.lowering.model_schedule import ModelSchedule
from sparsejit.machine.target import MAX_ISA_VARIABLE, Target
from sparsejit.planner.cheapest_row import preferring
from sparsejit.planner.kernels import rounding_of
from sparsejit.runtime.guard_pages import EDGES, Edge, GuardedArray, guarded_workspace
from sparsejit.runtime.program import Program
from sparsejit.selftest.calling_convention import (
    UNUSUAL_MXCSR,
    USUAL_MXCSR,
    Checker,
    StateAfterCall,
)
from sparsejit.selftest.cases import Case, GraphCase, ProductCase, derive

FloatArray = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

# Relative to sum |w x| + |bias|, in a graph to the largest output. int8 sums are exact: their
# tolerance is relative to |W x| + |bias|.
TOLERANCE = 1e-5
INT8_TOLERANCE = 1e-6
# The reference's float64 sums, of whole numbers times a step, may not cancel exactly where sums of
# whole numbers do.
FLOAT64_ERROR = 1e-12
# Half the distance of denormal float16 from each other; the largest x of a column is at least 1.
FLOAT16_STEP = 2.0**-24
# Allowed absolute errors of tanh and sigmoid themselves.
ACTIVATION_ERROR = {Activation.TANH: 1e-6, Activation.SIGMOID: 1e-6}
# Some kernels take a denormal weight for zero, and a denormal product may lose its last places.
SMALLEST_NORMAL = 2.0**-126


class NativeCase(NamedTuple):
    """A native function; `owner` keeps it alive.

    It is `void kernel(const float *x, float *y)`, or with a schedule the function of a model, as
    `lowering/model_code.py` has it.
    """

    pointer: int
    family: str
    threads: int
    owner: object
    schedule: ModelSchedule | None = None


Compile = Callable[[Case], NativeCase]


@dataclass(frozen=True)
class Verdict:
    """Result for a kernel; `problem` describes the failure, or is None."""

    number: int
    family: str
    dtype: str
    isa: str
    threads: int = 1
    problem: str | None = None


def compile_case(case: Case) -> NativeCase:
    """Compile a product as `compile_matrix` does for users, or a graph with its kernel."""
    if isinstance(case, GraphCase):
        program, schedule = build_graph(case)
        return NativeCase(program.pointer, case.kernel, 1, program, schedule)
    each = case.each
    kernel = compile_matrix(
        case.weights,
        each.bias,
        activation=each.activation.value,
        batch=case.batch,
        dtype=each.dtype.value,
        strategy=case.strategy,
        target=case.target,
        threads=case.threads,
        layout=case.layout,
        input_scale=None if each.x_steps is None else each.x_steps.scale,
    )
    return NativeCase(kernel.pointer, kernel.strategy, kernel.stats["threads"], kernel)


def build_graph(case: GraphCase) -> tuple[Program, ModelSchedule]:
    """Lower and build a graph. Raises CompileError where no step is the kernel that it is for."""
    with preferring(*case.about.prefers):
        options = ModelOptions(case.target, rounds_x=case.dtype is DType.BFLOAT16)
        schedule = lower_model(case.made.graph, options)
    found = [step.kernel.removesuffix(f"-{case.target.isa}") for step in schedule.steps]
    if case.row.name not in found:
        raise CompileError(f"no step is {case.row.name}, of {', '.join(found)}")
    return build_model(schedule, case.row.name), schedule


def examine(case: Case, compile_it: Compile = compile_case) -> Verdict:
    """Compile and run a kernel; a fault ends the process.

    It runs with its arrays at each edge of accessible memory, under the usual MXCSR and another.
    """
    about = (case.number, case.kernel, case.dtype.value, case.target.isa)
    try:
        compiled = compile_it(case)
    except Exception as error:
        return Verdict(*about, problem=f"was not compiled: {type(error).__name__}: {error}")
    verdict = replace(Verdict(*about), family=compiled.family, threads=compiled.threads)
    return replace(verdict, problem=_first_problem(case, compiled))


def _first_problem(case: Case, compiled: NativeCase) -> str | None:
    if is_writable(compiled.pointer):
        return "its code is writable"
    wanted = bounds(case) if isinstance(case, ProductCase) else graph_bounds(case)
    outputs = []
    for edge in EDGES:
        usual = _call(case, compiled, edge, USUAL_MXCSR)
        problem = usual.problem or _call(case, compiled, edge, UNUSUAL_MXCSR).problem
        problem = problem or _wrong_value(usual.y, *wanted)
        if problem:
            return problem
        outputs.append(usual.y.view(np.uint32))
    changed = np.count_nonzero(outputs[0] != outputs[1])
    return f"gave other bits the second time, in {changed} outputs" if changed else None


def _wrong_value(y: FloatArray, low: Float64, high: Float64) -> str | None:
    wrong = ~((y >= low) & (y <= high))
    if not wrong.any():
        return None
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    return (
        f"wrong value: y{list(place)} is {y[place]:.9g}, not from "
        f"{low[place]:.9g} to {high[place]:.9g} ({wrong.sum()} of {wrong.size} are wrong)"
    )


@dataclass(frozen=True)
class _Outcome:
    y: FloatArray
    problem: str | None


def _call(case: Case, compiled: NativeCase, edge: Edge, mxcsr: int) -> _Outcome:
    """Run the kernel on arrays beside inaccessible pages."""
    xs = [GuardedArray(x.ravel(), edge) for x in case.inputs]
    y = GuardedArray(np.full(case.y_shape, np.nan, np.float32).ravel(), edge)
    schedule, call = compiled.schedule, partial(_checker(case.target.isa).call, compiled.pointer)
    if schedule is None:
        report = call(xs[0].address, y.address, mxcsr=mxcsr)
    else:
        tables = [np.array([each.address for each in group], np.uint64) for group in (xs, [y])]
        room, samples = guarded_workspace(schedule.workspace_bytes), len(case.inputs[0])
        report = call(*(t.ctypes.data for t in tables), room.address, samples, mxcsr=mxcsr)
    result = y.values.reshape(case.y_shape).copy()
    return _Outcome(result, _side_effect(case, xs, y, report, mxcsr))


def _side_effect(
    case: Case, xs: list[GuardedArray], y: GuardedArray, report: StateAfterCall, mxcsr: int
) -> str | None:
    if not y.surroundings_intact():
        return "wrote outside y"
    for x, given in zip(xs, case.inputs, strict=True):
        if not x.surroundings_intact() or x.values.tobytes() != given.tobytes():
            return "wrote to x"
    return report.problem(mxcsr)


@cache
def _checker(isa: str) -> Checker:
    return Checker(Target.named(isa))


def graph_bounds(case: GraphCase) -> tuple[Float64, Float64]:
    """Return the least and the largest y that the operators' references allow."""
    exact = graph_output(case)
    error = TOLERANCE * np.abs(exact).max() + case.about.steps
    return exact - error, exact + error


def graph_output(case: GraphCase) -> Float64:
    """Return y (tiles, ...) by the operators' references."""
    tiles = zip(*case.inputs, strict=True)
    return np.stack([np.asarray(case.made.graph.evaluate(x)[0], np.float64) for x in tiles])


def bounds(case: ProductCase) -> tuple[Float64, Float64]:
    """Return the least and the largest y that the reference allows, each in the shape of y."""
    matrix = SparseMatrix(case.weights)
    linear = replace(case.each, activation=Activation.NONE)
    spec = replace(case.spec, each=linear) if isinstance(case.spec, MatMul) else linear
    exact = reference.product(spec, matrix, case.x)
    error = _error(case, matrix, exact)
    activation = reference.ACTIVATIONS[case.each.activation]
    slack = ACTIVATION_ERROR.get(case.each.activation, 0.0)
    return activation(exact - error) - slack, activation(exact + error) + slack


def _error(case: ProductCase, matrix: SparseMatrix, exact: Float64) -> Float64:
    """Return the largest allowed difference of each sum from the exact one."""
    batch_major = case.batch > 1 and case.layout is Layout.BATCH_MAJOR
    x = np.abs(case.x.T if batch_major else case.x).astype(np.float64)
    sums = np.abs(exact.T if batch_major else exact)
    bias = np.zeros(matrix.out_features) if case.each.bias is None else np.abs(case.each.bias)
    bias = bias.astype(np.float64).reshape(-1, *[1] * (x.ndim - 1))
    products = np.abs(reference.stored_weights(matrix, case.each.dtype)) @ x
    if case.each.dtype is DType.INT8:
        error = INT8_TOLERANCE * (sums + 2 * bias) + FLOAT64_ERROR * products
    else:
        rounding = rounding_of(case.strategy, case.dtype)
        error = TOLERANCE * (products + bias) + rounding * products
        if rounding:  # x smaller by far than the largest of its column loses digits
            spread = np.abs(reference.stored_weights(matrix, case.each.dtype)).sum(1)
            error = error + FLOAT16_STEP * np.multiply.outer(spread, x.max(axis=0))
    error = error + SMALLEST_NORMAL * (x.sum(axis=0) + 2 * matrix.in_features)
    return error.T if batch_major else error


def is_writable(address: int) -> bool:
    """Whether the page at an address is writable, according to /proc/self/maps."""
    for row in Path("/proc/self/maps").read_text().splitlines():
        span, flags = row.split(maxsplit=2)[:2]
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            return "w" in flags
    return False


# Family, dtype and level.
Kind = tuple[str, str, str]


@dataclass
class Tally:
    """Counts of the kernels of `seed` that passed (`held`), by kind, and the failures."""

    seed: int
    held: Counter[Kind] = field(default_factory=Counter)
    failures: list[Verdict] = field(default_factory=list)
    shared: int = 0  # kernels that ran on several threads

    def add(self, verdict: Verdict) -> None:
        """Count one kernel."""
        if verdict.problem is not None:
            self.failures.append(verdict)
            return
        self.held[_kind(verdict)] += 1
        self.shared += verdict.threads > 1

    @property
    def kernels(self) -> int:
        """Number of kernels tried."""
        return self.held.total() + len(self.failures)

    def families(self) -> list[tuple[str, str]]:
        """Return each family and dtype tried, sorted by name."""
        return sorted({kind[:2] for kind in (*self.held, *map(_kind, self.failures))})

    def failed(self, family: str, dtype: str) -> int:
        """Return the number of failures of this family and dtype."""
        return sum(_kind(verdict)[:2] == (family, dtype) for verdict in self.failures)

    def command(self, verdict: Verdict) -> str:
        """Return the shell command that tests this kernel alone."""
        limit = os.environ.get(MAX_ISA_VARIABLE)
        prefix = f"{MAX_ISA_VARIABLE}={limit} " if limit else ""
        return f"{prefix}sparsejit selftest --seed {self.seed} --only {verdict.number}"

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as plain JSON types."""
        return {
            "seed": self.seed,
            "kernels": self.kernels,
            "held": self.held.total(),
            "on_several_threads": self.shared,
            "by_kind": [
                {"family": family, "dtype": dtype, "level": level, "held": held}
                for (family, dtype, level), held in sorted(self.held.items())
            ],
            "failures": [
                {
                    "number": verdict.number,
                    "problem": verdict.problem,
                    "kernel": str(derive(self.seed, verdict.number)),
                    "command": self.command(verdict),
                }
                for verdict in self.failures
            ],
        }


def _kind(verdict: Verdict) -> Kind:
    return verdict.family, verdict.dtype, verdict.isa
