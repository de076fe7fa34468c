"""The pointwise updates of LSTM and plain recurrent layers against float64 and torch's cell."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runnable import ISAS

from sparsejit.asm_templates.pointwise.lstm_gates import emit_lstm_update
from sparsejit.asm_templates.pointwise.rnn_gates import emit_rnn_update
from sparsejit.ir import reference
from sparsejit.ir.graph import Array
from sparsejit.ir.spec import Activation, LstmUpdate, RnnUpdate
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
def test_it_is_the_cell_of_torch(isa: str) -> None:
    torch = pytest.importorskip("torch")
    hidden, generator = 100, torch.Generator().manual_seed(0)
    cell = torch.nn.LSTMCell(24, hidden)
    x = torch.randn(24, generator=generator)
    state, memory = torch.rand((2, hidden), generator=generator) * 2 - 1
    with torch.no_grad():
        gates = (cell.weight_ih @ x + cell.bias_ih).numpy()
        recurrent = (cell.weight_hh @ state + cell.bias_hh).numpy()
        expected = cell(x[None], (state[None], memory[None]))
    blank = np.zeros(hidden, np.float32)
    arrays = [gates, recurrent, memory.numpy(), blank, blank]
    spec = LstmUpdate(hidden)
    results = run(isa, lambda asm: emit_lstm_update(asm, spec, (r8,)), arrays, "end")
    for got, wanted in zip((results[4], results[3]), expected, strict=True):
        np.testing.assert_allclose(got, wanted[0].numpy(), rtol=0, atol=TOLERANCE)
