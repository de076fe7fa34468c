"""Recurrent layers as native loops over time, against float64 and with any strides."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native import check_graph
from runnable import ISAS

from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.ops.recurrent import Recurrence, RecurrentCell
from sparsejit.ir.ops.views import Concat, Permute, Slice
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Element, Origin, TensorType, Value
from sparsejit.machine.target import Target

HERE = Origin("recurrent")
SIZES = st.sampled_from([1, 7, 8, 9, 15, 16, 17, 31, 33, 64, 127, 130, 256, 257])
# Products are rounded in another order, gates are off by 5e-7 each; steps pass on what they got.
TOLERANCE = 2e-5
QUANTISED = {DType.BFLOAT16: 0.05, DType.FLOAT16: 0.01, DType.INT8: 0.1}


def weights(
    generator: np.random.Generator, cell: RecurrentCell, hidden: int, with_bias: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Pruned W_hh, of a size that keeps states from saturating, and b_hh."""
    rows = cell.gates * hidden
    dense = generator.uniform(-1, 1, (rows, hidden)) / np.sqrt(hidden)
    dense[generator.random(dense.shape) < 0.8] = 0
    bias = generator.uniform(-0.5, 0.5, rows) if with_bias else np.zeros(rows)
    return dense.astype(np.float32), bias.astype(np.float32)


def add_layer(
    build: GraphBuilder,
    cell: RecurrentCell,
    gates: Value,
    states: list[Value],
    parameters: tuple[np.ndarray, np.ndarray],
    reverse: bool = False,
    dtype: DType = DType.FLOAT32,
    lengths: Value | None = None,
) -> tuple[Value, ...]:
    given = states if lengths is None else [*states, lengths]
    constants = [build.constant(array, HERE) for array in parameters]
    op = Recurrence(cell, reverse, dtype, with_lengths=lengths is not None)
    return build.add(op, gates, *given, *constants, origin=HERE)


