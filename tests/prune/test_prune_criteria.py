"""Movement and random importance; L1, group lasso and ADMM."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sparsejit.errors import InvalidInput
from sparsejit.prune import (
    ADMM,
    L1,
    PATTERNS,
    BlockPattern,
    CubicSchedule,
    GroupLasso,
    Movement,
    OneShot,
    Pruner,
    Random,
)


def random_linear(outputs: int = 16, inputs: int = 12, seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(inputs, outputs)


def train(model, pruner, optimizer, first: int, last: int, penalty: bool = False) -> None:
    for step in range(first, last + 1):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(32, 12, generator=generator)
        target = x[:, :1] * 2 - x[:, 1:2]
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        (loss + pruner.penalty() if penalty else loss).backward()
        optimizer.step()
        pruner.step()


def test_movement_keeps_what_grows_however_small():
    layer = random_linear()
    with torch.no_grad():
        layer.weight[:, :2] *= 0.05
    start = layer.weight.detach().clone()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.02)
    pruner = Pruner(10 / 12, targets=["weight"], criterion=Movement(), schedule=OneShot(40))
    pruner.prepare(layer, optimizer)
    expected = torch.zeros(16, 12, dtype=torch.float64)
    for step in range(1, 41):
        before = layer.weight.detach().double()
        train(layer, pruner, optimizer, step, step)
        expected -= layer.weight.grad.double() * before
    kept = layer.weight.detach() != 0
    top = torch.zeros_like(kept).view(-1)
    top[expected.flatten().argsort()[160:]] = True
    assert torch.equal(kept, top.view(16, 12))
    assert kept[:, :2].sum() > 16 > start.abs().flatten().argsort()[160:].remainder(12).lt(2).sum()


def test_movement_ignores_overflowed_gradients_and_misses_absent_ones():
    layer = random_linear()
    pruner = Pruner(0.5, targets=["weight"], criterion=Movement(), schedule=OneShot(9))
    pruner.prepare(layer)
    layer.weight.grad = torch.full_like(layer.weight, torch.inf)
    pruner.step()
    assert (pruner.criterion.importance("weight", layer.weight) == 0).all()
    layer.weight.grad = None
    with pytest.raises(InvalidInput, match=r"weight has no gradient.*before optimizer\.zero_grad"):
        pruner.step()


def test_random_masks_are_fixed_by_seed_and_name_and_ignore_weights():
    def masks(seed: int, scale: float, schedule=None) -> dict:
        model = nn.Sequential(random_linear(seed=int(scale)), nn.Linear(16, 12))
        criterion = Random(seed)
        pruner = Pruner(0.75, targets=["*.weight"], criterion=criterion, schedule=schedule)
        pruner.prepare(model)
        for _ in range(6):
            model[0].weight.data.mul_(-2).add_(1)
            pruner.step()
        return pruner.state_dict()["masks"]

    first = masks(0, 1)
    for same in (masks(0, 5), masks(0, 1, CubicSchedule(0, 6, 2))):
        assert all(torch.equal(first[name], same[name]) for name in first)
    other = masks(1, 1)
    assert not torch.equal(first["0.weight"], other["0.weight"])
    assert not torch.equal(first["0.weight"].flatten(), first["1.weight"].flatten())
    assert first["0.weight"].sum() == 144


def group_lasso_by_loops(weight: np.ndarray, block: tuple[int, int], gates: int) -> float:
    height, total = weight.shape[0] // gates, 0.0
    for gate in range(gates):
        part = weight[gate * height : (gate + 1) * height].astype(np.float64)
        for top in range(0, height, block[0]):
            for left in range(0, weight.shape[1], block[1]):
                values = part[top : top + block[0], left : left + block[1]]
                total += np.sqrt(values.size * (values**2).sum())
    return total


@given(
    hidden=st.integers(1, 20),
    inputs=st.integers(1, 9),
    block=st.tuples(st.integers(1, 17), st.integers(1, 4)),
)
@settings(max_examples=40, deadline=None)
def test_group_lasso_matches_loops(hidden, inputs, block):
    torch.manual_seed(hidden)
    gru = nn.GRU(inputs, hidden)
    regulariser = GroupLasso(0.1, BlockPattern(*block))
    pruner = Pruner(0.5, targets=["weight*"], schedule=OneShot(9), regulariser=regulariser)
    pruner.prepare(gru)
    expected = sum(
        group_lasso_by_loops(weight.detach().numpy(), block, 3)
        for weight in (gru.weight_ih_l0, gru.weight_hh_l0)
    )
    assert pruner.penalty().item() == pytest.approx(0.1 * expected, rel=1e-5)


def test_group_lasso_of_an_empty_block_has_a_gradient_of_zero():
    layer = random_linear()
    with torch.no_grad():
        layer.weight[:8, 0] = 0
    regulariser = GroupLasso(1.0, PATTERNS["1x8"])
    pruner = Pruner(0.5, "1x8", targets=["weight"], schedule=OneShot(9), regulariser=regulariser)
    pruner.prepare(layer)
    pruner.penalty().backward()
    assert (layer.weight.grad[:8, 0] == 0).all() and layer.weight.grad.isfinite().all()


def test_penalties_end_with_the_schedule_and_shrink_before_it():
    sums = {}
    for name, regulariser in (("none", L1(1e-12)), ("l1", L1(0.05))):
        layer = random_linear()
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
        pruner = Pruner(0.5, targets=["weight"], schedule=OneShot(60), regulariser=regulariser)
        pruner.prepare(layer, optimizer)
        expected = regulariser.strength * layer.weight.detach().abs().sum()
        assert pruner.penalty().item() == pytest.approx(expected.item(), rel=1e-5)
        train(layer, pruner, optimizer, 1, 59, penalty=True)
        sums[name] = layer.weight[:, 2:].abs().sum().item()
        assert pruner.penalty() > 0
        train(layer, pruner, optimizer, 60, 60)
        assert pruner.penalty() == 0
    assert sums["l1"] < 0.2 * sums["none"]


@pytest.mark.parametrize("pattern", ["unstructured", "1x8", "lane16"])
def test_admm_residual_falls_and_the_projection_costs_little(pattern):
    layer = random_linear()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    admm = ADMM(rho=0.3, every=20)
    pruner = Pruner(0.75, pattern, targets=["weight"], schedule=OneShot(600), regulariser=admm)
    pruner.prepare(layer, optimizer)
    train(layer, pruner, optimizer, 1, 599, penalty=True)
    assert len(admm.residuals) == 29
    assert admm.residuals[-1] < 0.15 * admm.residuals[0]
    before = layer.weight.detach().clone()
    train(layer, pruner, optimizer, 600, 600, penalty=True)
    gap = (before - layer.weight.detach()).norm() / before.norm()
    assert gap < 0.2
    assert pruner.finalize().layers[0].block_density == pytest.approx(0.25)
    assert pruner.penalty() == 0


def test_admm_follows_its_equations():
    layer = random_linear()
    admm = ADMM(rho=0.5, every=1)
    pruner = Pruner(0.5, targets=["weight"], schedule=OneShot(9), regulariser=admm)
    pruner.prepare(layer)

    def project(values: np.ndarray) -> np.ndarray:
        kept = np.abs(values) > np.sort(np.abs(values).ravel())[95]
        return np.where(kept, values, 0)

    weight = layer.weight.detach().double().numpy().copy()
    z, u = project(weight), np.zeros_like(weight)
    for step in range(1, 5):
        expected = 0.25 * ((weight - z + u) ** 2).sum()
        assert pruner.penalty().item() == pytest.approx(expected, rel=1e-4)
        weight += np.random.default_rng(step).normal(size=weight.shape)
        layer.weight.data = torch.tensor(weight, dtype=torch.float32)
        pruner.step()
        z = project(weight + u)
        u += weight - z
        expected = np.linalg.norm(weight - z) / np.linalg.norm(weight)
        assert admm.residuals[-1] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "options",
    [{"criterion": Movement, "schedule": CubicSchedule(5, 25, 5)}, {"regulariser": ADMM}],
)
def test_resuming_movement_and_admm_is_bit_for_bit(options):
    def start() -> tuple:
        layer = random_linear()
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
        made = {k: v() if isinstance(v, type) else v for k, v in options.items()}
        pruner = Pruner(0.7, targets=["weight"], **{"schedule": OneShot(25), **made})
        if pruner.regulariser is not None:
            pruner.regulariser.every = 4
        pruner.prepare(layer, optimizer)
        return layer, pruner, optimizer

    penalty = "regulariser" in options
    straight, interrupted, resumed = start(), start(), start()
    train(*straight, 1, 30, penalty=penalty)
    train(*interrupted, 1, 13, penalty=penalty)
    stream = io.BytesIO()
    torch.save([part.state_dict() for part in interrupted], stream)
    stream.seek(0)
    for part, state in zip(resumed, torch.load(stream, weights_only=True), strict=True):
        part.load_state_dict(state)
    train(*resumed, 14, 30, penalty=penalty)
    assert torch.equal(straight[0].weight, resumed[0].weight)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L1(0), r"strength=0 draws no weight"),
        (lambda: GroupLasso(1, PATTERNS["lane16"]), r"'lane16' has no fixed blocks"),
        (lambda: GroupLasso(1, "lane16"), r"'lane16' has no fixed blocks"),
        (lambda: GroupLasso("1", "1x8"), r"strength='1' draws no weight"),
        (lambda: GroupLasso(1, "8x"), r"pattern='8x' is unknown"),
        (lambda: ADMM(rho=0), r"rho=0, every=100: use rho > 0"),
        (lambda: ADMM("1"), r"rho='1', every=100: use rho > 0"),
        (lambda: ADMM(every=2.5), r"every=2\.5: use rho > 0 and whole numbers every >= 1"),
        (lambda: Pruner(0.5, targets="*", regulariser=L1(1)), r"everything in prepare, before"),
        (
            lambda: Pruner(0.5, targets="*", allocation="lamp", criterion=Random()),
            r"'lamp' is defined for magnitudes",
        ),
    ],
)
def test_wrong_criteria_and_regularisers(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_penalty_without_a_regulariser():
    pruner = Pruner(0.5, targets=["weight"])
    pruner.prepare(random_linear())
    with pytest.raises(InvalidInput, match=r"no regulariser: give it one, for example L1"):
        pruner.penalty()
