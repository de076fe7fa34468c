"""Models that other tools pruned or reparametrised, copies, mixed precision, RNNs."""

import copy
import io

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, weight_norm
from torch.nn.utils import prune as torch_prune

from sparsejit.errors import InvalidInput
from sparsejit.prune import CubicSchedule, OneShot, Pruner, fold


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 16)
        self.fc = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.rnn(x)[0])


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net()


def inputs() -> torch.Tensor:
    return torch.randn(9, 3, 6, generator=torch.Generator().manual_seed(5))


def gru_by_hand(model: Net, x: torch.Tensor) -> np.ndarray:
    """The GRU's outputs in float64 from its named parameters alone."""
    parameters = {n: p.detach().double().numpy() for n, p in model.rnn.named_parameters()}
    h = np.zeros((x.shape[1], 16))
    outputs = []
    for step in x.double().numpy():
        i = step @ parameters["weight_ih_l0"].T + parameters["bias_ih_l0"]
        g = h @ parameters["weight_hh_l0"].T + parameters["bias_hh_l0"]
        r, z = (1 / (1 + np.exp(-(i + g)[:, s])) for s in (slice(0, 16), slice(16, 32)))
        n = np.tanh(i[:, 32:] + r * g[:, 32:])
        h = (1 - z) * n + z * h
        outputs.append(h)
    return np.stack(outputs)


def masked_by_torch() -> Net:
    model = net()
    torch_prune.l1_unstructured(model.fc, "weight", amount=0.5)
    torch_prune.random_unstructured(model.rnn, "weight_hh_l0", amount=0.6)
    torch_prune.l1_unstructured(model.rnn, "weight_hh_l0", amount=0.5)
    return model


def normalised_by_hooks() -> Net:
    model = net()
    for module, name in ((model.fc, "weight"), (model.rnn, "weight_hh_l0")):
        with pytest.warns(FutureWarning, match="deprecated"):
            weight_norm(module, name)
    return model


def normalised_by_parametrization() -> Net:
    model = net()
    parametrizations.weight_norm(model.fc)
    parametrizations.weight_norm(model.rnn, "weight_hh_l0")
    return model


COMPUTED = [masked_by_torch, normalised_by_hooks, normalised_by_parametrization]


@pytest.mark.parametrize("make", COMPUTED)
def test_folding_leaves_the_function_and_plain_parameters(make):
    model = make()
    before = model(inputs()).detach()
    with pytest.raises(InvalidInput, match=r"fc\.weight is computed .*prune\.fold\(model\) first"):
        Pruner(0.5, targets=["fc.weight"]).prepare(model)
    assert fold(model) == ["rnn.weight_hh_l0", "fc.weight"]
    assert fold(model) == []
    assert sorted(model.state_dict()) == sorted(net().state_dict())
    torch.testing.assert_close(model(inputs()), before)


@pytest.mark.parametrize("make", COMPUTED)
def test_a_folded_rnn_uses_the_weights_that_are_pruned_and_trained(make):
    model = make()
    fold(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, weight_decay=0.01)
    pruner = Pruner(0.75, "lane16", targets=["rnn.weight_hh_l0"], schedule=CubicSchedule(0, 4, 1))
    pruner.prepare(model, optimizer)
    for _ in range(6):
        optimizer.zero_grad()
        model(inputs()).square().mean().backward()
        optimizer.step()
        pruner.step()
    outputs = model.rnn(inputs())[0].detach().numpy()
    np.testing.assert_allclose(outputs, gru_by_hand(model, inputs()), atol=1e-5)
    assert pruner.finalize().density <= 0.25


def test_masks_of_torch_are_kept_in_training_and_counted():
    model = masked_by_torch()
    theirs = {
        "fc.weight": model.fc.weight_mask == 0,
        "rnn.weight_hh_l0": model.rnn.weight_hh_l0_mask == 0,
    }
    fold(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    pruner = Pruner(0.9, targets=list(theirs), schedule=OneShot(5), allocation="uniform")
    pruner.prepare(model, optimizer, keep_zeros=True)
    for step in range(1, 8):
        optimizer.zero_grad()
        model(inputs()).sub(1).square().mean().backward()
        optimizer.step()
        pruner.step()
        for name, pruned in theirs.items():
            weight = model.get_parameter(name).detach()
            assert (weight[pruned] == 0).all()
            if step < 5:
                assert (weight[~pruned] != 0).all()
    fc = pruner.finalize().layers[1]
    assert fc.nnz == 128 - round(0.9 * 128)


def test_zeros_of_any_model_are_kept_only_on_request():
    for keep_zeros in (True, False):
        model = net()
        with torch.no_grad():
            model.fc.weight[:, ::2] = 0
        pruner = Pruner(0.0, targets=["fc.weight"])
        pruner.prepare(model, keep_zeros=keep_zeros)
        model.fc.weight.data += 1
        pruner.step()
        assert (model.fc.weight[:, ::2] == 0).all() == keep_zeros
        assert (model.fc.weight[:, 1::2] != 0).all()


def test_deepcopies_go_on_alone_and_alike():
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    pruner = Pruner(0.8, "1x8", targets=["*weight*"], schedule=CubicSchedule(0, 12, 2))
    pruner.prepare(model, optimizer)

    def go_on(model, optimizer, pruner) -> None:
        for _ in range(6):
            optimizer.zero_grad()
            model(inputs()).square().mean().backward()
            optimizer.step()
            pruner.step()

    go_on(model, optimizer, pruner)
    twin = copy.deepcopy((model, optimizer, pruner))
    middle = copy.deepcopy(model)
    go_on(*twin)
    for mine, other in zip(model.parameters(), middle.parameters(), strict=True):
        assert torch.equal(mine, other)
    go_on(model, optimizer, pruner)
    for mine, other in zip(model.parameters(), twin[0].parameters(), strict=True):
        assert torch.equal(mine, other)
    assert pruner.finalize() == twin[2].finalize()


def test_a_finished_model_survives_saving_and_loading():
    model = net()
    Pruner(0.75, "lane16", targets=["*weight*"]).prepare(model)
    stream = io.BytesIO()
    torch.save(model.state_dict(), stream)
    stream.seek(0)
    loaded = net(seed=1)
    loaded.load_state_dict(torch.load(stream, weights_only=True))
    assert torch.equal(loaded(inputs()), model(inputs()))
    pruner = Pruner(0.75, "lane16", targets=["*weight*"])
    pruner.prepare(loaded, keep_zeros=True)
    for mine, other in zip(model.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_training_revives_nothing(dtype):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15)
    pruner = Pruner(0.8, "1x8", targets=["fc.weight"], schedule=CubicSchedule(0, 8, 2))
    pruner.prepare(model, optimizer)
    pruned = torch.zeros(8, 16, dtype=torch.bool)
    for _ in range(12):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = model(inputs()).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        pruner.step()
        now = model.fc.weight.detach() == 0
        assert now[pruned].all()
        pruned = now
    assert model.fc.weight.dtype == torch.float32
    assert pruner.finalize().layers[0].occupied_blocks == 16 - round(0.8 * 16)
