"""Iterative pruning: when, how much, and what goes back to where it was."""

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sparsejit.errors import InvalidInput
from sparsejit.prune import ConstantRate, IterativeSchedule, OneShot, Pruner


class Training:
    """Adam with a learning rate that falls along the recipe, which rewinding turns back."""

    def __init__(self, schedule: IterativeSchedule) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Linear(32, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        targets = ["*.weight", "!1.*"]
        self.pruner = Pruner(0.9, targets=targets, schedule=schedule, allocation="uniform")
        self.pruner.prepare(self.model, self.optimizer)
        self.schedule = schedule
        self.rates: list[float] = []

    def run(self, first: int, last: int) -> None:
        for step in range(first, last + 1):
            rate = 0.05 * (1 - self.pruner.training_step / self.schedule.length)
            self.rates.append(rate)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step))
            self.optimizer.zero_grad()
            self.model(x).sub(1).square().mean().backward()
            self.optimizer.step()
            self.pruner.step()

    def parameters(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}


@given(
    rounds=st.integers(1, 6),
    length=st.integers(1, 40),
    rewind=st.floats(0, 0.999),
    final=st.floats(0.01, 0.99),
)
def test_iterative_schedule_prunes_the_same_share_of_what_is_left(rounds, length, rewind, final):
    schedule = IterativeSchedule(rounds, length, rewind_to=int(rewind * length))
    due = [step for step in range(schedule.total + 5) if schedule.due(step)]
    assert len(due) == rounds and due[0] == length and due[-1] == schedule.end
    density = [1 - schedule.amount(step, final) for step in due]
    for k in range(1, rounds):
        assert density[k] / density[k - 1] == pytest.approx(density[0])
    assert schedule.amount(due[-1], final) == final
    assert schedule.amount(length - 1, final) == 0
    assert [schedule.training_step(step) for step in due] == [schedule.rewind_to] * rounds
    assert schedule.training_step(schedule.total) == length


def test_learning_rate_rewinding_keeps_weights_and_repeats_the_rates():
    training = Training(IterativeSchedule(rounds=3, length=10, rewind_to=4))
    training.run(1, 9)
    before = training.parameters()
    training.run(10, training.schedule.total)
    assert training.rates[:10] == training.rates[:4] + training.rates[10:16]
    assert training.rates[10:16] == training.rates[16:22] == training.rates[22:28]
    assert len(training.rates) == 28
    kept = training.pruner.finalize().layers
    assert [layer.nnz for layer in kept] == [256 - 230, 128 - 115]
    assert not torch.equal(before["1.weight"], training.parameters()["1.weight"])


@pytest.mark.parametrize("rewind_to", [0, 4])
def test_weight_rewinding_restores_everything_but_the_pruned(rewind_to):
    training = Training(IterativeSchedule(3, 10, rewind_to, rewind_weights=True))
    training.run(1, rewind_to)
    start = training.parameters()
    moments = [
        {key: value.clone() for key, value in training.optimizer.state[weight].items()}
        for weight in training.model.parameters()
        if weight in training.optimizer.state
    ]
    last = rewind_to
    for _ in range(3):
        training.run(last + 1, last + 10 - rewind_to)
        last += 10 - rewind_to
        masks = training.pruner.state_dict()["masks"]
        assert masks["0.weight"].sum() == round(256 * training.schedule.amount(last, 0.9))
        for name, value in training.parameters().items():
            expected = start[name]
            if name in masks:
                expected = expected.masked_fill(masks[name], 0)
            assert torch.equal(value, expected), name
        if moments:
            momentum = training.optimizer.state[training.model[1].weight]
            assert torch.equal(momentum["exp_avg"], moments[2]["exp_avg"])
            assert momentum["step"] == rewind_to


def test_masks_come_from_the_trained_weights_not_from_the_rewound():
    training = Training(IterativeSchedule(1, 10, 0, rewind_weights=True))
    start = training.parameters()["0.weight"]
    training.run(1, 10)
    by_start = start.abs().flatten().argsort()[:230]
    mask = training.pruner.state_dict()["masks"]["0.weight"].flatten()
    assert mask.sum() == 230 and not mask[by_start].all()


@pytest.mark.parametrize("stop", [2, 7, 10, 13])
def test_resuming_a_rewound_training_is_bit_for_bit(stop):
    schedule = IterativeSchedule(2, 10, 4, rewind_weights=True)
    straight, interrupted, resumed = Training(schedule), Training(schedule), Training(schedule)
    straight.run(1, schedule.total)
    interrupted.run(1, stop)
    stream = io.BytesIO()
    parts = ("model", "optimizer", "pruner")
    torch.save([getattr(interrupted, part).state_dict() for part in parts], stream)
    stream.seek(0)
    for part, state in zip(parts, torch.load(stream, weights_only=True), strict=True):
        getattr(resumed, part).load_state_dict(state)
    resumed.run(stop + 1, schedule.total)
    for name, value in straight.parameters().items():
        assert torch.equal(value, resumed.parameters()[name])


def test_constant_rate_and_one_shot():
    schedule = ConstantRate(start=2, end=12, every=5)
    assert [step for step in range(20) if schedule.due(step)] == [2, 7, 12]
    assert [schedule.amount(step, 0.8) for step in (0, 2, 7, 12, 15)] == [0, 0, 0.4, 0.8, 0.8]
    assert [OneShot(3).amount(step, 0.8) for step in (2, 3, 4)] == [0, 0.8, 0.8]
    assert [step for step in range(9) if OneShot(3).due(step)] == [3] == [OneShot(3).end]


@pytest.mark.parametrize("arguments", [(0, 5, 0), (1, 5, 5), (1, 5, -1)])
def test_wrong_iterative_schedules(arguments):
    with pytest.raises(InvalidInput, match=r"rounds >= 1 and 0 <= rewind_to < length"):
        IterativeSchedule(*arguments)
