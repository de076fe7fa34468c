"""Pruning during training: schedule, momentum, weight decay, resuming."""

import copy
import io

import pytest
import rich.console
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sparsejit.prune import CubicSchedule, Pruner

TARGETS = ["rnn.weight_hh_l0", "fc*.weight"]
SCHEDULE = CubicSchedule(start=4, end=23, every=3)
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9),
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(6, 20)
        self.fc1 = nn.Linear(20, 11)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc1(self.rnn(x)[0])


class Training:
    def __init__(self, optimizer: str = "adam", device: str = "cpu") -> None:
        torch.manual_seed(0)
        self.device = device
        self.model = Net().to(device)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        options = {"schedule": SCHEDULE, "allocation": "uniform"}
        self.pruner = Pruner(0.9, "1x8", targets=TARGETS, **options)
        self.pruner.prepare(self.model, self.optimizer)

    def run(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            x = torch.randn(7, 3, 6, generator=torch.Generator().manual_seed(step))
            self.optimizer.zero_grad()
            self.model(x.to(self.device)).sub(1).square().mean().backward()
            self.optimizer.step()
            self.pruner.step()

    def weights(self) -> list[nn.Parameter]:
        return [self.model.rnn.weight_hh_l0, self.model.fc1.weight]

    def checkpoint(self) -> dict:
        stream = io.BytesIO()
        parts = (self.model, self.optimizer, self.pruner)
        torch.save([part.state_dict() for part in parts], stream)
        stream.seek(0)
        return torch.load(stream, weights_only=True)


@given(
    start=st.integers(0, 50),
    length=st.integers(1, 200),
    every=st.integers(1, 60),
)
def test_cubic_schedule(start, length, every):
    schedule = CubicSchedule(start, start + length, every)
    due = [step for step in range(start + length + 80) if schedule.due(step)]
    assert due == sorted({*range(start, start + length, every), start + length})
    amounts = [schedule.amount(step, 0.9) for step in range(start + length + 80)]
    assert amounts == sorted(amounts)
    assert amounts[start] == 0 and amounts[start + length] == amounts[-1] == 0.9
    middle = schedule.amount(start + length / 2, 0.9)  # type: ignore[arg-type]
    assert middle == pytest.approx(0.9 * 7 / 8)


def test_density_follows_the_schedule_and_ends_exactly():
    training = Training()
    for step in range(1, 27):
        training.run(step, step)
        last_update = max((s for s in range(step + 1) if SCHEDULE.due(s)), default=0)
        for layer in training.pruner.sparsity_report().layers:
            per_gate = layer.blocks // layer.gates
            pruned = round(SCHEDULE.amount(last_update, 0.9) * per_gate) * layer.gates
            assert layer.occupied_blocks == layer.blocks - pruned
    gru, dense = training.pruner.sparsity_report().layers
    # 20 hidden rows a gate in blocks of 8: 3 block rows by 20 inputs; 11 outputs: 2 by 20.
    assert (gru.blocks, gru.occupied_blocks) == (180, 180 - 3 * 54)
    assert (dense.blocks, dense.occupied_blocks) == (40, 40 - 36)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_pruned_weights_stay_zero_and_keep_no_momentum(optimizer):
    training = Training(optimizer)
    pruned_before = [torch.zeros_like(weight, dtype=torch.bool) for weight in training.weights()]
    for step in range(1, 31):
        training.run(step, step)
        for i, weight in enumerate(training.weights()):
            pruned = weight.detach() == 0
            assert pruned[pruned_before[i]].all()
            pruned_before[i] = pruned
            moments = [v for v in training.optimizer.state[weight].values() if v.ndim == 2]
            assert moments
            for moment in moments:
                assert (moment[pruned] == 0).all()
                assert (moment[~pruned] != 0).any()


def test_surviving_weights_train_as_if_alone():
    """One step after pruning equals the optimizer's own step, masked: nothing else is touched."""
    training = Training()
    training.run(1, 30)
    twin = Training()
    for part, state in zip((twin.model, twin.optimizer), training.checkpoint()[:2], strict=True):
        part.load_state_dict(state)
    pruned = [weight.detach() == 0 for weight in training.weights()]
    twin.pruner.step = lambda: None  # type: ignore[method-assign]
    training.run(31, 31)
    twin.run(31, 31)
    for mine, other, mask in zip(training.weights(), twin.weights(), pruned, strict=True):
        assert torch.equal(mine, other.masked_fill(mask, 0))
        assert (other[mask] != 0).any()


@settings(max_examples=10, deadline=None)
@given(stop=st.integers(0, 28))
def test_resuming_gives_identical_weights(stop):
    straight = Training()
    straight.run(1, 30)
    interrupted = Training()
    interrupted.run(1, stop)
    resumed = Training()
    model_state, optimizer_state, pruner_state = interrupted.checkpoint()
    resumed.model.load_state_dict(model_state)
    resumed.optimizer.load_state_dict(optimizer_state)
    resumed.pruner.load_state_dict(pruner_state)
    resumed.run(stop + 1, 30)
    for mine, other in zip(
        resumed.model.state_dict().values(), straight.model.state_dict().values(), strict=True
    ):
        assert torch.equal(mine, other)


def test_a_pruned_block_never_returns_however_far_it_moved():
    training = Training()
    training.run(1, SCHEDULE.start + SCHEDULE.every)
    pruned = [weight.detach() == 0 for weight in training.weights()]
    while not SCHEDULE.due(training.pruner.state_dict()["step"] + 1):
        training.pruner.step()
    for weight, mask in zip(training.weights(), pruned, strict=True):
        assert mask.any()
        weight.data[mask] = 1000.0
    training.pruner.step()
    amount = SCHEDULE.amount(training.pruner.state_dict()["step"], 0.9)
    assert all((w[mask] == 0).all() for w, mask in zip(training.weights(), pruned, strict=True))
    dense = training.pruner.sparsity_report().layers[1]
    assert dense.blocks - dense.occupied_blocks == round(amount * dense.blocks)


def test_weights_assigned_after_prepare_are_the_ones_pruned():
    training = Training()
    training.run(1, 25)
    fresh = {name: torch.ones_like(value) for name, value in training.model.state_dict().items()}
    training.model.load_state_dict(fresh, assign=True)
    training.pruner.step()
    assert training.pruner.sparsity_report().layers[0].occupied_blocks == 18


def test_finalize_leaves_an_ordinary_module_and_is_idempotent():
    training = Training()
    names = list(Net().state_dict())
    training.run(1, 30)
    with torch.no_grad():
        training.model.fc1.weight -= 1e-3
    report = training.pruner.finalize()
    weights = [weight.detach().clone() for weight in training.weights()]
    assert report == training.pruner.finalize()
    assert report.layers[1].occupied_blocks == 4
    assert all(map(torch.equal, weights, training.weights()))
    zeros = weights[1][weights[1] == 0]
    assert not torch.signbit(zeros).any()
    assert list(training.model.state_dict()) == names
    assert not hasattr(training.model.fc1, "parametrizations")
    assert torch.equal(copy.deepcopy(training.model).fc1.weight, weights[1])


def test_masked_gradients_leave_only_survivors_in_the_norm():
    training = Training()
    training.run(1, 30)
    training.model(torch.randn(4, 2, 6)).sum().backward()
    wanted = [w.grad.masked_fill(w.detach() == 0, 0).clone() for w in training.weights()]
    untouched = training.model.rnn.weight_ih_l0.grad.clone()
    training.pruner.mask_gradients()
    assert all(torch.equal(w.grad, g) for w, g in zip(training.weights(), wanted, strict=True))
    assert torch.equal(training.model.rnn.weight_ih_l0.grad, untouched)


def test_report_prints_a_row_for_each_weight():
    console = rich.console.Console(width=120, record=True, file=io.StringIO())
    console.print(Training().pruner.sparsity_report())
    text = console.export_text()
    assert "rnn.weight_hh_l0" in text and "60 x 20" in text and "100.00%" in text


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_training_and_a_model_moved_between_devices():
    training = Training(device="cuda")
    training.run(1, 30)
    report = training.pruner.finalize()
    assert report.layers[0].occupied_blocks == 18
    training.model.to("cpu")
    training.model.fc1.weight.data.fill_(1)
    assert training.pruner.finalize().layers[1].occupied_blocks == 4
