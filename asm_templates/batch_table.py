"""Every kernel for a batch; `table` has those for one vector, and the naming law.

A batch template is called with the address of x in rdi and of y in rsi, in the layout of its
spec, under the same terms as a matrix-vector template.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from sparsejit.asm_templates.batch import amx, amx_layout, csr, lowered_batch, whole
from sparsejit.asm_templates.batch.csr_shape import Arithmetic
from sparsejit.asm_templates.batch.panel_sums import MOST_INTEGERS
from sparsejit.asm_templates.dense_product import layer
from sparsejit.asm_templates.table import MATVEC_TEMPLATES, SHORT_NAMES, MatVecTemplate
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatMul
from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler


class BatchStages(NamedTuple):
    """How a family counts, lowers and emits a batch: as `lowered.Stages` does for one vector."""

    expect: Callable[[MatMul, SparseMatrix, Target], Any]
    lower: Callable[[MatMul, SparseMatrix, Target], Any]
    emit: Callable[[Assembler, Any], None]


class MatMulTemplate(NamedTuple):
    """One kernel; `each` is the matrix-vector kernel that it repeats, if any.

    `workspace_inputs` is how many inputs its workspace on the stack can hold.
    """

    name: str
    family: str
    isa: str
    stages: BatchStages
    source: str
    dtype: DType
    requires: frozenset[str] = frozenset()
    each: MatVecTemplate | None = None
    workspace_inputs: float = math.inf

    def weight_change(self, matrix: SparseMatrix, target: Target) -> float:
        """That of the kernel it repeats; all others keep weights as they are."""
        return 0.0 if self.each is None else self.each.weight_change(matrix, target)

    @property
    def takes_vast(self) -> bool:
        """Whether it, and the kernel it repeats, follows the nonzeros alone."""
        alone = self.family in ("panels", "csr")
        return alone if self.each is None else self.each.takes_vast

    @property
    def most_inputs(self) -> float:
        """As many as the repeated kernel takes, or the workspace holds."""
        return self.each.most_inputs if self.each else self.workspace_inputs

    def made_for(self, target: Target) -> bool:
        """Whether the planner may choose it for `target`."""
        return self.isa == target.isa and self.requires <= target.instruction_sets

    def expect(self, spec: MatMul, matrix: SparseMatrix, target: Target) -> Any:
        """What the layer's zeros let expect."""
        return self.stages.expect(spec, matrix, target)

    def lower(self, spec: MatMul, matrix: SparseMatrix, target: Target) -> Any:
        """The batch as `emit` takes it, with the `counts` of what was made."""
        return self.stages.lower(spec, matrix, target)

    def emit(self, asm: Assembler, lowered: Any) -> None:
        """Append the code."""
        self.stages.emit(asm, lowered)


def _whole_batch(
    family: str,
    each: MatVecTemplate | None = None,
    arithmetic: Arithmetic = Arithmetic.FLOATS,
) -> BatchStages:
    """Panels, a repeated kernel, or both."""
    of_each = each.stages if each else None
    how = arithmetic, family, of_each
    expect, lower = partial(lowered_batch.expect, *how), partial(lowered_batch.lower, *how)
    return BatchStages(expect, lower, whole.emit)


def _repeating(each: MatVecTemplate, family: str) -> MatMulTemplate:
    """The batch kernel that repeats a matrix-vector kernel."""
    name = each.name.replace("-", f"-{family}-", 1)
    source = "one column after the other"
    stages = _whole_batch(family, each)
    return MatMulTemplate(name, family, each.isa, stages, source, each.dtype, each.requires, each)


def _csr(arithmetic: Arithmetic) -> BatchStages:
    """A loop over compressed rows."""
    expect, lower = partial(csr.expect, arithmetic), partial(csr.lower, arithmetic)
    return BatchStages(expect, lower, csr.emit)


_CSR_SOURCE = "compressed sparse rows in blocks of columns: Saad 2003; Im and Yelick 2001"
_PANELS_SOURCE = "weights as code over dense columns, as in LIBXSMM's sparse kernels"
_INT8: tuple[tuple[str, str, Arithmetic, frozenset[str]], ...] = (
    ("avx512", "avx512", Arithmetic.BYTES, frozenset({"avx512_vnni"})),
    ("floats-avx512", "avx512", Arithmetic.INTEGERS, frozenset()),
    ("avx2", "avx2", Arithmetic.INTEGERS, frozenset()),
)
_FLOATS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
_BY_ITSELF = (
    ("panels", _whole_batch("panels"), _PANELS_SOURCE),
    ("csr", _csr(Arithmetic.FLOATS), _CSR_SOURCE),
    (
        *("dense", BatchStages(layer.expect, layer.lower, layer.emit)),
        "outer products in registers: Goto and van de Geijn 2008",
    ),
)
_TILES = MatMulTemplate(
    "int8-tiles-avx512",
    "int8-tiles",
    "avx512",
    BatchStages(amx_layout.expect, amx_layout.lower, amx.emit),
    "compressed weights expanded into AMX tiles: SparAMX, AbouElhamayed et al. 2025",
    DType.INT8,
    frozenset({"amx_tile", "amx_int8", "avx512_vbmi2"}),
    workspace_inputs=amx_layout.MOST_INPUTS,
)
MATMUL_TEMPLATES: tuple[MatMulTemplate, ...] = (
    *(
        MatMulTemplate(f"{SHORT_NAMES[dtype]}{family}-{isa}", family, isa, stages, source, dtype)
        for family, stages, source in _BY_ITSELF
        for dtype in _FLOATS
        for isa in ("avx512", "avx2")
    ),
    *(
        MatMulTemplate(
            f"int8-{family}-{name}",
            family,
            isa,
            _csr(arithmetic) if family == "csr" else _whole_batch(family, None, arithmetic),
            _CSR_SOURCE if family == "csr" else _PANELS_SOURCE,
            DType.INT8,
            requires,
            None,
            MOST_INTEGERS if (family, arithmetic) == ("panels", Arithmetic.INTEGERS) else math.inf,
        )
        for family in ("panels", "csr")
        for name, isa, arithmetic, requires in _INT8
    ),
    *(
        _repeating(each, family)
        for each in MATVEC_TEMPLATES
        for family in ("rows", "mixed")
        if family == "rows" or each.dtype is not DType.INT8  # int8 is panels or rows
    ),
    _TILES,
)
