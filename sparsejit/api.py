"""From weights to a callable kernel."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput, UnsupportedTarget
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, DType, Layer, Layout, MatMul, MatVec
from sparsejit.machine.target import Target
from sparsejit.planner.batch_plan import plan_batch
from sparsejit.planner.cost import lane_use
from sparsejit.planner.plan import AUTO, Plan, plan
from sparsejit.planner.prices import FAMILY_PRICES
from sparsejit.planner.split import Split, parse_threads, split, undivided
from sparsejit.planner.tuning import tuned
from sparsejit.runtime.program import Program, build, debug_level
from sparsejit.runtime.trampoline import bind, call_trampoline
from sparsejit.x86.assembler import Image

FloatArray = npt.NDArray[np.float32]
Progress = Callable[[str, float], None]


class Kernel:
    """y = activation(W x + bias) as machine code with the weights inside. Thread-safe.

    `pointer` is the address of a System V function `void kernel(const float *x, float *y)`,
    valid while this object lives. x is float32 (in_features,) and y float32 (out_features,), or
    those of a batch (see `MatMul`).
    """

    def __init__(
        self,
        spec: Layer,
        matrix: SparseMatrix,
        choice: Plan,
        division: Split,
        program: Program,
        compile_ms: float,
    ) -> None:
        self.spec = spec
        self.plan = choice
        self.split = division
        self.compile_ms = compile_ms
        self._program = program
        self._statistics = {**matrix.statistics(), **_steps(matrix, choice, division, program)}
        self._checked_call = _CheckedCall(program.memory.function(2), spec.x_shape, spec.y_shape)

    @property
    def pointer(self) -> int:
        return self._program.pointer

    @property
    def image(self) -> Image:
        """The code and its literals, position-independent, starting with the function."""
        return self._program.image

    @property
    def strategy(self) -> str:
        """The family of the kernel: permute, broadcast, immediate or dense."""
        return self.plan.chosen.template.family

    @property
    def stats(self) -> dict[str, Any]:
        """Shape, nnz, density, block fill, strategy, isa, threads, code and pool bytes, time.

        `padding_bytes` are those of the pool that are never read (`asm_templates.padding`).
        Of permute kernels on one thread also `steps` and `lane_use`, the share of a step's lanes
        that do not idle; where rows are grouped, the `least_steps_ungrouped` that they had needed.
        """
        image = self.image
        return {
            **self._statistics,
            "strategy": self.strategy,
            "isa": self.plan.chosen.template.isa,
            "threads": len(self.split.parts),
            "code_bytes": image.code_bytes - image.counts.get("gap_bytes", 0),
            "pool_bytes": image.pool_bytes,
            "padding_bytes": image.counts.get("padding_bytes", 0),
            "compile_ms": self.compile_ms,
        }

    def __call__(self, x: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """Compute into `out` (made if absent) and return it.

        Raises InvalidInput unless x and out are C-contiguous float32 arrays of the right shape
        that do not overlap.
        """
        if out is None:
            out = np.empty(self.spec.y_shape, np.float32)
        result: FloatArray = self._trampoline(x, out)
        return result

    @cached_property
    def _trampoline(self) -> Callable[[Any, Any], Any]:
        spec, memory = self.spec, self._program.memory
        return call_trampoline(memory, spec.x_shape, spec.y_shape, self._checked_call)

    def bind(self, x: FloatArray, y: FloatArray) -> Callable[[], None]:
        """A function without arguments that computes y from x, as they are when it is called.

        It adds some 20 ns to the native time, holds both arrays, and keeps the interpreter lock.
        Raises InvalidInput as a call does.
        """
        self._checked_call.addresses(x, y)
        return bind(self._program.memory, x, y)

    def explain(self) -> str:
        """Why this kernel: every candidate with its predicted cost, then what was built."""
        stats = self.stats
        lines = [
            f"{self.spec.out_features} x {self.spec.in_features}, {self.spec.case}, "
            f"{stats['nnz']} nonzeros "
            f"({stats['density']:.2%}), 1x8 blocks {stats['fill_1x8']:.0%} full",
            f"chosen: {self.plan.chosen.template.name}: {self.plan.reason}",
            f"built: {stats['code_bytes']} bytes of code, {stats['pool_bytes']} of literals, "
            f"in {self.compile_ms:.1f} ms",
            *self._grouping(),
            *self.split.lines(),
            f"{'candidate':28s}   steps     code     data  predicted ns  measured  bound by",
        ]
        for candidate in self.plan.candidates:
            name, cost = candidate.template.name, candidate.cost
            measured = self.plan.measured_ns.get(name)
            lines.append(
                f"{name:28s}{cost.steps:8d}{cost.code_bytes:9d}{cost.data_bytes:9d}{cost.ns:14.0f}"
                f"{'-' if measured is None else f'{measured:.0f}':>10s}  {cost.bound}"
            )
        return "\n".join(lines)

    def _grouping(self) -> list[str]:
        """What `stats` says of steps, in words."""
        stats = self.stats
        if "lane_use" not in stats:
            return []
        ungrouped = stats.get("least_steps_ungrouped", stats["steps"])
        line = f"steps: {stats['steps']}, {stats['lane_use']:.0%} of their lanes in use"
        grouped = ungrouped > stats["steps"]
        return [f"{line}; at least {ungrouped} with rows as they come" if grouped else line]

    def disassemble(self) -> str:
        """The instructions as emitted, with the literals they read."""
        return "\n".join(self._program.image.listing())


def compile_matrix(
    weights: Any,
    bias: Any = None,
    activation: str | Activation | None = None,
    batch: int = 1,
    dtype: str = "float32",
    strategy: str = AUTO,
    target: str | Target = "native",
    tune: bool = False,
    threads: int | str = 1,
    layout: str | Layout = Layout.BATCH_MAJOR,
    input_scale: float | None = None,
    progress: Progress = lambda stage, share: None,
) -> Kernel:
    """Compile y = activation(W x + bias) for weights of shape (out_features, in_features).

    `weights` and `bias` are arrays or torch tensors; zeros cost nothing. `activation` is none,
    relu, tanh or sigmoid. `dtype` is how the weights are stored: float32, bfloat16 or float16,
    all else being float32; or int8, which also quantises x, in steps of `input_scale` or else of
    its largest magnitude / 127, and sums integers. `strategy` is auto or a kernel family. `target`
    is "native", a level such as "avx2", or a Target. `tune` times the most promising kernels here,
    or recalls earlier times, and takes the fastest (see `tuning.py`). `threads` is how many may
    share the rows where that pays, or "auto" for one a core (see `split.py`). With `batch` above
    1, x is (batch, in_features) and y (batch, out_features), or (in_features, batch) and
    (out_features, batch) where `layout` is feature-major, which is faster; a batch runs on one
    thread. `progress` is told each stage as it begins and the share of the work done by then, 0
    to 1. Raises InvalidInput for arguments that make no sense and UnsupportedTarget for a target
    this machine cannot run.
    """
    started = time.perf_counter()
    progress("reading the weights", 0.0)
    columns, order = _checked_batch(batch), Layout.parse(layout)
    matrix = SparseMatrix(_to_numpy(weights))
    each = MatVec(
        matrix.out_features,
        matrix.in_features,
        _checked_bias(bias, matrix.out_features),
        Activation.parse(Activation.NONE if activation is None else activation),
        DType.parse(dtype),
        input_scale,
    )
    machine, most_threads = _resolve_target(target), parse_threads(threads)

    def planned(layer: Layer, rows: SparseMatrix) -> Plan:
        if isinstance(layer, MatMul):
            choice = plan_batch(layer, rows, machine, strategy)
        else:
            choice = plan(layer, rows, machine, strategy)
        return tuned(choice, layer, rows, machine) if tune and strategy == AUTO else choice

    spec = each if columns == 1 else MatMul(each, columns, order)
    progress("choosing a kernel", 0.1)
    choice = planned(spec, matrix)
    if isinstance(spec, MatMul):
        division = undivided(spec, matrix, choice, "a batch runs on one")
    else:
        division = split(spec, matrix, choice, machine, most_threads, planned)
    progress("writing the code", 0.8)
    program = build(choice.chosen.template.name, machine, division.emit)
    progress("done", 1.0)
    compile_ms = 1e3 * (time.perf_counter() - started)
    kernel = Kernel(spec, matrix, choice.record(), division.record(), program, compile_ms)
    if debug_level() >= 1:
        print(f"sparsejit: {kernel.explain()}", file=sys.stderr)
    return kernel


def _steps(
    matrix: SparseMatrix, choice: Plan, division: Split, program: Program
) -> dict[str, float]:
    """What a kernel on one thread counted, and its share of lanes in use; {} if it counts none."""
    template, counts = choice.chosen.template, program.image.counts
    if len(division.parts) > 1 or template.family not in FAMILY_PRICES or not counts.get("steps"):
        return {}
    use = lane_use(template.family, matrix, counts["steps"], Target.named(template.isa))
    return {**counts, "lane_use": use}


@dataclass(frozen=True)
class _CheckedCall:
    """`call(x, out)` through ctypes: for arguments that the gate does not take as they are."""

    native: Callable[..., None]
    x_shape: tuple[int, ...]
    y_shape: tuple[int, ...]

    def __call__(self, x: FloatArray, out: FloatArray) -> FloatArray:
        self.native(*self.addresses(x, out))
        return out

    def addresses(self, x: FloatArray, out: FloatArray) -> tuple[int, int]:
        """Where x and out lie; raises InvalidInput where the kernel cannot use them."""
        source = _address(x, "x", self.x_shape)
        destination = _address(out, "out", self.y_shape)
        if not out.flags.writeable:
            raise InvalidInput("out is read-only; give a writable array")
        if source < destination + out.nbytes and destination < source + x.nbytes:
            raise InvalidInput("x and out share memory; give out an array of its own")
        return source, destination


def _to_numpy(values: Any) -> Any:
    """A torch tensor's values as numpy; anything else as it is."""
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values


