import numpy as np
import pytest

torch = pytest.importorskip("torch")

from spec_networks import plain_parameters  # noqa: E402

from sparsejit.errors import InvalidInput  # noqa: E402
from sparsejit.ir import reference  # noqa: E402
from sparsejit.ir.sparse_matrix import SparseMatrix  # noqa: E402
from sparsejit.ir.spec import DType, GruUpdate, MatVec, Quantisation  # noqa: E402
from sparsejit.voice.features import HOP_LENGTH  # noqa: E402
from sparsejit.voice.spec.sample_graph import STATE_STEP  # noqa: E402
from sparsejit.voice.train.fused_gru import BLOCK, FusedGRU, Int8Linear, integer_rows  # noqa: E402
from sparsejit.voice.train.module import WaveRNNModule  # noqa: E402
from sparsejit.voice.weights import VoiceWeights  # noqa: E402

STEPS = Quantisation(STATE_STEP, 0, symmetric=True)


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


def weight_and_rows(state):
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(24, 40, generator=generator)
    weight[3] = 0
    x = torch.rand(5, 40, generator=generator)
    return weight, 2 * x - 1 if state else 30 * x


@pytest.mark.parametrize("state", [True, False])
def test_an_int8_product_is_the_kernels(state):
    weight, x = weight_and_rows(state)
    spec = MatVec(24, 40, dtype=DType.INT8, x_steps=STEPS if state else None)
    y = Int8Linear.apply(x, weight, state)
    for row, found in zip(x.numpy(), y.numpy(), strict=True):
        wanted = reference.matvec(spec, SparseMatrix(weight.numpy()), row)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("state", [True, False])
def test_gradients_of_an_int8_product_pass_the_rounding_by(state):
    weight, x = (tensor.requires_grad_() for tensor in weight_and_rows(state))
    rows, scales = integer_rows(weight.detach())
    step = STATE_STEP if state else x.detach().amax(1, keepdim=True) / 127
    rounded_x = x + ((x / step).round() * step - x).detach()
    rounded_weight = weight + (rows * scales[:, None] - weight).detach()
    factors = torch.arange(24.0)
    wanted = torch.autograd.grad((rounded_x @ rounded_weight.t() * factors).sum(), (x, weight))
    y = Int8Linear.apply(x, weight, state)
    found = torch.autograd.grad((y * factors).sum(), (x, weight))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)


def test_the_int8_gru_multiplies_as_the_kernels_do_and_keeps_its_state_in_full():
    torch.manual_seed(0)
    gates, state = torch.randn(9, 1, 48), torch.rand(1, 16) * 2 - 1
    weight, bias = torch.randn(48, 16), torch.randn(48)
    states, _ = FusedGRU.apply(gates, state, weight, bias, True)
    spec = MatVec(48, 16, dtype=DType.INT8, x_steps=STEPS, bias=bias.numpy())
    h = state[0].numpy()
    for x, found in zip(gates[:, 0].numpy(), states[:, 0].numpy(), strict=True):
        product = reference.matvec(spec, SparseMatrix(weight.numpy()), h)
        wanted = reference.gru_update(GruUpdate(16), x, product, h)
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        h = found


def test_gradients_of_the_int8_gru_are_those_of_the_rounded_one():
    torch.manual_seed(0)
    gates, state = torch.randn(2 * BLOCK + 3, 2, 48), torch.rand(2, 16) * 2 - 1
    weight, bias = torch.randn(48, 16, requires_grad=True), torch.zeros(48, requires_grad=True)
    rows, scales = integer_rows(weight.detach())
    rounded = weight + (rows * scales[:, None] - weight).detach()
    h, expected = state, []
    for x in gates:
        seen = h + ((h * 127).round() / 127 - h).detach()
        product = seen @ rounded.t() + bias
        r, z = (x + product)[:, :32].sigmoid().chunk(2, dim=1)
        n = torch.tanh(x[:, 32:] + r * product[:, 32:])
        h = n + z * (h - n)
        expected.append(h)
    states, _ = FusedGRU.apply(gates, state, weight, bias, True)
    factors = torch.randn_like(states)
    wanted = torch.autograd.grad((torch.stack(expected) * factors).sum(), (weight, bias))
    found = torch.autograd.grad((states * factors).sum(), (weight, bias))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("size", [16, 24])
def test_a_network_started_from_a_voice_says_what_the_voice_says(size):
    weights = VoiceWeights.random(16)
    voice, wider = WaveRNNModule.from_weights(weights), WaveRNNModule(size)
    wider.start_from(weights)
    inputs = torch.randint(0, 256, (2 * HOP_LENGTH, 2, 3))
    mel = torch.randn(2, 80, 6)
    with torch.no_grad():
        wanted, _ = voice(inputs, mel, torch.zeros(2, 16))
        found, _ = wider(inputs, mel, torch.zeros(2, size))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    if size > 16:
        assert wider.rnn.weight_hh_l0.view(3, size, size)[:, 16:].count_nonzero() == 3 * 8 * size


def test_a_network_cannot_start_from_a_wider_one():
    with pytest.raises(InvalidInput, match="start from has 24 units, the network 16"):
        WaveRNNModule(16).start_from(VoiceWeights.random(24))


def test_forward_is_the_sampler_s_network():
    """Its spec's formulas in float64 give the module's logits."""
    torch.manual_seed(0)
    module = WaveRNNModule(16)
    generator = np.random.default_rng(0)
    mel = generator.uniform(-6, 0, (80, 3)).astype(np.float32)
    module.mel_mean.fill_(-3)
    classes = generator.integers(0, 256, (3 * HOP_LENGTH, 3))
    padded = torch.from_numpy(np.pad(mel, ((0, 0), (2, 2)), mode="edge"))[None]
    with torch.no_grad():
        logits, _ = module(torch.from_numpy(classes)[:, None], padded, torch.zeros(1, 16))
    network = module.weights().network
    features, _ = network.frame_features(mel)
    wanted = list(plain_parameters(network.spec, network.tensors, features, classes))
    np.testing.assert_allclose(logits[:, 0], wanted, atol=1e-4)


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
