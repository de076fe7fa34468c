"""Wanda, second order and refit: exact counts, exact fits, and errors against magnitude's."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sparsejit.errors import InvalidInput
from sparsejit.prune import (
    Pruner,
    calibrate,
    prune_second_order,
    prune_wanda,
    refit,
)
from sparsejit.prune.allocation import choose_least
from sparsejit.prune.patterns import choose_pattern
from sparsejit.prune.second_order import COLUMNS, choose_by_second_order, damped, inverse_factor

PATTERNS = {"unstructured": 0.8, "1x8": 0.7, "lane16": 0.85, "2:4": 0.5, "1:4": 0.75}


def layer_and_inputs(outputs: int, inputs: int, seed: int, correlated: bool = True):
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(inputs, outputs, bias=False)
    layer.weight.data = torch.randn(outputs, inputs, generator=generator)
    x = torch.randn(4 * inputs + 20, inputs, generator=generator)
    if correlated:
        mixing = torch.randn(inputs, inputs, generator=generator) / inputs**0.5
        x = x @ (torch.eye(inputs) + mixing) * (0.1 + torch.rand(inputs, generator=generator))
    return layer, x


def magnitude(layer: nn.Linear, amount: float, pattern: str) -> nn.Linear:
    pruned = copy.deepcopy(layer)
    Pruner(amount, pattern, targets=["weight"]).prepare(pruned)
    return pruned


def output_error(layer: nn.Linear, dense: nn.Linear, x: torch.Tensor) -> float:
    """Relative squared error of the outputs, in float64 from the inputs themselves."""
    rows = x.double().numpy()
    before = rows @ dense.weight.detach().double().numpy().T
    after = rows @ layer.weight.detach().double().numpy().T
    return ((after - before) ** 2).sum() / (before**2).sum()


@given(
    pattern=st.sampled_from(sorted(PATTERNS)),
    shape=st.tuples(st.integers(1, 40), st.integers(1, 50)),
    seed=st.integers(0, 10**6),
    correlated=st.booleans(),
    share=st.floats(0, 1),
)
@settings(max_examples=150, deadline=None)
def test_second_order_never_errs_more_than_magnitude_on_the_same_budget(
    pattern, shape, seed, correlated, share
):
    dense, x = layer_and_inputs(*shape, seed, correlated)
    amount = PATTERNS[pattern] if ":" in pattern else 0.97 * share
    other = magnitude(dense, amount, pattern)
    mine = copy.deepcopy(dense)
    report = prune_second_order(mine, calibrate(mine, "weight", [x]), amount, pattern).layers[0]
    assert output_error(mine, dense, x) <= output_error(other, dense, x) * (1 + 1e-5) + 1e-12
    kept = report.blocks - round(amount * report.blocks)
    assert report.occupied_blocks == min(kept, shape[1] if ":" in pattern else kept)
    # Pruning once more by the same rule takes nothing away: the pattern holds to the element.
    again = copy.deepcopy(mine)
    Pruner(amount, pattern, targets=["weight"]).prepare(again)
    assert torch.equal(again.weight, mine.weight)


def by_inverses(weight: np.ndarray, hessian: np.ndarray, pattern, counts: list[int], batches: int):
    """The choice of `choose_by_second_order`, with the inverse of each open Hessian itself."""
    order = inverse_factor(torch.tensor(hessian), pattern.window).order.numpy()
    work, hessian = weight[:, order], hessian[np.ix_(order, order)]
    pruned = np.zeros(work.shape, bool)
    width = max(COLUMNS, len(order) // batches)
    batch = -(-width // pattern.window) * pattern.window
    for start in range(0, len(order), batch):
        cost = np.full_like(work, np.inf)
        cost[:, start:] = work[:, start:] ** 2 / np.linalg.inv(hessian[start:, start:]).diagonal()
        chosen = choose_least(torch.tensor(cost), pattern, counts, torch.tensor(~pruned)).numpy()
        for column in range(start, min(start + batch, len(order))):
            pruned[:, column] = chosen[:, column]
            inverse = np.linalg.inv(hessian[column:, column:])
            errors = work[:, column] * pruned[:, column] / inverse[0, 0]
            work[:, column:] -= np.outer(errors, inverse[0])
    back = order.argsort()
    return pruned[:, back], work[:, back] * ~pruned[:, back]


@pytest.mark.parametrize("name", ["unstructured", "1x16", "4x2in", "lane16"])
@pytest.mark.parametrize("batches", [2, 48])
def test_choices_by_factors_are_the_choices_by_inverses(name: str, batches: int) -> None:
    dense, x = layer_and_inputs(32, 66, 0)
    hessian = damped(x.double().T @ x.double() / len(x), 0.01)
    weight, pattern = dense.weight.detach().double(), choose_pattern(name)
    counts = [pattern.count(16, 66) // 2] * 2
    zeros = choose_by_second_order(weight, hessian, pattern, counts, batches)
    pruned, weights = by_inverses(weight.numpy(), hessian.numpy(), pattern, counts, batches)
    assert (zeros.pruned.numpy() == pruned).all()
    np.testing.assert_allclose(zeros.weights, weights, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("pattern", ["unstructured", "1x8", "lane16", "2:4"])
def test_second_order_chooses_better_than_magnitude_and_wanda_do_even_refitted(pattern):
    dense, x = layer_and_inputs(64, 128, seed=0)
    calibration = calibrate(dense, "weight", [x])
    errors = {}
    for name in ("magnitude", "wanda", "second order"):
        layer = copy.deepcopy(dense)
        if name == "magnitude":
            layer = magnitude(dense, PATTERNS[pattern], pattern)
        elif name == "wanda":
            prune_wanda(layer, calibration, PATTERNS[pattern], pattern)
        else:
            prune_second_order(layer, calibration, PATTERNS[pattern], pattern)
        refit(layer, calibration)
        errors[name] = output_error(layer, dense, x)
    assert errors["second order"] < 0.98 * min(errors["wanda"], errors["magnitude"])


def test_few_independent_inputs_need_only_as_many_weights_in_every_row():
    generator = torch.Generator().manual_seed(0)
    dense, _ = layer_and_inputs(48, 32, seed=0)
    dense.weight.data *= torch.logspace(-1, 1, 48)[:, None]
    x = torch.randn(300, 4, generator=generator) @ torch.randn(4, 32, generator=generator)
    calibration = calibrate(dense, "weight", [x + 1e-3 * torch.randn(x.shape)])
    by_magnitude = magnitude(dense, 0.84, "unstructured")
    refit(by_magnitude, calibration, damping=1e-6)
    mine = copy.deepcopy(dense)
    prune_second_order(mine, calibration, 0.84, damping=1e-6)
    assert mine.weight.count_nonzero() == 48 * 32 - round(0.84 * 48 * 32)
    assert output_error(mine, dense, x) < 1e-4 < output_error(by_magnitude, dense, x)


@given(inputs=st.integers(2, 16), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_one_weight_of_one_row_goes_where_brute_force_finds_it_costs_least(inputs, seed):
    dense, x = layer_and_inputs(1, inputs, seed)
    layer = copy.deepcopy(dense)
    prune_second_order(layer, calibrate(layer, "weight", [x]), 1 / inputs, damping=0)
    rows, target = (
        x.double().numpy(),
        x.double().numpy() @ dense.weight[0].double().detach().numpy(),
    )
    fits = []
    for gone in range(inputs):
        kept = [i for i in range(inputs) if i != gone]
        solution, *_ = np.linalg.lstsq(rows[:, kept], target, rcond=None)
        weight = np.zeros(inputs)
        weight[kept] = solution
        fits.append((((rows @ weight - target) ** 2).sum(), gone, weight))
    _, gone, weight = min(fits, key=lambda fit: fit[0])
    np.testing.assert_allclose(layer.weight[0].detach(), weight, rtol=1e-4, atol=1e-5)
    assert layer.weight[0, gone] == 0


@given(
    shape=st.tuples(st.integers(1, 20), st.integers(1, 30)),
    density=st.floats(0, 1),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=40, deadline=None)
def test_refit_is_the_least_squares_solution_for_any_mask(shape, density, seed):
    dense, x = layer_and_inputs(*shape, seed)
    layer = copy.deepcopy(dense)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < density
    layer.weight.data *= mask
    refit(layer, calibrate(dense, "weight", [x]), damping=0)
    rows = x.double().numpy()
    for row, kept, weight in zip(
        layer.weight.detach().numpy(), mask.numpy(), dense.weight.detach().numpy(), strict=True
    ):
        target = rows @ weight.astype(np.float64)
        solution, *_ = np.linalg.lstsq(rows[:, kept], target, rcond=None)
        np.testing.assert_allclose(row[kept], solution, rtol=1e-3, atol=1e-4)
        assert (row[~kept] == 0).all()


@given(
    shape=st.tuples(st.integers(1, 20), st.integers(1, 30)),
    amount=st.floats(0, 0.99),
    seed=st.integers(0, 100),
)
@settings(max_examples=40, deadline=None)
def test_wanda_ranks_within_each_output(shape, amount, seed):
    layer, x = layer_and_inputs(*shape, seed)
    before = layer.weight.detach().double().numpy()
    prune_wanda(layer, calibrate(layer, "weight", [x]), amount)
    score = np.abs(before) * np.linalg.norm(x.double().numpy(), axis=0)
    for row, scores in zip(layer.weight.detach().numpy(), score, strict=True):
        kept = np.argsort(scores)[round(amount * shape[1]) :]
        assert sorted(row.nonzero()[0]) == sorted(kept)
    survivors = layer.weight.detach().numpy() != 0
    np.testing.assert_array_equal(layer.weight.detach().numpy()[survivors], before[survivors])


class Speech(nn.Module):
    """A convolution, a GRU and an LSTM, whose every matrix can be pruned."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(8, 24, 3, padding=1)
        self.gru = nn.GRU(24, 32, batch_first=True)
        self.lstm = nn.LSTM(32, 16, batch_first=True)
        self.fc = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.conv(x)).transpose(1, 2)
        return self.fc(self.lstm(self.gru(hidden)[0])[0])


