import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sparsejit.voice.features import HOP_LENGTH  # noqa: E402
from sparsejit.voice.gru import BLOCK, FusedGRU  # noqa: E402
from sparsejit.voice.module import WaveRNNModule  # noqa: E402


def gru_and_inputs(steps, batch=3, size=16):
    torch.manual_seed(steps)
    gru = torch.nn.GRU(8, size).double()
    inputs = torch.randn(steps, batch, 8, dtype=torch.float64)
    state = torch.randn(batch, size, dtype=torch.float64)
    return gru, inputs, state


def fused(gru, inputs, state):
    gates = inputs @ gru.weight_ih_l0.t() + gru.bias_ih_l0
    return FusedGRU.apply(gates, state, gru.weight_hh_l0, gru.bias_hh_l0)


@pytest.mark.parametrize("steps", [1, BLOCK, 2 * BLOCK + 7])
def test_the_fused_gru_and_its_gradients_are_those_of_torch(steps):
    gru, inputs, state = gru_and_inputs(steps)
    expected, expected_last = gru(inputs, state[None])
    states, last = fused(gru, inputs, state)
    torch.testing.assert_close(states, expected)
    torch.testing.assert_close(last, expected_last[0])
    # Both outputs get a gradient, so that the carried one is tested too.
    factors = torch.randn_like(states)
    wanted = torch.autograd.grad(
        (expected * factors).sum() + expected_last.square().sum(), gru.parameters()
    )
    found = torch.autograd.grad((states * factors).sum() + last.square().sum(), gru.parameters())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_forward_is_the_sampler_s_network():
    """The folded tables and per-frame arrays, run in float64, give the module's logits."""
    torch.manual_seed(0)
    module = WaveRNNModule(16)
    generator = np.random.default_rng(0)
    mel = generator.uniform(-6, 0, (80, 3)).astype(np.float32)
    module.mel_mean.fill_(-3)
    classes = generator.integers(0, 256, (3 * HOP_LENGTH, 3))
    padded = torch.from_numpy(np.pad(mel, ((0, 0), (2, 2)), mode="edge"))[None]
    with torch.no_grad():
        logits, _ = module(torch.from_numpy(classes)[:, None], padded, torch.zeros(1, 16))
    np.testing.assert_allclose(logits[:, 0], network(module.weights(), mel, classes), atol=1e-4)


def network(weights, mel, classes):
    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    conditioning, size = weights.conditioning(mel), weights.hidden_size
    state, logits = np.zeros(size), []
    for t, row in enumerate(classes):
        frame = t // HOP_LENGTH
        x = conditioning.gate_terms[frame].astype(np.float64)
        x += sum(weights.input_tables[i, index] for i, index in enumerate(row))
        product = weights.recurrent @ state
        product[2 * size :] += weights.recurrent_new_bias
        r, z = np.split(sigmoid(x[: 2 * size] + product[: 2 * size]), 2)
        n = np.tanh(x[2 * size :] + r * product[2 * size :])
        state = n + z * (state - n)
        dense = np.maximum(weights.dense @ state + conditioning.dense_biases[frame], 0)
        logits.append(weights.output @ dense + weights.output_bias)
    return np.array(logits)


def test_state_carries_over_between_calls():
    torch.manual_seed(0)
    module = WaveRNNModule(16)
    inputs = torch.randint(0, 256, (4 * HOP_LENGTH, 2, 3))
    mel, start = torch.randn(2, 80, 8), torch.zeros(2, 16)
    half = 2 * HOP_LENGTH
    with torch.no_grad():
        whole, _ = module(inputs, mel, start)
        first, state = module(inputs[:half], mel[:, :, :6], start)
        second, _ = module(inputs[half:], mel[:, :, 2:], state)
    torch.testing.assert_close(torch.cat([first, second]), whole, atol=1e-5, rtol=1e-5)
