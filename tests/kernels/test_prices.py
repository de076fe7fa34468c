"""Prices of every kernel, with the data of every core: more work never costs less."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
from matvec_checks import block_weights

from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import MatMul, MatVec
from sparsejit.machine.microarchitecture import MICROARCHITECTURES, core_named
from sparsejit.machine.target import INSTRUCTION_SETS, Target
from sparsejit.planner.batch_plan import price_batch
from sparsejit.planner.cost import price
from sparsejit.planner.int8_plan import copy_cost

# Cores with data of their own; the others have the unknown one's.
CORES = [key for key in MICROARCHITECTURES if core_named(key).data_of == key]
# Counts of steps are estimates from the zeros; a few more zeros may seem to cost a little.
ROUNDING = 0.99
every_core = pytest.mark.parametrize("core", CORES)


@cache
def matrix_of(rows: int, columns: int, density: float) -> SparseMatrix:
    return SparseMatrix(block_weights((rows, columns), density, 8))


def target_with(core: str, isa: str) -> Target:
    sets = INSTRUCTION_SETS if isa == "avx512" else Target.named(isa).instruction_sets
    return replace(Target.named(isa), instruction_sets=sets, core=core_named(core))


def assert_grows(prices: list[float]) -> None:
    assert prices[0] > 0
    assert all(more >= ROUNDING * less for less, more in pairwise(prices))


@every_core
@pytest.mark.parametrize("row", MATVEC_TEMPLATES, ids=lambda row: row.name)
def test_more_weights_and_larger_layers_cost_no_less(row: Template, core: str) -> None:
    target = target_with(core, row.isa)

    def ns(rows: int, columns: int, density: float) -> float:
        spec = MatVec(rows, columns, dtype=row.dtype)
        return price(row.expect(spec, matrix_of(rows, columns, density), target)).ns

    assert_grows([ns(256, 256, density) for density in (0.02, 0.1, 0.3, 0.8)])
    assert_grows([ns(size, size, 0.1) for size in (64, 256, 1024)])


@every_core
@pytest.mark.parametrize("row", MATMUL_TEMPLATES, ids=lambda row: row.name)
def test_more_weights_and_columns_cost_no_less(row: Template, core: str) -> None:
    target = target_with(core, row.isa)

    def ns(density: float, batch: int) -> float:
        spec = MatMul(MatVec(256, 256, dtype=row.dtype), batch)
        return price_batch(row.expect(spec, matrix_of(256, 256, density), target)).ns

    assert_grows([ns(density, 16) for density in (0.02, 0.1, 0.3, 0.8)])
    assert_grows([ns(0.1, batch) for batch in (16, 64, 256)])


@every_core
@pytest.mark.parametrize("isa", ["avx512", "avx2"])
def test_inputs_of_a_model_come_from_beyond_l2(core: str, isa: str) -> None:
    target = target_with(core, isa)
    costs = [copy_cost(target.l2_bytes // 2, target, is_far) for is_far in (False, True)]
    assert [cost.bound for cost in costs] == ["data from L2", "data from L3"]
    near, far = (cost.ns for cost in costs)
    assert near < far
    assert copy_cost(1 << 40, target, is_far=True) == copy_cost(1 << 40, target)
