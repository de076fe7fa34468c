"""The compiled layer, and its file.

    kernel_to_data, read_kernel   a kernel as a file: weights, bias and options; it is compiled
                                  again where it is loaded
    Kernel                        a callable, with a record of its kernel and the reasons for it
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.api.compiled import Compiled
from sparsejit.api.options import KernelSource, Options
from sparsejit.api.reports.kernel_report import kernel_report
from sparsejit.api.reports.report import Report
from sparsejit.artefact import sealed
from sparsejit.artefact.arrays import ArrayReader, ArrayWriter
from sparsejit.artefact.exported import ExportedFunction, Macro
from sparsejit.artefact.records import RecordCodec, fields_of
from sparsejit.artefact.sealed import SealedFile
from sparsejit.asm_templates.families import STEP_KINDS
from sparsejit.errors import DamagedFile, check_flags
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layer, MatMul
from sparsejit.lowering.products.linear import planned_facts
from sparsejit.machine.target import Target
from sparsejit.planner.cost import lane_use
from sparsejit.planner.kernel_choice import Plan
from sparsejit.planner.split import Split
from sparsejit.runtime.native_call import NativeCall
from sparsejit.runtime.native_timing import aligned, time_native
from sparsejit.runtime.program import Program
from sparsejit.runtime.python_objects import ArrayType

KIND = "kernel"
_RECORDS = RecordCodec((Options,))


def kernel_to_data(source: KernelSource) -> tuple[dict[str, Any], sealed.Tensors]:
    """Return header and tensors. Raises InvalidInput for options that cannot be saved."""
    writer, given = ArrayWriter(), {"weights": source.weights, "bias": source.bias}
    arrays = {name: writer.add(array) for name, array in given.items() if array is not None}
    return {"options": _RECORDS.encode(source.options), "arrays": arrays}, writer.tensors


def read_kernel(header: Any, tensors: sealed.Tensors) -> KernelSource:
    """Return the source that `kernel_to_data` wrote.

    Raises DamagedFile, without the file's name, for other data.
    """
    described, arrays = fields_of(header, options=dict, arrays=dict)
    options: Options = _RECORDS.decode(described)
    reader = ArrayReader(tensors)
    found = {name: reader.matrix(data) for name, data in arrays.items()}
    reader.finish()
    if found.keys() - {"bias"} != {"weights"}:
        raise DamagedFile("has arrays of no kernel")
    weights, bias = found["weights"], found.get("bias")
    if len(weights.shape) != 2 or {str(array.dtype) for array in found.values()} != {"float32"}:
        raise DamagedFile("has weights that are no float32 matrix")
    if isinstance(bias, CompressedRows):
        raise DamagedFile("has a bias that is a matrix")
    return KernelSource(weights, bias, options)


FloatArray = npt.NDArray[np.float32]


class Kernel(Compiled):
    """y = activation(W x + bias) as machine code with the weights inside. Thread-safe.

    Call it with x, float32 (in_features,), for y, float32 (out_features,), or with a batch as it
    was compiled for. `pointer` is the address of a System V function `void kernel(const float *x,
    float *y)`, valid while this object lives.

    Attributes:
        shape: (out_features, in_features)
        strategy: the family of the kernel
        stats: sizes in bytes, counts, and the time to compile in milliseconds
        pointer: the address of the native function
    """

    def __init__(
        self,
        spec: Layer,
        matrix: SparseMatrix,
        choice: Plan,
        division: Split,
        program: Program,
        target: Target,
        compile_ms: float,
        source: KernelSource,
    ) -> None:
        self.spec = spec
        self.plan = choice
        self.split = division
        self.target = target
        self.compile_ms = compile_ms
        self._code = program
        self._facts = planned_facts(spec, matrix, choice)
        self._source = source
        self._statistics = {**matrix.statistics(), **_steps(matrix, choice, division, program)}
        x, y = (
            ArrayType("float32", shape, name)
            for shape, name in ((spec.x_shape, "x"), (spec.y_shape, "out"))
        )
        self._call = NativeCall(program.memory, [x], [y], workspace_bytes=None)

    @property
    def title(self) -> str:
        """Sizes, dtype, share of zeros and the kernel, in one line."""
        spec, threads = self.spec, len(self.split.parts)
        batch = f", batch {spec.batch} {spec.layout.value}" if isinstance(spec, MatMul) else ""
        return (
            f"Kernel {spec.out_features} x {spec.in_features}, {spec.dtype.value}, "
            f"{1 - self._statistics['density']:.1%} zero{batch}: {self.plan.chosen.template.name}"
            + (f", {threads} threads" if threads > 1 else "")
        )

    @property
    def program(self) -> Program:
        return self._code

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""
        return self.spec.out_features, self.spec.in_features

    @property
    def strategy(self) -> str:
        """The family of the kernel, as `compile_matrix(strategy=...)` lists them."""
        return self.plan.chosen.template.family

    @property
    def stats(self) -> dict[str, Any]:
        """Shape, nnz, density, block fill, strategy, isa, threads, bytes of code and pool, time.

        `padding_bytes` are bytes of the pool that are never read (`asm_templates.shared.padding`).
        Permute kernels on one thread also have `steps` and `lane_use`, the share of a step's lanes
        that do not idle; where rows are grouped, also `least_steps_ungrouped`, the least number of
        steps without grouping.
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
        """Compute y from x. An x that is not contiguous is copied.

        Args:
            x: float32, with the shape that the kernel was compiled for
            out: float32, contiguous; y is written there. By default a new array.

        Returns:
            `out`, or the new array.

        Raises:
            InvalidInput: x or out has another dtype or shape; out is not contiguous, is read-only,
                or shares memory with x
        """
        result: FloatArray = self._run(x) if out is None else self._run(x, out)
        return result

    @cached_property
    def _run(self) -> Callable[..., Any]:
        return self._call.run

    def bind(self, x: FloatArray, out: FloatArray) -> Callable[[], None]:
        """Return a function without arguments that computes out from the current values of x.

        It adds some 15 ns to the native time, holds both arrays, and keeps the interpreter lock.

        Args:
            x: as for a call, contiguous
            out: as for a call

        Raises:
            InvalidInput: as a call does, and where x is not contiguous
        """
        return self._call.bind([x], [out])

    def explain(self, *, measure: bool = False) -> Report:
        """Report the kernel, the reason for it, and every candidate with its predicted cost.

        Args:
            measure: run the kernel on random x for up to half a second

        Returns:
            A report to print. `weights_change_by` in its `facts` is the most by which the kernel
                changes a weight, as a share of the weight; `rates` is the origin of the speeds that
                the predictions assume.
        """
        check_flags(measure=measure)
        ns = self._measured_ns() if measure else None
        facts = self._facts, self.split, self.target
        return kernel_report(self.spec, *facts, self.title, self.stats, ns)

    def _measured_ns(self) -> float:
        x = aligned(np.random.default_rng(0).standard_normal(self.spec.x_shape, np.float32))
        y = aligned(np.zeros(self.spec.y_shape, np.float32))
        return time_native(self.pointer, (x.ctypes.data, y.ctypes.data)).median_ns

    def _saved(self) -> SealedFile:
        return SealedFile(KIND, *kernel_to_data(self._source))

    def _exported(self, name: str) -> ExportedFunction:
        spec = self.spec
        x, y = (
            f"float {label}" + "".join(f"[{size}]" for size in shape)
            for label, shape in (("x", spec.x_shape), ("y", spec.y_shape))
        )
        return ExportedFunction(
            name,
            self.image,
            self.target,
            "const float *x, float *y",
            returns_status=False,
            macros=(
                Macro("IN_FEATURES", spec.in_features, "columns of the weights"),
                Macro("OUT_FEATURES", spec.out_features, "rows of the weights"),
                Macro("X_SIZE", prod(spec.x_shape), "floats that x points to"),
                Macro("Y_SIZE", prod(spec.y_shape), "floats that y points to"),
            ),
            about=(f"y = activation(W x + bias): {spec.case}.", f"{x} and {y} must not overlap."),
            threads=len(self.split.parts),
        )


def _steps(
    matrix: SparseMatrix, choice: Plan, division: Split, program: Program
) -> dict[str, float]:
    """Return the counts of a kernel on one thread, and its `lane_use`; {} if it has no steps."""
    template, counts = choice.chosen.template, program.image.counts
    if len(division.parts) > 1 or template.family not in STEP_KINDS or not counts.get("steps"):
        return {}
    use = lane_use(template.family, matrix, counts["steps"], Target.named(template.isa))
    return {**counts, "lane_use": use}
