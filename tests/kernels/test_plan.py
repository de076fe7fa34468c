"""The planner's choices where they are not close, and what it records of them."""

import numpy as np
import pytest
from matvec_checks import block_weights, target_of

from sparsejit.asm_templates.table import MATVEC_TEMPLATES, MatVecTemplate
from sparsejit.errors import InvalidInput
from sparsejit.ir.reference import stored_weights
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType
from sparsejit.machine.target import ISA_LEVELS, Target
from sparsejit.planner.cost import predict
from sparsejit.planner.family_costs import permute_steps
from sparsejit.planner.plan import OVERFLOWS_AT, plan, strategies


# The fastest family by at least 1.3x on one Zen 5 core, both instruction sets.
@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize(
    ("shape", "density", "block_rows", "family"),
    [
        ((256, 256), 0.1, 1, "permute"),
        ((1024, 1024), 0.1, 1, "permute"),
        ((768, 256), 0.05, 1, "permute"),
        ((768, 256), 0.1, 8, "broadcast"),
        ((256, 256), 0.1, 16, "broadcast"),
        ((768, 256), 1.0, 1, "dense"),
        ((1024, 1024), 1.0, 1, "dense"),
    ],
)
def test_auto_takes_the_family_that_measured_fastest(
    isa: str, shape: tuple[int, int], density: float, block_rows: int, family: str
) -> None:
    matrix = SparseMatrix(block_weights(shape, density, block_rows))
    assert plan(matrix, Target.named(isa)).chosen.template.family == family


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_every_family_of_the_target_is_a_candidate_in_order_of_cost(isa: str) -> None:
    matrix, target = SparseMatrix(block_weights((64, 48), 0.3)), Target.named(isa)
    choice = plan(matrix, target)
    rows = [t for t in MATVEC_TEMPLATES if t.made_for(target) and t.dtype is DType.FLOAT32]
    assert {c.template.name for c in choice.candidates} == {row.name for row in rows}
    costs = [candidate.cost.ns for candidate in choice.candidates]
    assert costs == sorted(costs) and choice.chosen is choice.candidates[0]
    assert choice.chosen.template.family in choice.reason


def test_a_named_strategy_overrides_the_price_but_not_the_record() -> None:
    matrix = SparseMatrix(block_weights((64, 48), 0.3))
    choice = plan(matrix, Target.named("avx2"), "immediate")
    assert choice.chosen.template.family == "immediate"
    assert len(choice.candidates) == len(plan(matrix, Target.named("avx2")).candidates) > 1
    assert "asked for" in choice.reason


@pytest.mark.parametrize("dtype", OVERFLOWS_AT)
def test_weights_beyond_a_dtype_are_refused(dtype: DType) -> None:
    limit = np.float32(OVERFLOWS_AT[dtype])
    target = Target.named("avx512")
    below = SparseMatrix(np.full((2, 2), -np.nextafter(limit, np.float32(0))))
    assert np.isfinite(stored_weights(below, dtype)).all()
    plan(below, target, dtype=dtype)
    with pytest.raises(InvalidInput, match=f"more than {dtype.value} can hold"):
        plan(SparseMatrix(np.full((2, 2), -limit)), target, dtype=dtype)


def test_an_unknown_strategy_is_named_with_the_known() -> None:
    matrix = SparseMatrix(np.eye(3))
    with pytest.raises(InvalidInput, match=f"'fast' is unknown; use one of {strategies()[0]}"):
        plan(matrix, Target.named("avx2"), "fast")


@pytest.mark.parametrize("row", MATVEC_TEMPLATES, ids=lambda row: row.name)
def test_an_empty_matrix_costs_next_to_nothing_but_in_dense(row: MatVecTemplate) -> None:
    empty = SparseMatrix(np.zeros((256, 256)))
    cost = predict(row.family, empty, target_of(row), dtype=row.dtype)
    assert (cost.ns < 25) == (row.family != "dense")


def test_permute_steps_count_a_diagonal_by_hand() -> None:
    """32 x 32 identity: two groups, each one step: its sixteen inputs lie in one vector."""
    assert permute_steps(SparseMatrix(np.eye(32)), Target.named("avx512"), DType.FLOAT32) == 2


def test_the_bound_names_the_cache_the_bytes_come_from() -> None:
    target = Target.named("avx512")
    small = predict("dense", SparseMatrix(np.ones((16, 16))), target)
    large = predict("dense", SparseMatrix(np.ones((400, 400))), target)
    assert small.bound == "execution"
    assert large.bound == "data from L2"
