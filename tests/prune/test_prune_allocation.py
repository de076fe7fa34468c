"""Amounts shared among layers and gates, against loops and torch's global pruning."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune as torch_prune

from sparsejit.errors import InvalidInput
from sparsejit.prune import CubicSchedule, Pruner, Random


def network(seed: int = 0) -> nn.Sequential:
    """Three layers of different sizes and scales."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(12, 30), nn.Linear(30, 16), nn.Linear(16, 5))
    for scale, layer in zip((1.0, 3.0, 0.3), model, strict=True):
        layer.weight.data = torch.randn(layer.weight.shape) * scale
    return model


def prune(model: nn.Module, amount, **options) -> Pruner:
    pruner = Pruner(amount, targets=options.pop("targets", ["*weight*"]), **options)
    pruner.prepare(model)
    return pruner


@given(amount=st.floats(0, 0.99), seed=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_global_equals_torch_global_unstructured(amount, seed):
    mine, theirs = network(seed), network(seed)
    prune(mine, amount, allocation="global")
    torch_prune.global_unstructured(
        [(layer, "weight") for layer in theirs],
        pruning_method=torch_prune.L1Unstructured,
        amount=amount,
    )
    for layer, other in zip(mine, theirs, strict=True):
        assert torch.equal(layer.weight, other.weight)


def lamp_by_definition(weights: list[np.ndarray], amount: float) -> list[np.ndarray]:
    """Kept weights by equation 2 of Lee et al. 2021, one weight at a time."""
    entries = []
    for layer, weight in enumerate(weights):
        squares = weight.astype(np.float64).ravel() ** 2
        for position, square in enumerate(squares):
            score = square / squares[squares >= square].sum()
            entries.append((score, layer, position))
    entries.sort()
    kept = [np.ones(weight.size, bool) for weight in weights]
    for _, layer, position in entries[: round(amount * len(entries))]:
        kept[layer][position] = False
    return [k.reshape(weight.shape) for k, weight in zip(kept, weights, strict=True)]


@pytest.mark.parametrize("amount", [0.3, 0.8, 0.97])
def test_lamp_equals_its_definition_and_empties_no_layer(amount):
    model = network(1)
    before = [layer.weight.detach().numpy().copy() for layer in model]
    prune(model, amount, allocation="lamp")
    for layer, kept in zip(model, lamp_by_definition(before, amount), strict=True):
        np.testing.assert_array_equal(layer.weight.detach().numpy() != 0, kept)
        assert kept.any()


def test_lamp_of_a_layer_of_zeros():
    model = network()
    nn.init.zeros_(model[1].weight)
    prune(model, 0.5, allocation="lamp")
    assert [int(layer.weight.count_nonzero()) for layer in model] == [360, 0, 80]


@pytest.mark.parametrize("amount", [0.2, 0.9])
def test_erdos_renyi_density_follows_the_sizes(amount):
    model = network()
    report = prune(model, amount, allocation="erk").sparsity_report()
    assert report.density == pytest.approx(1 - amount, abs=2 / 920)
    free = [layer for layer in report.layers if layer.density < 1]
    raw = [sum(layer.shape) / np.prod(layer.shape) for layer in free]
    ratios = [layer.density / r for layer, r in zip(free, raw, strict=True)]
    assert free and ratios == pytest.approx([ratios[0]] * len(free), rel=0.03)
    if amount == 0.2:
        assert len(free) < 3


@pytest.mark.parametrize("allocation", ["uniform", "global", "lamp", "erk"])
@pytest.mark.parametrize("pattern", ["1x8", "lane16"])
def test_gates_share_their_layer_evenly_and_the_schedule_ends_at_the_amount(allocation, pattern):
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(32, 48), nn.GRU(48, 32))
    model[0].weight.data *= 4
    options = {"allocation": allocation, "pattern": pattern}
    at_once = copy.deepcopy(model)
    prune(at_once, 0.8, **options)
    pruner = prune(model, 0.8, schedule=CubicSchedule(0, 5, 1), **options)
    densities = []
    for _ in range(5):
        pruner.step()
        densities.append(pruner.sparsity_report().density)
    assert densities == sorted(densities, reverse=True)
    layers = pruner.sparsity_report().layers
    blocks = sum(layer.blocks for layer in layers)
    pruned = blocks - sum(layer.occupied_blocks for layer in layers)
    # Six gates round on their own, by at most a half each.
    assert abs(pruned - round(0.8 * blocks)) <= 4
    for name in ("1.weight_ih_l0", "1.weight_hh_l0"):
        gates = model.get_parameter(name).detach().reshape(3, 32, -1)
        assert len({int(gate.count_nonzero()) for gate in gates}) == 1
    if allocation in ("uniform", "erk"):  # the others' rounding on the way prunes early
        for name, weight in model.named_parameters():
            assert torch.equal(weight != 0, at_once.get_parameter(name) != 0)


