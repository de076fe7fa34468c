"""The permute family against the float64 oracle, its schedules, and what it promises."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matvec_checks import (
    check,
    compile_kernel,
    scattered,
    target_of,
    templates_of,
)

from sparsejit.asm_templates.gather.permute import AVX2, AVX2_SHORT, AVX512, machine_for
from sparsejit.asm_templates.gather.permute_layout import PermuteLayout, layout_of
from sparsejit.asm_templates.gather.permute_machine import Machine
from sparsejit.asm_templates.scheduling.covering import (
    Covering,
    Demand,
    one_register_schedule,
    two_register_schedule,
)
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import Activation, MatVec
from sparsejit.machine.target import Target

both_templates = pytest.mark.parametrize("row", templates_of("permute"))
every_template = pytest.mark.parametrize(
    "row", [*templates_of("permute"), *templates_of("permute-inline")]
)
every_machine = pytest.mark.parametrize(
    "machine", [AVX512, AVX2, AVX2_SHORT], ids=["avx512", "avx2", "avx2-short"]
)
both_schedules = pytest.mark.parametrize("cover", [one_register_schedule, two_register_schedule])


@both_templates
@pytest.mark.parametrize("shape", [(1000, 530), (640, 257), (256, 1040)])
def test_folded_batches_and_what_is_left_over(row, shape):
    weights = scattered(shape, 0.4)
    matrix = SparseMatrix(weights)
    assert machine_for(MatVec(*shape), matrix, target_of(row)).fold_for(matrix) > 1
    bias = np.linspace(-1, 1, shape[0], dtype=np.float32)
    check(row, weights, bias, Activation.TANH)


@every_template
def test_rows_as_different_as_can_be(row):
    """Row i has i nonzeros, in an order that neighbouring vectors must share out."""
    weights = np.zeros((129, 300), np.float32)
    generator = np.random.default_rng(3)
    for output, count in enumerate(generator.permutation(129)):
        weights[output, generator.permutation(300)[:count]] = generator.standard_normal(count)
    check(row, weights, np.arange(129, dtype=np.float32))


def covered(demand: Demand, schedule: Covering) -> None:
    """Assert that a schedule takes every nonzero once, in its lane, from a named register."""
    taken = schedule.taken[schedule.taken >= 0]
    assert sorted(taken) == list(range(int(demand.count.sum())))
    lane_of, registers_of = {}, {}
    for problem, lane, register in np.ndindex(demand.count.shape):
        start = demand.start[problem, lane, register]
        for number in range(start, start + demand.count[problem, lane, register]):
            lane_of[number] = (problem, lane)
            registers_of[number] = register
    for step, lane in zip(*np.nonzero(schedule.taken >= 0), strict=True):
        number = schedule.taken[step, lane]
        assert lane_of[number] == (schedule.problem[step], lane)
        assert registers_of[number] in (schedule.first[step], schedule.second[step])
    assert np.all((schedule.taken >= 0).any(axis=1)), "a step in which every lane is idle"


@both_schedules
@settings(max_examples=30, deadline=None)
@given(
    sets=st.integers(1, 3),
    lanes=st.sampled_from([8, 16, 32]),
    windows=st.integers(1, 3),
    window=st.integers(1, 5),
    density=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_schedules_take_every_nonzero_once(cover, sets, lanes, windows, window, density, seed):
    used = np.random.default_rng(seed).random((sets * lanes, windows * window * 8)) < density
    demand = Demand.of(used, lanes, 8, window)
    covered(demand, cover(demand))


def lower_bound(demand: Demand) -> int:
    """Steps that any schedule of two registers a step needs."""
    fullest_lane = demand.count.sum(axis=2).max(axis=1)
    by_register = -(-demand.count.max(axis=1).sum(axis=1) // 2)
    return int(np.maximum(fullest_lane, by_register).sum())


@pytest.mark.parametrize("density", [0.05, 0.1, 0.2, 0.5])
def test_the_greedy_stays_near_the_lower_bound(density):
    used = scattered((256, 512), density) != 0
    demand = Demand.of(used, 16, 16, 16)
    steps = len(two_register_schedule(demand).problem)
    assert lower_bound(demand) <= steps <= 1.08 * lower_bound(demand)


def steps_in(layout: PermuteLayout) -> int:
    return sum(piece.count * piece.panel.fold for piece in layout.pieces)


def test_sharing_out_full_rows_saves_steps():
    weights = scattered((256, 256), 0.1)
    as_they_come = Demand.of(weights != 0, 16, 16, 16)
    plain = len(two_register_schedule(as_they_come).problem)
    shared = steps_in(layout_of(MatVec(256, 256), SparseMatrix(weights), AVX512))
    assert shared < 0.97 * plain


@every_machine
def test_folding_saves_code_for_few_more_steps(machine):
    weights = SparseMatrix(scattered((1024, 512), 0.2))
    isa = "avx512" if machine.lanes == 16 else "avx2"
    machine = machine.priced_on(Target.named(isa))
    folded = layout_of(MatVec(1024, 512), weights, machine)
    once = layout_of(MatVec(1024, 512), weights, unfolded(machine))
    times = machine.fold_for(weights)
    assert {piece.panel.fold for piece in folded.pieces} == {times} != {1}
    assert steps_in(folded) < 1.3 * steps_in(once)
    code = sum(piece.count for piece in folded.pieces)
    assert code < 1.3 * steps_in(once) / times


def unfolded(machine: Machine) -> Machine:
    return replace(machine, folding=())


@both_templates
def test_a_step_takes_twenty_bytes_of_code_and_thirty_where_weights_are_unpacked(row):
    spec, matrix = MatVec(256, 512, dtype=row.dtype), SparseMatrix(scattered((256, 512), 0.1))
    machine = machine_for(spec, matrix, target_of(row))
    layout = layout_of(spec, matrix, machine)
    image = compile_kernel(row, spec, matrix)
    short = layout.machine.steps_a_vector == 2
    assert image.code_bytes / steps_in(layout) < (31 if short else 22.5)
    vectors = layout.streamed_bytes / (4 * machine.lanes)
    assert vectors < steps_in(layout) * (1 / (1 + short) + 1 / machine.fields) + 64
    assert layout.streamed_bytes <= image.pool_bytes < layout.streamed_bytes * 4 / 3 + 4096
