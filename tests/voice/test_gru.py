"""The pointwise GRU update against float64 and against torch."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runnable import ISAS

from sparsejit.asm_templates.pointwise.gru_gates import emit_gru_update
from sparsejit.ir import reference
from sparsejit.ir.spec import GruUpdate
from sparsejit.machine.target import Target
from sparsejit.runtime.program import build

FloatArray = npt.NDArray[np.float32]
# The two gates and the candidate are off by at most 5e-7 each, |state - candidate| is at most 2,
# and the reset gate's error is multiplied by the recurrent candidate.
BOUND_PER_UNIT_OF_GATE = 2e-6


def update(
    isa: str, input_gates: FloatArray, recurrent_gates: FloatArray, state: FloatArray
) -> FloatArray:
    """The new state from native code, which updates in place."""
    spec = GruUpdate(len(state))
    program = build("gru", Target.named(isa), lambda asm: emit_gru_update(asm, spec))
    new = state.copy()
    arrays = (np.ascontiguousarray(input_gates), np.ascontiguousarray(recurrent_gates), new)
    program.memory.function(3)(*(array.ctypes.data for array in arrays))
    return new


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=50)
@given(
    hidden=st.integers(1, 300),
    scale=st.sampled_from([0.1, 1.0, 10.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_hidden_size(isa: str, hidden: int, scale: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    from_input, from_state = (
        (generator.normal(size=3 * hidden) * scale).astype(np.float32) for _ in range(2)
    )
    state = generator.uniform(-1, 1, hidden).astype(np.float32)
    expected = reference.gru_update(GruUpdate(hidden), from_input, from_state, state)
    error = np.abs(update(isa, from_input, from_state, state) - expected)
    bound = BOUND_PER_UNIT_OF_GATE * (1 + np.abs(from_state[2 * hidden :]))
    assert np.all(error <= bound)


@pytest.mark.parametrize("isa", ISAS)
def test_it_is_the_cell_of_torch(isa: str) -> None:
    """One step of torch.nn.GRUCell, so gate order and formula are torch's, not ours alone."""
    torch = pytest.importorskip("torch")
    hidden, generator = 100, torch.Generator().manual_seed(0)
    cell = torch.nn.GRUCell(24, hidden)
    x = torch.randn(24, generator=generator)
    state = torch.rand(hidden, generator=generator) * 2 - 1
    with torch.no_grad():
        from_input = (cell.weight_ih @ x + cell.bias_ih).numpy()
        from_state = (cell.weight_hh @ state + cell.bias_hh).numpy()
        expected = cell(x[None], state[None])[0].numpy()
    new = update(isa, from_input, from_state, state.numpy())
    np.testing.assert_allclose(new, expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("isa", ISAS)
def test_saturated_gates_keep_or_replace_the_state(isa: str) -> None:
    hidden = 40
    state = np.linspace(-1, 1, hidden).astype(np.float32)
    gates = np.zeros((3, hidden), np.float32)
    nothing = np.zeros(3 * hidden, np.float32)
    gates[1], gates[2] = np.inf, 5.0
    kept = update(isa, gates.ravel(), nothing, state)
    np.testing.assert_allclose(kept, state, rtol=0, atol=2.0**-23)
    gates[1], gates[2] = -np.inf, 20.0
    np.testing.assert_array_equal(update(isa, gates.ravel(), nothing, state), np.ones(hidden))


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