class Tagger(nn.Module):
    """A bit of everything that has parameters; its output layer is its table of words."""

    def __init__(self) -> None:
        super().__init__()
        self.tagged = nn.Linear(12, 20, bias=False)
        self.words = nn.Embedding(20, 12)
        self.tagged.weight = self.words.weight
        self.places = nn.Parameter(torch.randn(1, 7, 12))
        self.normal = nn.LayerNorm((7, 12))
        self.layers = nn.ModuleList([nn.Conv1d(12, 12, 3, groups=4), nn.LSTM(12, 8)])
        self.attended = nn.MultiheadAttention(8, 2)


def test_without_targets_every_weight_of_a_product_is_pruned():
    model = Tagger()
    pruner = Pruner(0.5)
    pruner.prepare(model)
    names = [layer.name for layer in pruner.finalize().layers]
    recurrent = ["layers.1.weight_ih_l0", "layers.1.weight_hh_l0"]
    attended = ["attended.in_proj_weight", "attended.out_proj.weight"]
    assert names == ["layers.0.weight", *recurrent, *attended]
    for weight in (model.words.weight, model.places, model.normal.weight):
        assert weight.count_nonzero() == weight.numel()
    pruner = Pruner(0.5, targets="!attended.*")
    pruner.prepare(model)
    assert [layer.name for layer in pruner.finalize().layers] == names[:3]
    with pytest.raises(InvalidInput, match=r"select none of weight, bias: name weights, for"):
        Pruner(0.5).prepare(nn.BatchNorm1d(4))
    with pytest.raises(InvalidInput, match=r"sparsejit\.prune\.fold\(model\) first"):
        Pruner(0.5).prepare(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))


def test_the_amount_is_shared_as_loses_least_where_nothing_else_is_asked():
    for options, allocation in (({}, "lamp"), ({"criterion": Random()}, "erk")):
        mine, theirs = network(), network()
        assert prune(mine, 0.8, **options).allocation == allocation
        prune(theirs, 0.8, allocation=allocation, **options)
        for layer, other in zip(mine, theirs, strict=True):
            assert torch.equal(layer.weight, other.weight)
    assert Pruner({"*": 0.5}).allocation == Pruner(0.5, "2:4").allocation == "uniform"


def test_amounts_by_glob_and_by_gate():
    model = nn.Sequential(nn.GRU(10, 20), nn.Linear(20, 10))
    amounts = {"0.weight_hh*": (0.9, 0.5, 0.0), "0.*": 0.25, "*": 0.6}
    prune(model, amounts)
    hidden = model[0].weight_hh_l0.detach().reshape(3, 400)
    assert [int(gate.count_nonzero()) for gate in hidden] == [40, 200, 400]
    assert int(model[0].weight_ih_l0.count_nonzero()) == 3 * 150
    assert int(model[1].weight.count_nonzero()) == 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"amount": {"0.*": 0.5}}, r"no glob for the target 1\.weight"),
        ({"amount": {"*": 0.5, "rnn*": 0.9}}, r"glob 'rnn\*' that matches no target"),
        ({"amount": {"*": (0.5, 0.5)}}, r"gives 2 shares to 0\.weight, which has 1 gates"),
        ({"amount": {"*": (0.5, 1.5)}}, r"amount=1\.5 is outside"),
        ({"amount": {"*": 0.5}, "allocation": "erk"}, r"'erk' shares one amount"),
        ({"amount": 0.5, "allocation": "best"}, r"'best' is unknown: use one of uniform, global"),
        ({"amount": 0.5, "targets": ["*.weight", "!*"]}, r"select none of 0\.weight"),
        ({"amount": 0.5, "targets": ["!fc"]}, r"'fc' matches no parameter"),
    ],
)
def test_wrong_amounts_and_targets(options, message):
    with pytest.raises(InvalidInput, match=message):
        prune(network(), **options)


def test_predicates_and_exclusions_select():
    model = network()
    pruner = prune(model, 0.5, targets=["*.weight", "!1.*"])
    assert [layer.name for layer in pruner.sparsity_report().layers] == ["0.weight", "2.weight"]
    pruner = prune(model, 0.5, targets=lambda name, weight: weight.ndim == 2 and len(weight) > 10)
    assert [layer.name for layer in pruner.sparsity_report().layers] == ["0.weight", "1.weight"]
    assert all((layer.bias != 0).all() for layer in model)
