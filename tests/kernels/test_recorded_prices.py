"""The prices that a core's data gives known layers: those on Zen 5 are where they always were."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from matvec_checks import block_weights

from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.asm_templates.families import MATVEC_TEMPLATES
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatMul, MatVec
from sparsejit.machine.target import INSTRUCTION_SETS, Target
from sparsejit.planner.batch_plan import price_batch
from sparsejit.planner.cost import price

# Of every template that there was on 22 November 2026, from the zeros alone, in nanoseconds.
RECORDED = json.loads((Path(__file__).parent / "zen5_prices.json").read_text())


@cache
def matrix_of(rows: int, columns: int, density: float, block: int) -> SparseMatrix:
    return SparseMatrix(block_weights((rows, columns), density, block))


@pytest.mark.parametrize("row", RECORDED, ids=str)
def test_prices_on_zen5_are_as_recorded(row: dict[str, Any]) -> None:
    target = Target.named(row["isa"])
    if row["isa"] == "avx512":
        target = replace(target, instruction_sets=INSTRUCTION_SETS)
    matrix = matrix_of(*row["shape"], row["density"], row["block"])
    each = MatVec(*row["shape"], dtype=DType.parse(row["dtype"]))
    batch = row["batch"]
    table = {t.name: t for t in (MATVEC_TEMPLATES if batch == 1 else MATMUL_TEMPLATES)}
    for name, ns in row["ns"].items():
        if batch == 1:
            cost = price(table[name].expect(each, matrix, target))
        else:
            cost = price_batch(table[name].expect(MatMul(each, batch), matrix, target))
        assert cost.ns == pytest.approx(ns, rel=0.01), name