def test_every_kind_of_layer_keeps_its_gates_even_and_its_outputs_close():
    dense = Speech()
    with torch.no_grad():
        for weight in dense.parameters():
            weight *= 2
    x, held_out = (torch.randn(20, 8, 30).cumsum(2) / 3 for _ in range(2))
    targets = ["*weight*"]
    calibration = calibrate(dense, targets, x.split(10))
    errors = {}
    for name, prune in (("wanda", prune_wanda), ("second order", prune_second_order)):
        model = copy.deepcopy(dense)
        report = prune(model, calibration, 0.6, "1x8")
        errors[name] = (model(held_out) - dense(held_out)).square().mean().item()
        assert [layer.gates for layer in report.layers] == [1, 3, 3, 4, 4, 1]
        for layer in report.layers:
            by_gate = model.get_parameter(layer.name).detach().reshape(layer.gates, -1)
            per_gate = layer.blocks // layer.gates
            kept = per_gate - round(0.6 * per_gate)
            assert [int(n) for n in by_gate.count_nonzero(dim=1)] == [8 * kept] * layer.gates
            if name == "second order":
                by_magnitude = copy.deepcopy(dense)
                Pruner(0.6, "1x8", targets=[layer.name]).prepare(by_magnitude)
                measure = calibration[layer.name].error
                other = measure(by_magnitude.get_parameter(layer.name))
                assert measure(model.get_parameter(layer.name)) < 0.9 * other
    by_magnitude = copy.deepcopy(dense)
    Pruner(0.6, "1x8", targets=targets).prepare(by_magnitude)
    errors["magnitude"] = (by_magnitude(held_out) - dense(held_out)).square().mean().item()
    assert errors["second order"] < 0.7 * min(errors["magnitude"], errors["wanda"])


