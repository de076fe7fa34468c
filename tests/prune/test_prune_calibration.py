"""The inputs that a calibration gathers, against what the layers themselves compute."""

import numpy as np
import pytest
import torch
from torch import nn

from sparsejit.errors import InvalidInput
from sparsejit.prune import calibrate, prune_wanda
from sparsejit.prune.layer_inputs import layer_inputs


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Linear(7, 5), (4, 3, 7)),
        (nn.Linear(7, 5), (7,)),
        (nn.Conv1d(3, 5, 4, stride=2, padding=1, dilation=2), (2, 3, 20)),
        (nn.Conv1d(3, 5, 3, padding="same", padding_mode="circular"), (3, 11)),
        (nn.Conv2d(3, 5, (2, 3), stride=(2, 1), padding=(1, 0)), (2, 3, 8, 9)),
        (nn.Conv2d(3, 5, 3, padding="same", padding_mode="reflect", dilation=2), (2, 3, 8, 9)),
    ],
)
def test_inputs_times_weights_are_the_outputs(module, shape):
    x = draw(*shape)
    ((name, rows),) = layer_inputs(module, (x,), {})
    outputs = module(x)
    if not isinstance(module, nn.Linear):
        batch = outputs if len(shape) == module.weight.ndim else outputs[None]
        outputs = batch.flatten(2).transpose(1, 2)
    assert name == "weight"
    products = rows @ module.weight.flatten(1).T + module.bias
    torch.testing.assert_close(products, outputs.reshape(-1, 5))


RNNS = {"GRU": nn.GRU, "LSTM": nn.LSTM, "RNN": nn.RNN}


def layer_alone(module: nn.RNNBase, kind: str, layer: int, suffix: str) -> nn.RNNBase:
    """One direction of one layer as a module of its own, same weights."""
    inputs = getattr(module, f"weight_ih_l{layer}{suffix}").shape[1]
    alone = RNNS[kind](inputs, module.hidden_size, bias=module.bias)
    for name in ("weight_ih", "weight_hh", *(("bias_ih", "bias_hh") if module.bias else ())):
        source = getattr(module, f"{name}_l{layer}{suffix}")
        getattr(alone, f"{name}_l0").data = source.data.clone()
    return alone


@pytest.mark.parametrize("kind", RNNS)
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_inputs_are_the_states_of_every_layer_and_direction(kind, bias):
    torch.manual_seed(0)
    module = RNNS[kind](4, 6, num_layers=2, bidirectional=True, bias=bias)
    x, h0, c0 = draw(5, 3, 4), draw(4, 3, 6, seed=1), draw(4, 3, 6, seed=2)
    start = (h0, c0) if kind == "LSTM" else h0
    gathered = dict(layer_inputs(module, (x, start), {}))
    assert len(gathered) == 8
    sequence = x
    for layer in range(2):
        outputs = []
        for direction, suffix in enumerate(("", "_reverse")):
            index = 2 * layer + direction
            own = (h0[index : index + 1], c0[index : index + 1])
            steps = sequence.flip(0) if suffix else sequence
            alone = layer_alone(module, kind, layer, suffix)
            states, _ = alone(steps, own if kind == "LSTM" else own[0])
            before = torch.cat([own[0], states[:-1]])
            hidden = gathered[f"weight_hh_l{layer}{suffix}"]
            torch.testing.assert_close(hidden, before.flatten(0, 1))
            inputs = gathered[f"weight_ih_l{layer}{suffix}"]
            torch.testing.assert_close(inputs, sequence.flatten(0, 1))
            outputs.append(states.flip(0) if suffix else states)
        sequence = torch.cat(outputs, 2)
    torch.testing.assert_close(sequence, module(x, start)[0])


@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_batch_first_unbatched_and_keyword_calls_give_the_same_inputs(kind):
    module = RNNS[kind](4, 6)
    first = RNNS[kind](4, 6, batch_first=True)
    first.load_state_dict(module.state_dict())
    x = draw(5, 1, 4)
    wanted = dict(layer_inputs(module, (x,), {}))
    for other, value in ((first, x.transpose(0, 1)), (module, x[:, 0])):
        for name, rows in layer_inputs(other, (), {"input": value}):
            torch.testing.assert_close(rows, wanted[name])


@pytest.mark.parametrize("cell", [nn.GRUCell(4, 6), nn.LSTMCell(4, 6)])
def test_cells_are_fed_by_the_caller(cell):
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell
            self.states: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = None
            for step in x:
                state = self.cell(step, state)
                self.states.append(state[0] if isinstance(state, tuple) else state)
            return self.states[-1]

    loop = Loop()
    x = draw(5, 3, 4)
    calibration = calibrate(loop, ["cell.weight*"], [x])
    states = torch.cat(loop.states[:-1]).double()
    gram = calibration["cell.weight_hh"].gram
    np.testing.assert_allclose(gram, states.T @ states / len(states), rtol=1e-6)
    rows = x.reshape(-1, 4).double()
    gram = calibration["cell.weight_ih"].gram
    np.testing.assert_allclose(gram, rows.T @ rows / len(rows), rtol=1e-6)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.fc = nn.Linear(6, 4)
        self.unused = nn.Linear(4, 4)
        self.table = nn.Embedding(3, 4)
        self.grouped = nn.Conv1d(4, 4, 1, groups=2)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.fc(self.norm(x) * scale)