def _checked_batch(batch: int) -> int:
    if isinstance(batch, bool) or not isinstance(batch, int | np.integer) or batch < 1:
        raise InvalidInput(f"batch={batch!r}; give a whole number of at least 1")
    return int(batch)


def _checked_bias(bias: Any, out_features: int) -> FloatArray | None:
    if bias is None:
        return None
    array = np.array(_to_numpy(bias), np.float32)
    if array.shape != (out_features,):
        raise InvalidInput(f"bias has shape {array.shape}; give ({out_features},)")
    if not np.isfinite(array).all():
        where = int(np.flatnonzero(~np.isfinite(array))[0])
        raise InvalidInput(f"bias[{where}] is {array[where]}; remove NaN and infinite values")
    return array


def _resolve_target(target: str | Target) -> Target:
    machine = Target.detect()
    wanted = machine if target == "native" else target
    if isinstance(wanted, str):
        wanted = Target.named(wanted)
    if not wanted.runs_on(machine):
        raise UnsupportedTarget(
            f"target {wanted.isa} does not run here (this machine, or SPARSEJIT_MAX_ISA, allows "
            f"{machine.isa}); choose target='native'"
        )
    return wanted


def _address(array: FloatArray, name: str, shape: tuple[int, ...]) -> int:
    if not isinstance(array, np.ndarray):
        raise InvalidInput(f"{name} is a {type(array).__name__}; give a numpy float32 array")
    if array.dtype != np.float32:
        raise InvalidInput(f"{name} has dtype {array.dtype}; convert it with astype(np.float32)")
    if array.shape != shape:
        raise InvalidInput(f"{name} has shape {array.shape}; give {shape}")
    if not array.flags.c_contiguous:
        raise InvalidInput(f"{name} is not contiguous; pass np.ascontiguousarray({name})")
    return int(array.ctypes.data)
