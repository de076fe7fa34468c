"""Every kernel for a batch; `table` has those for one vector, and the naming law.

A batch template is called with the address of x in rdi and of y in rsi, in the layout of its
spec, under the same terms as a matrix-vector template.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from sparsejit.asm_templates.batch import whole
from sparsejit.asm_templates.table import MATVEC_TEMPLATES, MatVecTemplate
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatMul
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler


class MatMulTemplate(NamedTuple):
    """`emit` appends the kernel; `each` is the matrix-vector kernel that it repeats, if any."""

    name: str
    family: str
    isa: str
    emit: Callable[[Assembler, MatMul, SparseMatrix], None]
    source: str
    dtype: DType = DType.FLOAT32
    requires: frozenset[str] = frozenset()
    each: MatVecTemplate | None = None

    def made_for(self, target: Target) -> bool:
        """Whether the planner may choose it for `target`."""
        return self.isa == target.isa and self.requires <= target.instruction_sets


def _repeating(each: MatVecTemplate) -> Iterator[MatMulTemplate]:
    """The batch kernels that repeat a matrix-vector kernel; panels sum float32 only."""
    families = {"rows": whole.rows, "mixed": whole.mixed}
    for family, emit in families.items():
        if family == "rows" or each.dtype is not DType.INT8:
            yield MatMulTemplate(
                each.name.replace("-", f"-{family}-", 1),
                family,
                each.isa,
                partial(emit, each=each.emit),
                "issue 3",
                each.dtype,
                each.requires,
                each,
            )


_PANELS = tuple(
    MatMulTemplate(f"{short}-panels-{isa}", "panels", isa, whole.panels, "DESIGN section 4", dtype)
    for short, dtype in (("f32", DType.FLOAT32), ("bf16", DType.BFLOAT16), ("f16", DType.FLOAT16))
    for isa in ("avx512", "avx2")
)
MATMUL_TEMPLATES: tuple[MatMulTemplate, ...] = (
    *_PANELS,
    *(template for each in MATVEC_TEMPLATES for template in _repeating(each)),
)
