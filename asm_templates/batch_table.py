"""Every kernel for a batch; `table` has those for one vector, and the naming law.

A batch template is called with the address of x in rdi and of y in rsi, in the layout of its
spec, under the same terms as a matrix-vector template.
"""

import math
from typing import NamedTuple

from sparsejit.asm_templates.batch import lowered_batch, whole
from sparsejit.asm_templates.batch.lowered_batch import BatchCounts, LoweredBatch
from sparsejit.asm_templates.lowered import Stages
from sparsejit.asm_templates.table import MATVEC_TEMPLATES, SHORT_NAMES, MatVecTemplate
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatMul
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler


class MatMulTemplate(NamedTuple):
    """One kernel; `each` is the matrix-vector kernel that it repeats, if any."""

    name: str
    family: str
    isa: str
    source: str
    dtype: DType
    requires: frozenset[str] = frozenset()
    each: MatVecTemplate | None = None

    def weight_change(self, matrix: SparseMatrix, target: Target) -> float:
        """That of the kernel it repeats; panels keep weights as they are."""
        return 0.0 if self.each is None else self.each.weight_change(matrix, target)

    @property
    def most_inputs(self) -> float:
        """As many as the repeated kernel takes."""
        return self.each.most_inputs if self.each else math.inf

    def made_for(self, target: Target) -> bool:
        """Whether the planner may choose it for `target`."""
        return self.isa == target.isa and self.requires <= target.instruction_sets

    def expect(self, spec: MatMul, matrix: SparseMatrix, target: Target) -> BatchCounts:
        """What the layer's zeros let expect."""
        return lowered_batch.expect(self.family, self._stages, spec, matrix, target)

    def lower(self, spec: MatMul, matrix: SparseMatrix, target: Target) -> LoweredBatch:
        """The batch as `emit` takes it, with the `counts` of what was made."""
        return lowered_batch.lower(self.family, self._stages, spec, matrix, target)

    @property
    def _stages(self) -> Stages | None:
        return self.each.stages if self.each else None

    def emit(self, asm: Assembler, lowered: LoweredBatch) -> None:
        """Append the code."""
        whole.emit(asm, lowered)


def _repeating(each: MatVecTemplate, family: str) -> MatMulTemplate:
    """The batch kernel that repeats a matrix-vector kernel."""
    name = each.name.replace("-", f"-{family}-", 1)
    source = "one column after the other"
    return MatMulTemplate(name, family, each.isa, source, each.dtype, each.requires, each)


_PANELS = tuple(
    MatMulTemplate(
        f"{SHORT_NAMES[dtype]}panels-{isa}",
        "panels",
        isa,
        "weights as code over dense columns, as in LIBXSMM's sparse kernels",
        dtype,
    )
    for dtype in (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
    for isa in ("avx512", "avx2")
)
MATMUL_TEMPLATES: tuple[MatMulTemplate, ...] = (
    *_PANELS,
    *(
        _repeating(each, family)
        for each in MATVEC_TEMPLATES
        for family in ("rows", "mixed")
        if family == "rows" or each.dtype is not DType.INT8  # panels sum float32 only
    ),
)
