"""The processor that an exported kernel says it needs."""

import pytest
from matvec_checks import block_weights, target_of

from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Layer, MatMul, MatVec
from sparsejit.x86.assembler import Assembler

LANES = 16


@pytest.mark.parametrize("row", [*MATVEC_TEMPLATES, *MATMUL_TEMPLATES], ids=lambda row: row.name)
def test_code_needs_no_more_than_its_row_says(row: Template) -> None:
    matrix, target = SparseMatrix(block_weights((20, 30), 0.3)), target_of(row)
    spec: Layer = MatVec(20, 30, dtype=row.dtype)
    if row in MATMUL_TEMPLATES:
        spec = MatMul(spec, LANES + 4)
    asm = Assembler(target)
    row.emit(asm, row.lower(spec, matrix, target))
    needed = asm.finish().instruction_sets
    assert needed
    assert needed <= target.instruction_sets
