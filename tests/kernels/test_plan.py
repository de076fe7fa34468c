"""The planner's choices where they are not close, and what it records of them."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matvec_checks import block_weights, target_of

from sparsejit.asm_templates.families import MATVEC_TEMPLATES, Template
from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, MatVec
from sparsejit.ir.values import Decision
from sparsejit.lowering.products.product_parts import emit_plan
from sparsejit.machine.target import INSTRUCTION_SETS, ISA_LEVELS, Target
from sparsejit.planner.cheapest_row import TableRow, about, choose, preferring, recording
from sparsejit.planner.cost import cache_shares, missed_share, price
from sparsejit.planner.kernel_choice import _lowered_while_they_may_win, plan, strategies
from sparsejit.x86.assembler import Assembler


def spec_of(matrix: SparseMatrix, dtype: DType = DType.FLOAT32) -> MatVec:
    return MatVec(matrix.out_features, matrix.in_features, dtype=dtype)


def template(name: str) -> Template:
    return next(row for row in MATVEC_TEMPLATES if row.name == name)


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
        ((1, 51), 1.0, 1, "dot"),
        ((2, 512), 1.0, 1, "dot"),
        ((10, 512), 1.0, 1, "dot"),
    ],
)
def test_auto_takes_the_family_that_measured_fastest(
    isa: str, shape: tuple[int, int], density: float, block_rows: int, family: str
) -> None:
    matrix = SparseMatrix(block_weights(shape, density, block_rows))
    assert plan(spec_of(matrix), matrix, Target.named(isa)).chosen.template.family == family


@pytest.mark.parametrize("isa", ISA_LEVELS)
def test_every_family_of_the_target_is_a_candidate_in_order_of_cost(isa: str) -> None:
    matrix, target = SparseMatrix(block_weights((64, 48), 0.3)), Target.named(isa)
    choice = plan(spec_of(matrix), matrix, target)
    rows = [t for t in MATVEC_TEMPLATES if t.made_for(target) and t.dtype is DType.FLOAT32]
    assert {c.template.name for c in choice.candidates} == {row.name for row in rows}
    costs = [candidate.cost.ns for candidate in choice.candidates]
    assert costs == sorted(costs) and choice.chosen is choice.candidates[0]
    assert choice.chosen.template.family in choice.reason


def test_a_named_strategy_overrides_the_price_but_not_the_record() -> None:
    matrix = SparseMatrix(block_weights((64, 48), 0.3))
    choice = plan(spec_of(matrix), matrix, Target.named("avx2"), "immediate")
    assert choice.chosen.template.family == "immediate"
    unasked = plan(spec_of(matrix), matrix, Target.named("avx2"))
    assert len(choice.candidates) == len(unasked.candidates) > 1
    assert "asked for" in choice.reason


def test_an_unknown_strategy_is_named_with_the_known() -> None:
    matrix = SparseMatrix(np.eye(3))
    with pytest.raises(InvalidInput, match=f"'fast' is unknown; use one of {strategies()[0]}"):
        plan(spec_of(matrix), matrix, Target.named("avx2"), "fast")


@pytest.mark.parametrize("row", MATVEC_TEMPLATES, ids=lambda row: row.name)
def test_an_empty_matrix_costs_next_to_nothing_but_in_dense_code(row: Template) -> None:
    empty = SparseMatrix(np.zeros((256, 256)))
    expected = row.expect(spec_of(empty, row.dtype), empty, target_of(row))
    lowered = row.lower(spec_of(empty, row.dtype), empty, target_of(row))
    moves_each_output = (row.family, row.isa) == ("permute-inline", "avx2")
    for counts in (expected, lowered.counts):
        cost = price(counts)
        little = (cost.ns < 100) if moves_each_output else (cost.ns < 25)
        assert little == (row.family not in ("dense", "dot", "int8-dense"))


def test_permute_steps_count_a_diagonal_by_hand() -> None:
    """32 x 32 identity: two groups, each one step: its sixteen inputs lie in one vector."""
    matrix = SparseMatrix(np.eye(32))
    counts = template("f32-permute-avx512").expect(spec_of(matrix), matrix, Target.named("avx512"))
    assert counts.steps == 2


def test_the_bound_names_the_cache_the_bytes_come_from() -> None:
    target = Target.named("avx512")
    dense = template("f32-dense-avx512")
    bounds = []
    for size in (16, 400):
        matrix = SparseMatrix(np.ones((size, size)))
        bounds.append(price(dense.expect(spec_of(matrix), matrix, target)).bound)
    assert bounds == ["execution", "data from L2"]


@pytest.mark.parametrize("row", MATVEC_TEMPLATES, ids=lambda row: row.name)
def test_expected_counts_are_near_those_of_what_is_lowered(row: Template) -> None:
    """Or candidates would be passed over that should win."""
    matrix = SparseMatrix(block_weights((300, 200), 0.2, 8))
    target = target_of(row)
    expected = row.expect(spec_of(matrix, row.dtype), matrix, target)
    counts = row.lower(spec_of(matrix, row.dtype), matrix, target).counts
    assert counts.steps == pytest.approx(expected.steps, rel=0.1)
    assert counts.pool_bytes == pytest.approx(expected.pool_bytes, rel=0.15)
    assert price(counts).ns == pytest.approx(price(expected).ns, rel=0.1)


def test_only_what_may_win_is_lowered() -> None:
    """In order of the expected cost, until what is left is dearer than the best that was made."""
    matrix, target = SparseMatrix(block_weights((64, 48), 0.3)), Target.named("avx2")
    choice = plan(spec_of(matrix), matrix, target)
    lowered = [c for c in choice.candidates if c.is_lowered]
    assert choice.chosen in lowered and len(lowered) < len(choice.candidates)
    left = [c.cost.ns for c in choice.candidates if not c.is_lowered]
    assert min(left) >= choice.chosen.cost.ns


def test_a_lowered_layer_is_emitted_and_then_released() -> None:
    matrix, target = SparseMatrix(block_weights((64, 48), 0.3)), Target.named("avx2")
    choice = plan(spec_of(matrix), matrix, target)
    asm = Assembler(target)
    emit_plan(asm, choice)
    again = Assembler(target)
    row = template(choice.chosen.template.name)
    row.emit(again, row.lower(spec_of(matrix), matrix, target))
    assert asm.finish().data == again.finish().data
    with pytest.raises(CompileError, match="plan the layer again"):
        emit_plan(asm, choice.record())


def test_a_kernel_that_cannot_hold_the_inputs_is_no_candidate() -> None:
    matrix = SparseMatrix(np.ones((2, 300_000), np.float32) * (np.arange(300_000) % 50 == 0))
    spec = spec_of(matrix, DType.INT8)
    vnni = replace(Target.named("avx512"), instruction_sets=INSTRUCTION_SETS)
    assert plan(spec, matrix, vnni).chosen.template.family == "int8-permute"
    with pytest.raises(InvalidInput, match="no kernel for int8 and 300000 inputs on this avx2"):
        plan(spec, matrix, Target.named("avx2"))


def test_a_cache_misses_what_crowds_its_sets_before_it_is_full() -> None:
    """Poisson: with 16 ways and 16 lines to a set on average, 0.533 share one with 16 others."""
    assert missed_share(1.0, 16) == pytest.approx(0.533, abs=1e-3)
    assert missed_share(0.0, 16) == missed_share(1.0, 0) == 0.0
    assert missed_share(1.01, 0) == 1.0 and missed_share(100.0, 16) == 1.0
    shares = [missed_share(fill / 8, 16) for fill in range(17)]
    assert shares == sorted(shares)


def test_data_beyond_l2_comes_from_l3() -> None:
    target = Target.named("avx512")
    crowded = replace(target, core=replace(target.core, l2_ways=16))
    size = target.l2_bytes * 3 // 4
    assert cache_shares(100, 0, crowded, 1000) == {"L1": 1.0}
    shares = cache_shares(size, 0, crowded, 1000)
    assert shares.keys() == {"L2", "L3"} and sum(shares.values()) == pytest.approx(1.0)
    assert 0.1 < shares["L3"] < 0.2
    full = replace(target, core=replace(target.core, l2_ways=0))
    assert cache_shares(size, 0, full, 1000) == {"L2": 1.0}
    assert cache_shares(2 * target.l2_bytes, 0, full, 1000) == {"L3": 1.0}


def test_a_tie_of_lowered_candidates_goes_to_less_code() -> None:
    """Also where what has less code was expected to cost more than the other at first."""

    def candidate(name: str, ns: float, code_bytes: int) -> Any:
        return SimpleNamespace(name=name, cost=SimpleNamespace(ns=ns, code_bytes=code_bytes))

    names, costs, sizes = ("long", "short", "same"), (1.0, 2.0, 2.0), (100, 10, 10)
    expected = list(map(candidate, names, costs, sizes))
    lowered = {"long": candidate("long", 2.0, 100), "short": expected[1], "same": expected[2]}
    for each in expected:
        each.template = each.name
    job = SimpleNamespace(lowered=lambda name: (lowered[name], name))
    made, best = _lowered_while_they_may_win(job, expected)
    assert [each.name for each in made] == ["long", "short"]
    assert best == "short"


def rows_of(**prices: float) -> list[TableRow[None, float]]:
    return [TableRow(name, lambda _, ns=ns: ns) for name, ns in prices.items()]


def test_a_choice_has_the_cheapest_row_its_price_and_the_runner_up() -> None:
    found = choose("form", rows_of(slow=3.0, fast=1.0, next=2.0), None)
    assert (found.name, found.price) == ("fast", 1.0)
    assert found.runner_up is not None and found.runner_up.name == "next"
    assert choose("form", rows_of(first=1.0, second=1.0), None).name == "first"
    sure, cheap = TableRow[None, float]("sure", lambda _: 2.0), rows_of(cheap=1.9)[0]
    assert choose("form", [sure, replace(cheap, margin=1.1)], None).name == "sure"
    assert choose("form", [sure, replace(cheap, applies=lambda _: False)], None).name == "sure"
    assert choose("form", [sure, cheap], None, name="sure").price == 2.0
    with pytest.raises(CompileError):
        choose("form", [], None)


def test_preferred_rows_are_taken_where_they_apply() -> None:
    """And nowhere else, and no longer than that is asked for."""
    slow, fast = rows_of(slow=3.0, fast=1.0)
    with preferring("slow", "none"):
        assert choose("form", [slow, fast], None).price == 3.0
        assert choose("form", [slow, fast], None, name="fast").name == "fast"
        assert choose("form", [fast], None).name == "fast"
        assert choose("form", [replace(slow, applies=lambda _: False), fast], None).name == "fast"
    assert choose("form", [slow, fast], None).name == "fast"


def test_choices_are_recorded_for_their_layer_and_not_those_inside_a_price() -> None:
    def nested(_: None) -> float:
        return choose("inner", rows_of(one=1.0, two=2.0), None).price

    rows = [TableRow("outer", nested), *rows_of(other=5.0)]
    with recording() as record:
        about("fc")
        for name in ("", "", "other"):
            choose("form", rows, None, name)
    assert record.decisions == (Decision("fc", "form", "outer", 1.0, "other", 5.0),)
    assert str(record.decisions[0]) == "form: outer at 1 ns, next other at 5"