def test_gram_is_the_mean_over_all_batches_and_the_model_is_left_as_it_was():
    model = Net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batches = [draw(8, 6), (draw(5, 6, seed=1), 3.0)]
    layer = calibrate(model, "fc.weight", batches)["fc.weight"]
    rows = torch.cat([batches[0], batches[1][0] * 3]).double() / np.sqrt(1 + 1e-5)
    np.testing.assert_allclose(layer.gram, rows.T @ rows / 13, rtol=1e-5)
    assert layer.count == 13
    assert model.training and model.fc.training and not model.fc._forward_pre_hooks
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    other = model.fc.weight.detach() + draw(4, 6, seed=2)
    change, outputs = (rows @ (other - before["fc.weight"]).double().T, rows @ layer.weight.T)
    expected = (change.square().sum() / outputs.square().sum()).item()
    assert layer.error(other) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("target", "batch", "message"),
    [
        ("unused.weight", draw(2, 6), r"unused\.weight met no input"),
        ("table.weight", draw(2, 6), r"belongs to Embedding, whose inputs cannot"),
        ("grouped.weight", draw(2, 6), r"convolution of 2 groups"),
        ("fc.weight", draw(2, 6) * torch.nan, r"fc\.weight met NaN"),
        ("nothing", draw(2, 6), r"'nothing' matches no parameter"),
    ],
)
def test_layers_that_cannot_be_calibrated(target, batch, message):
    model = Net()
    with pytest.raises(InvalidInput, match=message):
        calibrate(model, [target], [batch])
    assert not model.fc._forward_pre_hooks and model.training


def test_recurrent_layers_that_cannot_be_calibrated():
    with pytest.raises(InvalidInput, match=r"weight_hh_l0 is an LSTM with proj_size"):
        calibrate(nn.LSTM(4, 6, proj_size=2), "weight_hh_l0", [draw(3, 1, 4)])
    packed = nn.utils.rnn.pack_sequence([draw(3, 4), draw(2, 4)])
    with pytest.raises(InvalidInput, match=r"PackedSequence: pass padded tensors"):
        calibrate(nn.GRU(4, 6), "weight_hh_l0", [(packed,)])


@pytest.mark.parametrize(
    "batch",
    [
        draw(4, 6).numpy(),
        (draw(4, 6).numpy(),),
        [draw(4, 6)],
        {"input": draw(4, 6)},
        {"input": draw(4, 6).numpy()},
    ],
    ids=["array", "tuple of arrays", "list", "dict", "dict of arrays"],
)
def test_batches_as_loaders_make_them(batch):
    layer = nn.Linear(6, 3)
    found = calibrate(layer, "weight", [batch])["weight"]
    torch.testing.assert_close(found.gram, calibrate(layer, "weight", [draw(4, 6)])["weight"].gram)
    assert found.count == 4


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([[draw(4, 6), torch.zeros(4)]], r"a batch of Tensor\[4, 6\], Tensor\[4\] .*without label"),
        ([{"x": draw(4, 6)}], r"a batch of x=Tensor\[4, 6\] \(KeyError: 'input'\)"),
        ([draw(4, 5)], r"a batch of Tensor\[4, 5\] \(RuntimeError: .*: give its"),
        ("ab", r"batches is a str: give a list or a DataLoader"),
        ({"x": draw(4, 6)}, r"batches is a dict: give a list or a DataLoader"),
        (None, r"batches is a NoneType"),
    ],
)
def test_batches_that_the_model_does_not_take(batches, message):
    with pytest.raises(InvalidInput, match=message):
        calibrate(nn.Linear(6, 3), "weight", batches)


def test_a_run_that_cannot_be_called():
    with pytest.raises(InvalidInput, match="run=None: give a function of a model and a batch"):
        calibrate(nn.Linear(6, 3), "weight", [draw(4, 6)], None)


def test_a_weight_that_a_head_shares_with_an_embedding():
    tied = Tied()
    for targets in ("head.weight", "*.weight", ["table.weight", "head.weight"]):
        found = calibrate(tied, targets, [torch.tensor([3, 1])])
        assert list(found) == ["head.weight"] and found["head.weight"].count == 2
    prune_wanda(tied, found, 0.5)
    assert tied.table.weight.count_nonzero() == 10 * 4 / 2


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 4), nn.Linear(4, 10, bias=False)
        self.head.weight = self.table.weight

    def forward(self, places):
        return self.head(self.table(places))