@pytest.mark.parametrize("method", [prune_wanda, prune_second_order])
@pytest.mark.parametrize("pattern", ["unstructured", "1x8"])
def test_every_layer_and_gate_gets_its_own_amount(method, pattern):
    torch.manual_seed(0)
    model = nn.ModuleDict({"rnn": nn.GRU(20, 16), "out": nn.Linear(16, 8)})

    def run(model: nn.ModuleDict, x: torch.Tensor) -> None:
        model["out"](model["rnn"](x)[0])

    targets = ["rnn.weight_hh_l0", "out.weight"]
    calibration = calibrate(model, targets, [torch.randn(30, 8, 20)], run)
    amount = {"rnn.*": (0.5, 0.75, 0.25), "*": 0.125}
    method(model, calibration, amount, pattern)
    gates = (model["rnn"].weight_hh_l0.view(3, 16, 16) == 0).float().mean((1, 2))
    assert gates.tolist() == [0.5, 0.75, 0.25]
    assert (model["out"].weight == 0).float().mean() == 0.125


def test_inputs_that_are_too_few():
    layer, x = layer_and_inputs(4, 12, seed=0)
    calibration = calibrate(layer, "weight", [x[:5]])
    with pytest.raises(InvalidInput, match=r"5 inputs do not determine 12 weights with damping=0"):
        refit(layer, calibration, damping=0)
    prune_second_order(layer, calibration, 0.5)
    assert layer.weight.isfinite().all()


