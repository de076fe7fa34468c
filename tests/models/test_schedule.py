"""Models whose kernels several threads share: who may run what at once, and what comes out."""

from dataclasses import replace
from functools import cache
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from native import check_alike
from random_graphs import GraphCase, graph_cases
from runnable import ISAS
from torch import nn

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Origin, TensorType
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.memory.overlap import overlap, shared_bytes, torn_lines
from sparsejit.lowering.memory.storage import Buffer, View
from sparsejit.lowering.memory_plan import plan_memory
from sparsejit.lowering.model_schedule import ModelSchedule
from sparsejit.lowering.step import Facts, Step
from sparsejit.lowering.threads.waves import ScheduledStep, schedule
from sparsejit.machine.price_records import SharingPrices
from sparsejit.machine.target import Target
from sparsejit.passes.default import run_passes
from sparsejit.perf.zoo import models_named, pruned
from sparsejit.planner.sharing import WavePrices
from sparsejit.runtime.workers import pool


def eager(isa: str) -> Target:
    """A level whose threads cost nothing to call, so that everything is shared that can be."""
    target = Target.named(isa)
    return replace(target, core=replace(target.core, sharing=SharingPrices(0.0, 1e9)))


def lowered_for(graph: Graph, isa: str, threads: int) -> ModelSchedule:
    return lower_model(run_passes(graph), ModelOptions(eager(isa), threads))


# Overlap of views


