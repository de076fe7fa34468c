"""The compiled layer: a callable, and the record of what was built and why."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparsejit.api.checked_call import CheckedCall
from sparsejit.api.kernel_export import exported_kernel
from sparsejit.api.kernel_file import write_kernel
from sparsejit.api.options import KernelSource
from sparsejit.api.report import as_html, as_line, as_table, as_text, describe, weight_change
from sparsejit.artefact.export import export
from sparsejit.artefact.exported import c_name
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layer
from sparsejit.machine.target import Target
from sparsejit.planner.cost import lane_use
from sparsejit.planner.plan import Plan
from sparsejit.planner.prices import FAMILY_STEPS
from sparsejit.planner.split import Split
from sparsejit.runtime.copying import SharedCode
from sparsejit.runtime.program import Program
from sparsejit.runtime.trampoline import bind, call_trampoline
from sparsejit.x86.assembler import Image

if TYPE_CHECKING:
    from rich.table import Table

FloatArray = npt.NDArray[np.float32]


class Kernel(SharedCode):
    """y = activation(W x + bias) as machine code with the weights inside. Thread-safe.

    `pointer` is the address of a System V function `void kernel(const float *x, float *y)`,
    valid while this object lives. x is float32 (in_features,) and y float32 (out_features,), or
    those of a batch (see `MatMul`). A copy is the kernel itself, for it never changes;
    pickling keeps its weights and options, and compiles them anew where it is loaded.
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
        compile_again: Callable[[KernelSource], Kernel],
    ) -> None:
        self.spec = spec
        self.plan = choice
        self.split = division
        self.target = target
        self.compile_ms = compile_ms
        self._program = program
        self._source = source
        self._compile_again = compile_again
        self._statistics = {**matrix.statistics(), **_steps(matrix, choice, division, program)}
        self._checked_call = CheckedCall(program.memory.function(2), spec.x_shape, spec.y_shape)

    def __reduce__(self) -> tuple[Callable[[KernelSource], Kernel], tuple[KernelSource]]:
        return self._compile_again, (self._source,)

    def __repr__(self) -> str:
        return f"<{as_line(self.report())}>"

    def __rich__(self) -> Table:
        return as_table(self.report())

    def _repr_html_(self) -> str:
        return as_html(self.report(), self.split.lines())

    @property
    def pointer(self) -> int:
        """The address of the native function."""
        return self._program.pointer

    @property
    def shape(self) -> tuple[int, int]:
        """(out_features, in_features)."""
        return self.spec.out_features, self.spec.in_features

    @property
    def image(self) -> Image:
        """The code and its literals, position-independent, starting with the function."""
        return self._program.image

    @property
    def strategy(self) -> str:
        """The family of the kernel, as `compile_matrix(strategy=...)` lists them."""
        return self.plan.chosen.template.family

    @property
    def stats(self) -> dict[str, Any]:
        """Shape, nnz, density, block fill, strategy, isa, threads, code and pool bytes, time.

        `padding_bytes` are those of the pool that are never read (`asm_templates.shared.padding`).
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

    def bind(self, x: FloatArray, out: FloatArray) -> Callable[[], None]:
        """A function without arguments that computes out from x, as they are when it is called.

        It adds some 15 ns to the native time, holds both arrays, and keeps the
        interpreter lock. Raises InvalidInput as a call does.
        """
        self._checked_call.addresses(x, out)
        return bind(self._program.memory, x, out)

    def report(self) -> dict[str, Any]:
        """`stats`, and what `explain` says, as plain data that JSON can hold.

        `candidates` are in order of predicted time, with `predicted_ns` and, where `tune` timed
        them, `measured_ns`. `weights_change_by` is the most by which the kernel changes a weight,
        as a share of itself. `rates` says whose speeds the predictions assume.
        """
        asked = describe(self.spec, self.plan, self.split, self.target, self._weight_change)
        return {**self.stats, **asked}

    @cached_property
    def _weight_change(self) -> float:
        return weight_change(self.split, self.target)

    def explain(self) -> str:
        """Why this kernel: what was built, then every candidate with its predicted cost."""
        return as_text(self.report(), self.split.lines())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write weights, bias and options, for `sparsejit.load` to compile anew where it runs.

        A target of "native" is that of the machine that loads. Raises InvalidInput where the file
        cannot be written.
        """
        write_kernel(path, self._source)

    def export(
        self, path: str | os.PathLike[str], header: str | os.PathLike[str] | None = None
    ) -> None:
        """Write `int NAME_run(const float *x, float *y)` for C; NAME is the file's, without .o.

        path: an object file (.o) to link, or a shared object (.so), which needs a linker on PATH.
        header: a C header (.h) with sizes, error codes and the prototype.
        The function gives the same bits as a call, from any number of threads at once, and returns
        0, or -1 having done nothing where the processor lacks an instruction set that it uses.

        Raises InvalidInput for other names, files that cannot be written, and a kernel on several
        threads, whose workers are this process's; MissingDependency where no linker is there.
        """
        function = exported_kernel(c_name(path), self.spec, self.split, self.image, self.target)
        export(function, path, header)

    def disassemble(self) -> str:
        """The instructions as emitted, with the literals they read."""
        return "\n".join(self._program.image.listing())


def _steps(
    matrix: SparseMatrix, choice: Plan, division: Split, program: Program
) -> dict[str, float]:
    """What a kernel on one thread counted, and its share of lanes in use; {} if it counts none."""
    template, counts = choice.chosen.template, program.image.counts
    if len(division.parts) > 1 or template.family not in FAMILY_STEPS or not counts.get("steps"):
        return {}
    use = lane_use(template.family, matrix, counts["steps"], Target.named(template.isa))
    return {**counts, "lane_use": use}