def test_inputs_that_are_always_zero_lose_their_weights_first():
    layer, x = layer_and_inputs(6, 10, seed=0)
    x[:, ::2] = 0
    prune_second_order(layer, calibrate(layer, "weight", [x]), 0.5)
    assert (layer.weight[:, ::2] == 0).all() and (layer.weight[:, 1::2] != 0).all()
    silent, _ = layer_and_inputs(6, 10, seed=0)
    prune_second_order(silent, calibrate(silent, "weight", [x * 0]), 0.5)
    assert silent.weight.count_nonzero() == 30


@pytest.mark.parametrize(
    ("amount", "pattern", "message"),
    [(1.5, "1x8", r"amount=1\.5 is outside"), (0.3, "2:4", r"contradicts pattern='2:4'")],
)
def test_wrong_amounts(amount, pattern, message):
    layer, x = layer_and_inputs(8, 8, seed=0)
    calibration = calibrate(layer, "weight", [x])
    for prune in (prune_wanda, prune_second_order):
        with pytest.raises(InvalidInput, match=message):
            prune(layer, calibration, amount, pattern)


CUTS = {
    "wanda": lambda layer, calibration: prune_wanda(layer, calibration, 0.5),
    "second order": lambda layer, calibration: prune_second_order(layer, calibration, 0.5),
    "refit": refit,
}


@pytest.mark.parametrize("name", CUTS)
def test_weights_that_were_trained_after_calibrate_are_not_overwritten(name):
    layer, x = layer_and_inputs(8, 8, seed=0)
    calibration = calibrate(layer, "weight", [x])
    with torch.no_grad():
        layer.weight[:2] += 0.25
    trained = layer.weight.clone()
    with pytest.raises(InvalidInput, match=r"weight has 16 weights that changed after calibrate.*"):
        CUTS[name](layer, calibration)
    assert torch.equal(layer.weight, trained)


def test_one_calibration_serves_several_cuts_and_a_refit():
    layer, x = layer_and_inputs(8, 16, seed=0)
    calibration = calibrate(layer, "weight", [x])
    for amount in (0.25, 0.5):
        prune_second_order(layer, calibration, amount)
    kept = layer.weight.clone()
    Pruner(0.75, targets=["weight"]).prepare(layer, keep_zeros=True)
    refit(layer, calibration)
    assert (layer.weight == 0).float().mean() == 0.75
    prune_wanda(layer, calibration, 0.5)
    assert layer.weight.count_nonzero() == kept.count_nonzero()


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, r"model is None: give a torch\.nn\.Module"),
        (nn.Linear(8, 3), r"weight is \(3, 8\), calibrated was \(8, 8\)"),
        (nn.GRU(8, 8), r"the model lacks weight: give a calibration of this model"),
    ],
    ids=["none", "other shape", "other names"],
)
def test_a_calibration_of_another_model_is_refused(name, model, message):
    layer, x = layer_and_inputs(8, 8, seed=0)
    with pytest.raises(InvalidInput, match=message):
        CUTS[name](model, calibrate(layer, "weight", [x]))
    with pytest.raises(InvalidInput, match="calibration is None: give the result of calibrate"):
        CUTS[name](layer, None)


@pytest.mark.parametrize("damping", ["much", -0.5, float("nan")])
def test_wrong_damping(damping):
    layer, x = layer_and_inputs(8, 8, seed=0)
    with pytest.raises(InvalidInput, match=rf"damping={damping!r}: give a number of 0 or more"):
        refit(layer, calibrate(layer, "weight", [x]), damping)