@st.composite
def views_of_a_tensor(draw: st.DrawFn) -> list[tuple[View, set[int]]]:
    """Two views of one tensor, cut, turned and reshaped, and the places of their elements."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    whole = View.whole(Buffer(4 * int(np.prod(shape))), TensorType(shape))
    places = np.arange(np.prod(shape)).reshape(shape)
    found = []
    for _ in range(2):
        view, cut = whole, places
        if draw(st.booleans()):
            flat = whole.reshaped((places.size,))
            assert flat is not None
            view, cut = flat, places.ravel()
        for axis in range(cut.ndim):
            first = draw(st.integers(0, cut.shape[axis] - 1))
            end = draw(st.integers(first + 1, cut.shape[axis]))
            step = draw(st.sampled_from([1, 1, 2]))
            view = view.sliced(axis, first, end, step)
            cut = np.take(cut, range(first, end, step), axis)
        axes = tuple(draw(st.permutations(range(cut.ndim))))
        found.append((view.permuted(axes), set(cut.ravel().tolist())))
    return found


@settings(max_examples=400)
@given(views_of_a_tensor())
def test_views_overlap_where_they_share_elements(views: list[tuple[View, set[int]]]) -> None:
    (one, mine), (other, theirs) = views
    shared = len(mine & theirs)
    assert overlap(one, other) or not shared
    if one.strides == other.strides:
        assert overlap(one, other) == bool(shared)
        assert shared_bytes(one, other) == 4 * shared
    assert not overlap(one, replace(other, buffer=Buffer(other.buffer.bytes)))


def test_halves_of_images_and_matrices_are_apart() -> None:
    image = View.whole(Buffer(4 * 8 * 6 * 4), TensorType((1, 8, 6, 4)))
    matrix = image.reshaped((8, 24))
    assert matrix is not None
    upper, left, right = image.sliced(2, 0, 3), matrix.sliced(1, 0, 12), matrix.sliced(1, 12, 24)
    assert overlap(upper, left.permuted((1, 0))) and not overlap(upper, right.permuted((1, 0)))
    assert shared_bytes(image.sliced(2, 0, 4), right) == 4 * 8 * 4


def test_an_empty_value_has_any_shape() -> None:
    part = View.whole(Buffer(0), TensorType((2, 0, 5))).sliced(0, 0, 1)
    flat = part.permuted((2, 0, 1)).reshaped((0,))
    assert flat is not None and flat.shape == (0,)


def test_lines_are_torn_where_two_parts_write_them() -> None:
    image = View.whole(Buffer(4 * 8 * 6 * 6), TensorType((1, 8, 6, 6)))
    upper, lower = image.sliced(2, 0, 3), image.sliced(2, 3, 6)
    assert torn_lines(upper, lower) == 8  # a channel each: 72 bytes into its 144
    first, second = image.sliced(1, 0, 4), image.sliced(1, 4, 8)
    assert torn_lines(first, second) == 0  # 576 bytes in
    matrix = View.whole(Buffer(4 * 4 * 48), TensorType((4, 48)))
    assert torn_lines(matrix.sliced(1, 0, 32), matrix.sliced(1, 32, 48)) == 0
    assert torn_lines(matrix.sliced(1, 0, 24), matrix.sliced(1, 24, 48)) == 4


# Schedules


def step(reads: list[View], writes: list[View], ns: float, **more: object) -> Step:
    def emit(*_: object) -> None:
        raise AssertionError("never emitted")

    facts = Facts("", predicted_ns=ns)
    return Step("kernel", Origin("x"), tuple(reads), tuple(writes), emit, facts, **more)  # type: ignore[arg-type]


def vector(size: int = 64) -> View:
    return View.whole(Buffer(4 * size), TensorType((size,)))


def halves(one: Step) -> Step:
    """The step, which two threads may share."""

    def divide(threads: int) -> list[list[Step]]:
        cuts = [(0, 32), (32, 64)]
        return [
            [
                replace(
                    one,
                    reads=tuple(view.sliced(0, *cut) for view in one.reads),
                    writes=tuple(view.sliced(0, *cut) for view in one.writes),
                    facts=replace(one.facts, predicted_ns=one.ns / 2),
                    divide=None,
                )
                for cut in cuts
            ]
        ]

    return replace(one, divide=divide)


def places(steps: list[Step], barrier_ns: float = 100.0) -> list[list[list[int]]]:
    """The numbers of the steps of each thread of each wave."""
    waves = schedule(steps, 2, WavePrices(SharingPrices(barrier_ns, 1e9)))
    return [[[each.number for each in steps] for steps in wave.threads] for wave in waves]


def test_chains_that_do_not_meet_run_side_by_side() -> None:
    a, b, c, d, e, f = (vector() for _ in range(6))
    chains = [step([a], [b], 1e3), step([b], [c], 1e3), step([d], [e], 1e3), step([e], [f], 1e3)]
    assert places(chains) == [[[0, 1], [2, 3]]]


def test_a_divided_chain_needs_no_barrier_within() -> None:
    a, b, c = (vector() for _ in range(3))
    chain = [halves(step([a], [b], 1e3)), halves(step([b], [c], 1e3))]
    assert places(chain) == [[[0, 1], [0, 1]]]


def test_a_reader_of_both_halves_waits_for_them() -> None:
    a, b, c = (vector() for _ in range(3))
    steps = [halves(step([a], [b], 1e3)), step([b], [c], 1e3)]
    assert places(steps) == [[[0], [0]], [[1]]]


def test_nothing_is_shared_that_a_barrier_costs_more_than() -> None:
    a, b = vector(), vector()
    assert places([halves(step([a], [b], 150.0))]) == [[[0]]]
    assert places([halves(step([a], [b], 150.0))], barrier_ns=10.0) == [[[0], [0]]]


@pytest.mark.parametrize(("crossing_ns", "threads"), [(350.0, 1), (100.0, 2)])
def test_what_crosses_later_is_paid_by_what_was_shared(crossing_ns: float, threads: int) -> None:
    """Half of b, for a step that one thread runs: 1000 ns become 510 and that."""
    a, b, c = (vector() for _ in range(3))
    prices = WavePrices(SharingPrices(10.0, b.type.bytes / 2 / crossing_ns))
    first, _ = schedule([halves(step([a], [b], 1e3)), step([b], [c], 1e3)], 2, prices)
    assert len(first.threads) == threads


def test_a_step_goes_where_its_data_are() -> None:
    """Two chains, then one step of each: swapped they would wait for values that cross."""
    a, b, c, d, e, f = (vector(64_000) for _ in range(6))
    prices = WavePrices(SharingPrices(1.0, 10.0))
    meeting = step([b.sliced(0, 0, 1), d.sliced(0, 0, 1)], [], 1.0)
    chains = [step([a], [b], 9e4), step([c], [d], 8e4)]
    waves = schedule([*chains, meeting, step([d], [f], 5e4), step([b], [e], 4e4)], 2, prices)
    homes = {
        each.number: thread
        for wave in waves
        for thread, steps in enumerate(wave.threads)
        for each in steps
    }
    assert homes[4] == homes[0] and homes[3] == homes[1] != homes[0]


def conflict(one: Step, other: Step) -> bool:
    writes = [(v, w) for v in one.writes for w in (*other.reads, *other.writes)]
    reads = [(v, w) for v in one.reads for w in other.writes]
    return any(overlap(v, w) for v, w in writes + reads)


def check_waves(lowered: ModelSchedule) -> None:
    """Steps that conflict are in order: in waves one after another, or on one thread."""
    order: list[tuple[int, int, ScheduledStep]] = [
        (number, thread, each)
        for number, wave in enumerate(lowered.waves)
        for thread, steps in enumerate(wave.threads)
        for each in steps
    ]
    for (wave, thread, one), (later, other_thread, other) in combinations(order, 2):
        if one.number != other.number and conflict(one.step, other.step):
            assert wave < later or thread == other_thread
            assert one.number < other.number
    assert sorted({each.number for *_, each in order}) == list(range(len(lowered.steps)))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=25, deadline=None)
@given(case=graph_cases(), threads=st.integers(2, 3))
def test_random_graphs_on_threads(isa: str, case: GraphCase, threads: int) -> None:
    """As on one thread, and nothing that must wait runs too early."""
    lowered = lowered_for(case.graph, isa, threads)
    check_waves(lowered)
    plain = lower_model(run_passes(case.graph), ModelOptions(Target.named(isa)))
    check_alike(lowered, plain, case)


# Memory


def test_threads_share_no_memory_and_their_own_steps_do() -> None:
    a, b = vector(), vector()
    temporaries = [vector() for _ in range(4)]
    outs = vector(), vector()
    thread_0 = [step([a], [temporaries[0]], 1), step([temporaries[0]], [temporaries[1]], 1)]
    thread_0.append(step([temporaries[1]], [outs[0]], 1))
    thread_1 = [step([b], [temporaries[2]], 1), step([temporaries[2]], [temporaries[3]], 1)]
    thread_1.append(step([temporaries[3]], [outs[1]], 1))
    last = step([*outs], [vector()], 1)
    plan = plan_memory([[thread_0, thread_1], [[last]]])
    spans = [
        {plan.offsets[view.buffer] for each in steps for view in each.writes[:1]}
        for steps in (thread_0[:2], thread_1[:2])
    ]
    assert not spans[0] & spans[1]
    alone = plan_memory([[[each]] for each in (*thread_0, *thread_1, last)])
    assert alone.bytes <= plan.bytes < plan.sum_bytes


# Whole models


@cache
def compiled_zoo(name: str, threads: int) -> sparsejit.CompiledModel:
    (model,) = models_named([name])
    return sparsejit.compile(pruned(model, 0.1), example_inputs=model.inputs(1), threads=threads)


@pytest.mark.parametrize(
    "name",
    ["transformer-encoder", "mobilenet-like", "lstm-tagger-both-ways"],
)
def test_models_on_two_threads(name: str) -> None:
    """As one thread computes them, and the same bits with and without workers."""
    one, two = (compiled_zoo(name, threads) for threads in (1, 2))
    arrays = [tensor.numpy() for tensor in models_named([name])[0].inputs(1)]
    wanted, got = one.run(arrays), two.run(arrays)
    for mine, reference in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, reference, rtol=0, atol=1e-5 * np.abs(reference).max())
    pool().stop()
    alone = two.run(arrays)
    pool().require(1)
    assert all(mine.tobytes() == again.tobytes() for mine, again in zip(got, alone, strict=True))


def test_the_schedule_is_drawn() -> None:
    report = compiled_zoo("transformer-encoder", 2).explain(measure=False)
    assert report.schedule[0].startswith("2 threads, ")
    assert any(line.startswith("wave 2") and "#" in line for line in report.schedule)
    assert report.schedule[1] in str(report) and "Steps of each thread" in report.html()
    alone = compiled_zoo("transformer-encoder", 1).explain(measure=False)
    assert alone.schedule == () and "Steps of each thread" not in alone.html()


# Threads that take turns with tiles


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("name", ["mobilenet-like", "mlp"])
def test_tiles_in_turn_have_the_bits_of_one_thread(name: str, threads: int) -> None:
    (model,) = models_named([name])
    module, inputs = pruned(model, 0.1), model.inputs(48)
    several = sparsejit.compile(module, example_inputs=inputs, threads=threads, exact=True)
    assert "take turns with tiles" in several.explain(measure=False).schedule[0]
    each = model.inputs(several.tile or 1)
    alone = sparsejit.compile(module, example_inputs=each, exact=True)
    assert alone.tile == several.tile
    for rows in (0, 1, 2, 3, 47, 48):
        arrays = [tensor.numpy()[:rows] for tensor in inputs]
        for mine, reference in zip(several.run(arrays), alone.run(arrays), strict=True):
            assert mine.tobytes() == reference.tobytes()


class Lookup(nn.Module):
    """Rows of a table, and a layer that fills a tile."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(10, 16), nn.Linear(16, 16)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(index))


def test_an_index_out_of_range_is_found_in_any_tile() -> None:
    index = torch.zeros(64, dtype=torch.int64)
    model = sparsejit.compile(Lookup().eval(), example_inputs=(index,), threads=2)
    assert model.tile == 32
    model(index)
    for place in (0, 40):
        wrong = index.clone()
        wrong[place] = 10
        with pytest.raises(InvalidInput, match="index"):
            model(wrong)


def test_a_model_whose_threads_take_turns_is_saved_so(tmp_path: object) -> None:
    (model,) = models_named(["mlp"])
    module, inputs = pruned(model, 0.1), model.inputs(64)
    several = sparsejit.compile(module, example_inputs=inputs, threads=2)
    file = f"{tmp_path}/model.sj"
    several.save(file)
    again = sparsejit.load(file)
    assert again.explain(measure=False).schedule == several.explain(measure=False).schedule
    assert torch.equal(again(*inputs), several(*inputs))
