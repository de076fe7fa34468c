"""Which kernels keep an index in the weight, by how much that changes one, and `exact=True`."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matvec_checks import compile_kernel, scattered, target_of, templates_of

import sparsejit
from sparsejit.asm_templates.batch_families import MATMUL_TEMPLATES
from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.errors import InvalidInput
from sparsejit.ir.reference import stored_weights
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatMul, MatVec
from sparsejit.machine.target import ISA_LEVELS, Target
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.planner.batch_plan import plan_batch
from sparsejit.planner.kernel_choice import plan

FLOAT_ROWS = [row for row in MATVEC_TEMPLATES if row.dtype is not DType.INT8]
EVERY_FAMILY = [
    one
    for family in dict.fromkeys(row.family for row in FLOAT_ROWS)
    for one in templates_of(family)
]
CHANGED_BY = {
    "f32-permute-avx2": 2.0**-21,
    **{f"{dtype}-permute-inline-avx512": 2.0**-19 for dtype in ("f32", "bf16", "f16")},
    **{f"{dtype}-permute-inline-avx2": 2.0**-21 for dtype in ("f32", "bf16", "f16")},
    "f32-lane16-avx512": 2.0**-20,
    "bf16-lane16-avx512": 2.0**-20,
    "f32-lookup-avx512": 2.0**-17,
}
# bfloat16 has 8 bits, float16 11; it rounds a sum some 30 times.
ROUNDING = {"dense-pairs": 2.0**-8, "halves": 2.0**-6}
# So that a look-up of a small matrix streams from beyond it, as of large ones on a real processor.
SMALL_L2 = 4096


def weights_in(row: Template, target: Target, weights: np.ndarray) -> np.ndarray:
    """The weights that a kernel multiplies by, column by column: y of each unit vector."""
    spec, matrix = MatVec(*weights.shape, dtype=row.dtype), SparseMatrix(weights)
    memory = ExecutableMemory(compile_kernel(row, spec, matrix, target).data)
    native, y = memory.function(2), np.empty(weights.shape[::-1], np.float32)
    for column, x in enumerate(np.eye(weights.shape[1], dtype=np.float32)):
        native(x.ctypes.data, y[column].ctypes.data)
    return y.T


@pytest.mark.parametrize("l2_bytes", [SMALL_L2, 1 << 20], ids=["far", "near"])
@pytest.mark.parametrize("row", EVERY_FAMILY)
def test_a_weight_changes_by_no_more_than_the_table_says(
    row: Template, l2_bytes: int
) -> None:
    """To the bit where it says 0; else by more than half of the bound, for some weight."""
    target = replace(target_of(row), l2_bytes=l2_bytes)
    weights = scattered((80, 200), 0.2)
    far_off = 8 if row.dtype is DType.FLOAT16 else 60
    weights[:, :3] *= np.float32(2.0**-far_off)
    weights[:, 3:6] *= np.float32(2.0**far_off)
    expected = stored_weights(SparseMatrix(weights), row.dtype)
    found = weights_in(row, target, weights).astype(np.float64)
    bound = row.weight_change(SparseMatrix(weights), target)
    kept = expected != 0
    change = np.abs(found[kept] / expected[kept] - 1).max()
    assert not found[~kept].any()
    assert change == 0 if bound == 0 else bound / 2 < change <= bound


def test_the_table_says_which_weights_change() -> None:
    changes = {row.name: row.changes_weights_by for row in MATVEC_TEMPLATES}
    assert {name: change for name, change in changes.items() if change} == CHANGED_BY
    matrix, near = SparseMatrix(scattered((80, 200), 0.2)), Target.named("avx512")
    far = replace(near, l2_bytes=SMALL_L2)
    for row in MATVEC_TEMPLATES:
        assert row.weight_change(matrix, far) == CHANGED_BY.get(row.name, 0.0)
        if row.family == "lookup":
            assert row.weight_change(matrix, near) == 0.0
    for batch_row in MATMUL_TEMPLATES:
        each = batch_row.each
        expected = CHANGED_BY.get(each.name, 0.0) if each else 0.0
        assert batch_row.weight_change(matrix, far) == expected
        assert batch_row.rounding == ROUNDING.get(batch_row.family, 0.0)
        assert batch_row.is_exact(matrix, far) is not bool(expected or batch_row.rounding)


def test_hardly_more_than_denormal_weights_become_zeros() -> None:
    """As `explain` says of kernels that keep an index in the weight; others keep them."""
    machine = Target.detect()
    weights = np.full((16, 16), 2.0**-126, np.float32)
    x = np.ones(16, np.float32)
    inexact = "lane16" if machine.isa == "avx512" else "permute"
    changed = sparsejit.compile_matrix(weights, strategy=inexact)
    assert not changed(x).any() and "below 2^-125 become zero" in str(changed.explain())
    exact = sparsejit.compile_matrix(weights, exact=True)
    np.testing.assert_array_equal(exact(x), np.full(16, 2.0**-122, np.float32))


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
def test_exact_rules_out_the_kernels_that_change_weights(isa: str, dtype: DType) -> None:
    matrix = SparseMatrix(scattered((80, 200), 0.2))
    level = Target.named(isa)
    more = {"avx512vbmi"} if isa == "avx512" else set()
    target = replace(level, instruction_sets=level.instruction_sets | more, l2_bytes=SMALL_L2)
    spec = MatVec(80, 200, dtype=dtype)
    names = {c.template.name for c in plan(spec, matrix, target).candidates}
    exact = {c.template.name for c in plan(spec, matrix, target, exact=True).candidates}
    ruled_out = names & CHANGED_BY.keys()
    assert exact == names - ruled_out
    assert ruled_out
    many = MatMul(spec, 40)
    batch = {c.template for c in plan_batch(many, matrix, target, exact=True).candidates}
    assert batch and all(row.weight_change(matrix, target) == 0 for row in batch)
    inexact = {c.template for c in plan_batch(many, matrix, target).candidates} - batch
    assert bool(inexact) == bool(ruled_out)
    assert all(row.weight_change(matrix, target) > 0 for row in inexact)


def test_lookup_is_ruled_out_only_where_it_changes_weights() -> None:
    spec, level = MatVec(80, 200), Target.named("avx512")
    matrix = SparseMatrix(scattered((80, 200), 0.2))
    near = replace(level, instruction_sets=level.instruction_sets | {"avx512vbmi"})
    assert plan(spec, matrix, near, "lookup", exact=True).chosen.template.family == "lookup"
    with pytest.raises(InvalidInput, match=r"'lookup' has no kernel for float32 with exact=True"):
        plan(spec, matrix, replace(near, l2_bytes=SMALL_L2), "lookup", exact=True)


@pytest.mark.parametrize("isa", ISA_LEVELS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("options", [{}, {"batch": 5}, {"threads": 2}], ids=str)
def test_an_exact_kernel_keeps_every_weight(isa: str, dtype: str, options: dict[str, Any]) -> None:
    """A weight times a power of two is exact, and the sum of one product is too."""
    if not Target.named(isa).runs_on(Target.detect()):
        pytest.skip(f"this machine has no {isa}")
    weights = scattered((48, 64), 0.3)
    kernel = sparsejit.compile_matrix(weights, dtype=dtype, target=isa, exact=True, **options)
    stored = stored_weights(SparseMatrix(weights), DType(dtype))
    for column in range(64):
        x = np.zeros(kernel.spec.x_shape, np.float32)
        x[..., column] = 2.0 ** (column % 9 - 4)
        expected = np.broadcast_to(stored[:, column] * 2.0 ** (column % 9 - 4), kernel.spec.y_shape)
        np.testing.assert_array_equal(kernel(x), expected.astype(np.float32))
    assert kernel.explain().facts["weights_change_by"] == 0
    assert f"weights: exactly as {dtype} holds them" in str(kernel.explain())


def test_explain_says_which_kernel_changes_weights_and_by_how_much() -> None:
    inexact = "lane16" if Target.detect().isa == "avx512" else "permute"
    kernel = sparsejit.compile_matrix(scattered((32, 32), 0.3), strategy=inexact)
    name = kernel.plan.chosen.template.name
    assert kernel.explain().facts["weights_change_by"] == CHANGED_BY[name]
    bits = {2.0**-20: "2^-20", 2.0**-21: "2^-21"}[CHANGED_BY[name]]
    line = f"each changed by at most {bits} of itself, and weights below 2^-125 become zero, since "
    assert f"{line}{name} keeps an index" in str(kernel.explain())
    with pytest.raises(InvalidInput, match=rf"'{inexact}' has no kernel for float32 with exact"):
        sparsejit.compile_matrix(scattered((32, 32), 0.3), strategy=inexact, exact=True)
