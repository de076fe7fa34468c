"""The pointwise updates of recurrent layers against float64 and torch's cells."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runnable import ISAS

from sparsejit.asm_templates.pointwise.gates import (
    emit_gru_update,
    emit_lstm_update,
    emit_rnn_update,
)
from sparsejit.ir import reference
from sparsejit.ir.spec import Activation, GruUpdate, LstmUpdate, RnnUpdate
from sparsejit.ir.values import Array
from sparsejit.machine.target import Target
from sparsejit.runtime.guard_pages import EDGES, Edge, GuardedArray
from sparsejit.runtime.program import build
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import r8, rdx

TOLERANCE = 2e-6  # three gates and a tanh of their sum, off by 5e-7 each


def run(
    isa: str, emit: Callable[[Assembler], None], arrays: list[Array], edge: Edge
) -> list[Array]:
    """The arrays after native code ran over them, each at a guard page."""
    placed = [GuardedArray(array, edge) for array in arrays]
    program = build("gates", Target.named(isa), emit)
    program.memory.function(len(placed))(*(array.address for array in placed))
    assert all(array.surroundings_intact() for array in placed)
    return [array.values for array in placed]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("edge", EDGES)
@settings(max_examples=20)
@given(
    hidden=st.integers(1, 300),
    scale=st.sampled_from([0.1, 1.0, 10.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_lstm_of_any_size(isa: str, edge: Edge, hidden: int, scale: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    gates, recurrent = (generator.normal(size=(2, 4 * hidden)) * scale).astype(np.float32)
    cell = generator.uniform(-2, 2, hidden).astype(np.float32)
    blank = np.zeros(hidden, np.float32)
    spec = LstmUpdate(hidden)
    arrays = [gates, recurrent, cell, blank, blank]
    results = run(isa, lambda asm: emit_lstm_update(asm, spec, (r8,)), arrays, edge)
    *_, kept, new_cell, state = results
    expected_state, expected_cell = reference.lstm_update(spec, gates, recurrent, cell)
    np.testing.assert_array_equal(kept, cell)
    np.testing.assert_allclose(new_cell, expected_cell, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(state, expected_state, rtol=0, atol=TOLERANCE)


def updated(
    isa: str, gates: Array, recurrent: Array, state: Array, edge: Edge = "end"
) -> Array:
    """A GRU's new state, which native code writes in place."""
    spec = GruUpdate(len(state))
    arrays = [np.ascontiguousarray(each.ravel()) for each in (gates, recurrent, state)]
    return run(isa, lambda asm: emit_gru_update(asm, spec), arrays, edge)[2]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("edge", EDGES)
@settings(max_examples=30)
@given(
    hidden=st.integers(1, 300),
    scale=st.sampled_from([0.1, 1.0, 10.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_gru_of_any_size(isa: str, edge: Edge, hidden: int, scale: float, seed: int) -> None:
    """The reset gate's error is multiplied by the recurrent candidate."""
    generator = np.random.default_rng(seed)
    gates, recurrent = (generator.normal(size=(2, 3 * hidden)) * scale).astype(np.float32)
    state = generator.uniform(-1, 1, hidden).astype(np.float32)
    expected = reference.gru_update(GruUpdate(hidden), gates, recurrent, state)
    error = np.abs(updated(isa, gates, recurrent, state, edge) - expected)
    assert np.all(error <= TOLERANCE * (1 + np.abs(recurrent[2 * hidden :])))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", [Activation.TANH, Activation.RELU])
@settings(max_examples=20)
@given(hidden=st.integers(1, 300), seed=st.integers(0, 2**32 - 1))
def test_plain_layer_of_any_size(isa: str, activation: Activation, hidden: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    gates, recurrent = generator.normal(size=(2, hidden)).astype(np.float32)
    spec = RnnUpdate(hidden, activation)
    arrays = [gates, recurrent, np.zeros(hidden, np.float32)]
    *_, state = run(isa, lambda asm: emit_rnn_update(asm, spec, (rdx,)), arrays, "end")
    expected = reference.rnn_update(spec, gates, recurrent)
    np.testing.assert_allclose(state, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["LSTMCell", "GRUCell"])
def test_it_is_the_cell_of_torch(isa: str, name: str) -> None:
    """One step of torch's, so gate order and formula are not ours alone."""
    torch = pytest.importorskip("torch")
    hidden, generator = 100, torch.Generator().manual_seed(0)
    cell = getattr(torch.nn, name)(24, hidden)
    x = torch.randn(24, generator=generator)
    state, memory = torch.rand((2, hidden), generator=generator) * 2 - 1
    given = (state[None], memory[None]) if name == "LSTMCell" else state[None]
    with torch.no_grad():
        gates = (cell.weight_ih @ x + cell.bias_ih).numpy()
        recurrent = (cell.weight_hh @ state + cell.bias_hh).numpy()
        expected = cell(x[None], given)
    if name == "GRUCell":
        pairs = [(updated(isa, gates, recurrent, state.numpy()), expected)]
    else:
        blank = np.zeros(hidden, np.float32)
        arrays = [gates, recurrent, memory.numpy(), blank, blank]
        spec = LstmUpdate(hidden)
        results = run(isa, lambda asm: emit_lstm_update(asm, spec, (r8,)), arrays, "end")
        pairs = [(results[4], expected[0]), (results[3], expected[1])]
    for found, wanted in pairs:
        np.testing.assert_allclose(found, wanted[0].numpy(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
def test_saturated_gates_keep_or_replace_the_state(isa: str) -> None:
    hidden = 40
    state = np.linspace(-1, 1, hidden).astype(np.float32)
    gates, nothing = np.zeros((2, 3, hidden), np.float32)
    gates[1], gates[2] = np.inf, 5.0
    np.testing.assert_allclose(updated(isa, gates, nothing, state), state, rtol=0, atol=2.0**-23)
    gates[1], gates[2] = -np.inf, 20.0
    np.testing.assert_array_equal(updated(isa, gates, nothing, state), np.ones(hidden))


@pytest.mark.parametrize("isa", ISAS)
def test_a_long_run_stays_inside_the_unit_interval(isa: str) -> None:
    """A convex combination of values in [-1, 1], rounded: 2000 steps must not creep out."""
    hidden, generator = 64, np.random.default_rng(3)
    spec = GruUpdate(hidden)
    program = build("gru", Target.named(isa), lambda asm: emit_gru_update(asm, spec))
    function = program.memory.function(3)
    state = np.zeros(hidden, np.float32)
    for _ in range(2000):
        gates = (generator.normal(size=(2, 3 * hidden)) * 20).astype(np.float32)
        function(gates[0].ctypes.data, gates[1].ctypes.data, state.ctypes.data)
        assert np.all(np.abs(state) <= 1.0)