def single_layer(
    generator: np.random.Generator,
    cell: RecurrentCell,
    sizes: tuple[int, int, int],
    reverse: bool = False,
    with_bias: bool = True,
    dtype: DType = DType.FLOAT32,
    with_lengths: bool = False,
) -> tuple[Graph, list[np.ndarray]]:
    """A graph of one layer of sizes (time, batch, hidden) whose initial states are inputs.

    So are the lengths of samples, from 0 to all steps.
    """
    time, batch, hidden = sizes
    build = GraphBuilder()
    shapes = [(time, batch, cell.gates * hidden), *[(batch, hidden)] * cell.states]
    given_values = [build.input(TensorType(shape), HERE) for shape in shapes]
    parameters = weights(generator, cell, hidden, with_bias)
    inputs = [generator.uniform(-1, 1, shape).astype(np.float32) for shape in shapes]
    lengths = None
    if with_lengths:
        lengths = build.input(TensorType((batch,), Element.INT64), HERE)
        inputs.append(generator.permuted(np.resize([time, 0, time // 2], batch)))
    outputs = add_layer(
        build, cell, given_values[0], given_values[1:], parameters, reverse, dtype, lengths
    )
    return build.finish(outputs), inputs


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cell", RecurrentCell)
@settings(max_examples=3)
@given(
    time=st.integers(1, 5),
    batch=st.sampled_from([1, 1, 2, 3, 17]),
    hidden=SIZES,
    reverse=st.booleans(),
    with_bias=st.booleans(),
    with_lengths=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_size(
    isa: str,
    cell: RecurrentCell,
    time: int,
    batch: int,
    hidden: int,
    reverse: bool,
    with_bias: bool,
    with_lengths: bool,
    seed: int,
) -> None:
    generator = np.random.default_rng(seed)
    sizes = (time, batch, hidden)
    graph, inputs = single_layer(
        generator, cell, sizes, reverse, with_bias, with_lengths=with_lengths
    )
    check_graph(graph, inputs, Target.named(isa), TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cell", RecurrentCell)
@pytest.mark.parametrize("batch", [1, 3])
def test_two_directions_of_a_batch_first_layer(isa: str, cell: RecurrentCell, batch: int) -> None:
    """Gates are a permuted view; each direction writes its half of the features."""
    generator, time, hidden = np.random.default_rng(1), 4, 33
    build = GraphBuilder()
    rows = cell.gates * hidden
    gates = build.input(TensorType((batch, time, 2 * rows)), HERE)
    zeros = build.constant(np.zeros((batch, hidden), np.float32), HERE)
    ends, sequences = [], []
    for direction in range(2):
        part = Slice(2, direction * rows, (direction + 1) * rows)
        own = build.one(part, gates, origin=HERE)
        in_time = build.one(Permute((1, 0, 2)), own, origin=HERE)
        parameters, states = weights(generator, cell, hidden), [zeros] * cell.states
        every, *last = add_layer(build, cell, in_time, states, parameters, direction == 1)
        sequences.append(every)
        ends += last
    both = build.one(Concat(2), *sequences, origin=HERE)
    result = build.one(Permute((1, 0, 2)), both, origin=HERE)
    graph = build.finish([result, *ends])
    inputs = [generator.uniform(-1, 1, gates.shape).astype(np.float32)]
    check_graph(graph, inputs, Target.named(isa), TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", list(QUANTISED))
def test_stored_weights(isa: str, dtype: DType) -> None:
    generator = np.random.default_rng(2)
    target = Target.named(isa)
    graph, inputs = single_layer(generator, RecurrentCell.GRU, (3, 1, 64), dtype=dtype)
    check_graph(graph, inputs, target, QUANTISED[dtype])


@pytest.mark.parametrize("isa", ISAS)
def test_layers_feed_each_other(isa: str) -> None:
    """The sequence of one is the gates of the next, read with features apart."""
    generator, hidden = np.random.default_rng(3), 16
    build = GraphBuilder()
    gates = build.input(TensorType((3, 2, 4 * hidden)), HERE)
    zeros = build.constant(np.zeros((2, hidden), np.float32), HERE)
    cell = RecurrentCell.LSTM
    every, *_ = add_layer(build, cell, gates, [zeros] * 2, weights(generator, cell, hidden))
    spread = build.one(Slice(2, 0, hidden, 2), every, origin=HERE)
    first = build.constant(generator.uniform(-1, 1, (2, 8)).astype(np.float32), HERE)
    cell = RecurrentCell.RNN_TANH
    outputs = add_layer(build, cell, spread, [first], weights(generator, cell, 8))
    inputs = [generator.uniform(-1, 1, gates.shape).astype(np.float32)]
    check_graph(build.finish(outputs), inputs, Target.named(isa), TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT8])
@pytest.mark.parametrize(
    ("cell", "batch", "hidden"), [("lstm", 1, 65), ("gru", 3, 20), ("rnn_tanh", 5, 7)]
)
def test_states_in_steps_of_their_own_range(
    isa: str, dtype: DType, cell: str, batch: int, hidden: int
) -> None:
    """Weights are whole steps, which int8 holds as they are; so sums are exact."""
    generator, kind = np.random.default_rng(5), RecurrentCell(cell)
    sizes = (6, batch, hidden)
    graph, inputs = single_layer(generator, kind, sizes, dtype=dtype, with_lengths=batch > 1)
    (node,) = graph.nodes
    whole, scale = graph.constants[node.inputs[-2]], np.float32(0.004)
    steps = np.rint(whole / np.abs(whole).max() * 127).astype(np.float32)
    constants = {**graph.constants, node.inputs[-2]: steps * scale}
    rounding = replace(node, op=replace(node.op, rounds_state=True))
    rounded = replace(graph, nodes=(rounding,), constants=constants)
    check_graph(rounded, inputs, Target.named(isa), 2e-5)
