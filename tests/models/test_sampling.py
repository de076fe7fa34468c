"""Operators of networks that make a signal sample by sample, and the loop around their graph."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import registered_operators
from guard import EDGES, Edge
from hypothesis import given, settings
from hypothesis import strategies as st
from native import check_graph, run_graph, run_tiles
from runnable import ISAS

from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.operator import Operator
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.sampling import (
    PREDICTION_WINDOW,
    THRESHOLDS,
    Draw,
    GruStep,
    Predict,
    Quantise,
    Reconstruct,
    SumOfRows,
    TreeDraw,
    Uniform,
    UniformRow,
)
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Array, Element, Origin, TensorType
from sparsejit.lowering.context import ModelOptions
from sparsejit.lowering.lower_graph import lower_model
from sparsejit.lowering.recurrence.table_rows import MOST_TABLES
from sparsejit.lowering.sample_loop import GraphLoop, Role, build_loop, stream_header
from sparsejit.machine.target import Target

NAME = Origin("x")
FEATURES = [1, 7, 8, 9, 15, 16, 17, 31, 33, 127, 128, 129, 257, 1000]
ROWS_OF_GATES = (DType.FLOAT32, DType.FLOAT16, DType.INT8)


def graph_of(
    op: Operator, *operands: Array, constants: Sequence[int] = ()
) -> tuple[Graph, list[Array]]:
    """A graph of one operator, and what its inputs are."""
    graph = registered_operators.graph_of(op, *operands, constants=constants)
    return graph, [array for number, array in enumerate(operands) if number not in constants]


def whole(number: int) -> Array:
    return np.array(number, np.int64)


def real(*numbers: float) -> list[Array]:
    return [np.array(number, np.float32) for number in numbers]


def random_floats(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**64 - 1), counter=st.integers(0, 2**64 - 1))
def test_uniform_numbers_are_those_of_the_reference(isa: str, seed: int, counter: int) -> None:
    words = np.array([seed, counter], np.uint64).view(np.int64)
    graph, given = graph_of(Uniform(), words[0].reshape(()), words[1].reshape(()))
    (found,) = run_graph(graph, given, Target.named(isa))
    assert found == reference.random_uniform(seed, np.uint64(counter))
    assert found == graph.evaluate(given)[0]


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=20)
@given(
    classes=st.sampled_from([1, 2, 9, 16, 17, 255, 256, 1024]),
    seed=st.integers(0, 1000),
    uniform=st.floats(0, 1, exclude_max=True, width=32),
)
def test_a_draw_is_the_reference_s_or_a_tie(
    isa: str, classes: int, seed: int, uniform: float
) -> None:
    op, logits = Draw(1 / 0.9), 3 * random_floats(seed, classes)
    graph, given = graph_of(op, logits, *real(uniform))
    (found,) = run_graph(graph, given, Target.named(isa))
    tied = reference.categorical_margin(op.spec(classes), logits, uniform) < 2e-5
    assert found == graph.evaluate(given)[0] or tied


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=30)
@given(number=st.floats(-3, 3, width=32), at=st.integers(0, THRESHOLDS - 1), exact=st.booleans())
def test_levels_count_thresholds(isa: str, number: float, at: int, exact: bool) -> None:
    thresholds = np.sort(random_floats(5, THRESHOLDS))
    value = thresholds[at] if exact else np.float32(number)
    graph, given = graph_of(Quantise(), *real(value), thresholds, constants=(1,))
    (found,) = run_graph(graph, given, Target.named(isa))
    assert found == np.searchsorted(thresholds, value, side="right") == graph.evaluate(given)[0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("features", FEATURES)
def test_rows_add_up_in_their_order(isa: str, edge: Edge, features: int) -> None:
    tables = [random_floats(n, 5, features) for n in range(3)]
    rest, indices = random_floats(9, features), [4, 0, 2]
    graph, given = graph_of(SumOfRows(), *map(whole, indices), *tables, rest, constants=(3, 5))
    ran = run_tiles(graph, [array[None] for array in given], Target.named(isa), edge)
    rows = [table[index] for table, index in zip(tables, indices, strict=True)]
    assert ran.status == 0
    np.testing.assert_array_equal(ran.outputs[0][0], rows[0] + rows[1] + rows[2] + rest)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("features", FEATURES)
def test_short_rows_are_float16(isa: str, edge: Edge, features: int) -> None:
    tables = [random_floats(n, 5, features) for n in range(2)]
    rest, op = random_floats(9, features), SumOfRows(DType.BFLOAT16)
    graph, given = graph_of(op, whole(4), whole(1), *tables, rest, constants=(2, 3))
    ran = run_tiles(graph, [array[None] for array in given], Target.named(isa), edge)
    halves = [table.astype(np.float16).astype(np.float32) for table in tables]
    assert ran.status == 0
    np.testing.assert_array_equal(ran.outputs[0][0], halves[0][4] + halves[1][1] + rest)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("features", [1, 8, 17, 257])
def test_int8_rows_share_a_scale_in_each_feature(isa: str, edge: Edge, features: int) -> None:
    tables = [(n + 1) * random_floats(n, 5, features) for n in range(3)]
    for table in tables:
        table[:, features // 2] = 0
    rest, op = random_floats(9, features), SumOfRows(DType.INT8)
    graph, given = graph_of(op, *map(whole, (4, 1, 0)), *tables, rest, constants=(3, 4, 5))
    ran = run_tiles(graph, [array[None] for array in given], Target.named(isa), edge)
    assert ran.status == 0
    step = np.abs(np.concatenate(tables)).max(axis=0).astype(float) / 127
    whole_steps = [np.rint(t / np.where(step > 0, step, 1)) for t in tables]
    expected = (whole_steps[0][4] + whole_steps[1][1] + whole_steps[2][0]) * step + rest
    np.testing.assert_allclose(ran.outputs[0][0], expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("hidden", [1, 8, 33, 136])
@pytest.mark.parametrize("dtype", ROWS_OF_GATES)
def test_gates_add_up_rows_as_a_sum_of_its_own_does(
    isa: str, edge: Edge, hidden: int, dtype: DType
) -> None:
    """To the bit; where somebody else reads the sum, it is a step of its own."""
    ran = [
        run_tiles(graph, [array[None] for array in given], Target.named(isa), edge)
        for graph, given in (rows_and_gates(hidden, dtype, apart) for apart in (False, True))
    ]
    assert [each.status for each in ran] == [0, 0]
    np.testing.assert_array_equal(ran[0].outputs[0], ran[1].outputs[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ROWS_OF_GATES)
def test_gates_report_a_row_that_is_not_there(isa: str, dtype: DType) -> None:
    graph, given = rows_and_gates(16, dtype, apart=False)
    given[1] = whole(5)
    assert run_tiles(graph, [array[None] for array in given], Target.named(isa)).status == 1


def rows_and_gates(hidden: int, dtype: DType, apart: bool) -> tuple[Graph, list[Array]]:
    """A GRU whose input gates are a sum of rows, which is a result too where `apart`."""
    tables = [random_floats(n, 5, 3 * hidden) for n in range(3)]
    given = [*map(whole, (3, 0, 4)), *(random_floats(n, 3 * hidden) for n in (7, 8))]
    given.append(np.tanh(random_floats(9, hidden)))
    builder = GraphBuilder()
    kinds = [TensorType(array.shape, Element(array.dtype.name)) for array in given]
    *indices, rest, recurrent, state = (builder.input(kind, NAME) for kind in kinds)
    constants = [builder.constant(table, NAME) for table in tables]
    gates = builder.one(SumOfRows(dtype), *indices, *constants, rest, origin=NAME)
    new = builder.one(GruStep(), gates, recurrent, state, origin=NAME)
    return builder.finish((new, gates) if apart else (new,)), given


def test_rows_beyond_float16_are_refused() -> None:
    table = np.full((2, 8), 7e4, np.float32)
    operands = whole(0), table, random_floats(0, 8)
    graph, _ = graph_of(SumOfRows(DType.BFLOAT16), *operands, constants=(1,))
    with pytest.raises(InvalidInput, match="exceeds the range of float16; store it as float32"):
        lower_model(graph, ModelOptions(Target.named("avx2")))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ROWS_OF_GATES)
@pytest.mark.parametrize("index", [-1, 5, 2**40])
def test_a_row_that_is_not_there_is_reported(isa: str, dtype: DType, index: int) -> None:
    table, rest = random_floats(1, 5, 20), random_floats(2, 20)
    graph, given = graph_of(SumOfRows(dtype), whole(index), table, rest, constants=(1,))
    assert run_tiles(graph, [array[None] for array in given], Target.named(isa)).status == 1


def test_too_many_tables_are_refused() -> None:
    count = MOST_TABLES + 1
    tables = [random_floats(n, 2, 8) for n in range(count)]
    graph, _ = graph_of(SumOfRows(), *map(whole, [0] * count), *tables, random_floats(0, 8))
    with pytest.raises(CompileError, match=f"{count} tables are added at once; add {MOST_TABLES}"):
        lower_model(graph, ModelOptions(Target.named("avx2")))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("hidden", [1, 7, 16, 33, 129, 384])
def test_a_gru_s_gates(isa: str, hidden: int) -> None:
    gates, recurrent = random_floats(1, 3 * hidden), random_floats(2, 3 * hidden)
    graph, given = graph_of(GruStep(), gates, recurrent, np.tanh(random_floats(3, hidden)))
    check_graph(graph, given, Target.named(isa), 1e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_a_gru_s_gates_are_coarser_in_int8_but_for_what_it_keeps(isa: str) -> None:
    hidden = 65
    gates, recurrent = random_floats(1, 3 * hidden), random_floats(2, 3 * hidden)
    operands = gates, recurrent, np.tanh(random_floats(3, hidden))
    graph, given = graph_of(GruStep(DType.INT8), *operands)
    check_graph(graph, given, Target.named(isa), 5e-4)
    kept = gates.copy()
    kept[hidden : 2 * hidden] = 20
    graph, given = graph_of(GruStep(DType.INT8), kept, 0 * recurrent, operands[2])
    check_graph(graph, given, Target.named(isa), 1e-6, tiles=1)


@pytest.mark.parametrize("isa", ISAS)
def test_a_prediction_is_a_tree_of_sums(isa: str) -> None:
    samples, weights = random_floats(1, PREDICTION_WINDOW), random_floats(2, PREDICTION_WINDOW)
    graph, given = graph_of(Predict(), samples, weights)
    sums = samples * weights
    while len(sums) > 1:
        sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
    assert run_graph(graph, given, Target.named(isa))[0] == sums[0]
    check_graph(graph, given, Target.named(isa), 1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("count", [1, 3, 8])
def test_a_row_of_numbers_is_the_stream_s(isa: str, count: int) -> None:
    counter = 2**40 - 2
    graph, given = graph_of(UniformRow(count), whole(7), whole(counter))
    (found,) = run_graph(graph, given, Target.named(isa))
    numbers = counter + np.arange(count, dtype=np.uint64)
    np.testing.assert_array_equal(found, reference.random_uniform(7, numbers))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=30)
@given(bits=st.integers(1, 9), seed=st.integers(0, 99))
def test_a_tree_is_walked_to_a_leaf(isa: str, bits: int, seed: int) -> None:
    parameters, thresholds = random_floats(seed, 1 << bits), random_floats(seed + 1, bits)
    thresholds[0] = parameters[1] if seed % 3 else -np.inf  # what is equal is not less
    node = 1
    for threshold in thresholds:
        node = 2 * node + int(threshold < parameters[node])
    graph, given = graph_of(TreeDraw(bits), parameters, thresholds)
    assert run_graph(graph, given, Target.named(isa)) == [node - (1 << bits)]
    check_graph(graph, given, Target.named(isa), 0)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=30)
@given(level=st.integers(0, 8), scale=st.floats(0, 9, width=32), rest=st.floats(-9, 9, width=32))
def test_a_signal_is_rounded_step_by_step(
    isa: str, level: int, scale: float, rest: float
) -> None:
    levels = random_floats(3, 9)
    numbers = real(scale, rest, 0.7)
    graph, given = graph_of(Reconstruct(4.0, 0.9), whole(level), levels, *numbers)
    signal = np.clip(levels[level] * numbers[0] + numbers[1], np.float32(-4), np.float32(4))
    found = run_graph(graph, given, Target.named(isa))
    assert found == [signal, signal + np.float32(0.9) * numbers[2]]


HOP = 3


@dataclass
class Accumulator:
    """total = total * call + frame + sample; what it gives is the new total, twice."""

    target: Target

    def __post_init__(self) -> None:
        builder, number = GraphBuilder(), TensorType(())
        scale, frame, sample, total = (builder.input(number, NAME) for _ in range(4))
        value = builder.one(Pointwise("mul"), total, scale, origin=NAME)
        for part in (frame, sample):
            value = builder.one(Pointwise("add"), value, part, origin=NAME)
        graph = builder.finish((value, value))
        self.lowered = lower_model(graph, ModelOptions(self.target))
        roles = (Role.CALL, Role.FRAME, Role.SAMPLE, Role.STATE), (Role.SAMPLE, Role.STATE)
        self.program = build_loop(self.lowered, GraphLoop(HOP, *roles), "accumulator")
        self.states = real(0, 0)

    def tables(self) -> list[Array]:
        before, after = (state.ctypes.data for state in self.states)
        return [np.array([0, 0, 0, before], np.uint64), np.array([0, after], np.uint64)]

    def run(self, tables: list[Array], call: Array, frames: Array, samples: Array) -> Array:
        inputs, outputs = tables
        inputs[:3] = [array.ctypes.data for array in (call, frames, samples)]
        given = np.full(len(samples), np.nan, np.float32)
        outputs[0] = given.ctypes.data
        workspace = np.zeros(self.lowered.workspace_bytes + 64, np.uint8)
        workspace = workspace[-workspace.ctypes.data % 64 :]
        header, first = stream_header(self.lowered), workspace.ctypes.data
        for place, address in (
            (header.inputs, inputs.ctypes.data),
            (header.outputs, outputs.ctypes.data),
            (header.next, first),
        ):
            workspace[place : place + 8].view(np.uint64)[0] = address
        self.program.memory.function(2)(first, len(samples))
        return given


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, 4), min_size=1, max_size=5))
def test_a_loop_goes_on_where_the_last_call_ended(isa: str, cuts: list[int]) -> None:
    """However it is cut at frames: states change places, an odd number of times too."""
    loop = Accumulator(Target.named(isa))
    call, total, tables = real(0.5)[0], np.float32(0), loop.tables()
    for seed, frame_count in enumerate(cuts):
        frames = np.round(4 * random_floats(seed, frame_count))
        samples = np.round(4 * random_floats(seed + 50, frame_count * HOP))
        given = loop.run(tables, call, frames, samples)
        for number, sample in enumerate(samples):
            total = total * call + frames[number // HOP] + sample
            assert given[number] == total


@pytest.mark.parametrize("isa", ISAS)
def test_denormal_numbers_are_zero_within_the_loop(isa: str) -> None:
    loop = Accumulator(Target.named(isa))
    tiny = real(1e-20)[0]
    samples = np.array([1e-20, 0, 0], np.float32)
    given = loop.run(loop.tables(), tiny, np.zeros(1, np.float32), samples)
    assert given[0] == samples[0] and given[1] == 0 != samples[0] * tiny
    assert np.float32(1e-30) * np.float32(1e-10) > 0, "and not after it"


def test_a_state_keeps_its_type() -> None:
    builder = GraphBuilder()
    state = builder.input(TensorType((4,)), NAME)
    ones = builder.constant(np.ones((2, 4)), NAME)
    total = builder.one(Pointwise("add"), state, ones, origin=NAME)
    lowered = lower_model(builder.finish((total,)), ModelOptions(Target.named("avx2")))
    with pytest.raises(CompileError, match=r"state x one type: .* float32\[4\] .* float32\[2, 4\]"):
        build_loop(lowered, GraphLoop(1, (Role.STATE,), (Role.STATE,)), "wrong")
