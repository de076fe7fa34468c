"""Which weights a mask removes, against loops in float64 and against torch.nn.utils.prune."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune as torch_prune

from sparsejit.prune import Pruner

AMOUNTS = st.floats(0, 0.99)


def expected_pruned(
    weight: np.ndarray, block: tuple[int, int], gates: int, amount: float
) -> np.ndarray:
    """Blocks of every gate sorted by (mean square, position), the first round(amount * n) cut."""
    pruned = np.zeros(weight.shape, bool)
    height = weight.shape[0] // gates
    for gate in range(gates):
        ranked = []
        for top in range(0, height, block[0]):
            for left in range(0, weight.shape[1], block[1]):
                rows = slice(gate * height + top, gate * height + min(top + block[0], height))
                cols = slice(left, left + block[1])
                values = weight[rows, cols].astype(np.float64).ravel()
                ranked.append((math.fsum(values**2) / values.size, len(ranked), rows, cols))
        ranked.sort(key=lambda entry: entry[:2])
        for _, _, rows, cols in ranked[: round(amount * len(ranked))]:
            pruned[rows, cols] = True
    return pruned


def prune_once(module: nn.Module, amount: float, targets: list[str], **options) -> Pruner:
    pruner = Pruner(amount, targets=targets, **{"allocation": "uniform", **options})
    pruner.prepare(module)
    return pruner


def integer_linear(outputs: int, inputs: int, seed: int) -> nn.Linear:
    """Weights of few distinct integers: many equal scores, and every sum exact."""
    layer = nn.Linear(inputs, outputs)
    values = np.random.default_rng(seed).integers(-9, 10, (outputs, inputs))
    layer.weight.data = torch.tensor(values, dtype=torch.float32)
    return layer


@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 24)),
    block=st.tuples(st.integers(1, 17), st.integers(1, 5)),
    amount=AMOUNTS,
    seed=st.integers(0, 1000),
)
@settings(max_examples=150, deadline=None)
def test_blocks_match_loops_also_with_ties_and_ragged_edges(shape, block, amount, seed):
    layer = integer_linear(*shape, seed)
    before = layer.weight.detach().numpy().copy()
    prune_once(layer, amount, ["weight"], block=block)
    pruned = expected_pruned(before, block, 1, amount)
    np.testing.assert_array_equal(layer.weight.detach().numpy(), np.where(pruned, 0, before))


@pytest.mark.parametrize(("pattern", "rows"), [("1x8", 8), ("1x16", 16)])
def test_named_pattern_is_one_input_and_consecutive_outputs(pattern, rows):
    layer = nn.Linear(5, 2 * rows, bias=False)
    nn.init.ones_(layer.weight)
    layer.weight.data[rows:, 3] = 0.5
    prune_once(layer, 0.1, ["weight"], pattern=pattern)
    zeros = layer.weight.detach() == 0
    assert zeros[rows:, 3].all()
    assert zeros.sum() == rows


@given(outputs=st.integers(1, 40), inputs=st.integers(1, 40), amount=AMOUNTS)
@settings(max_examples=60, deadline=None)
def test_unstructured_equals_torch_l1_unstructured(outputs, inputs, amount):
    layer = nn.Linear(inputs, outputs)
    values = torch.randperm(layer.weight.numel(), generator=torch.Generator().manual_seed(1))
    layer.weight.data = (values + 1.0).reshape(outputs, inputs) * 1e-3
    theirs = nn.Linear(inputs, outputs)
    theirs.weight.data = layer.weight.data.clone()
    torch_prune.l1_unstructured(theirs, "weight", amount=amount)
    prune_once(layer, amount, ["weight"])
    assert torch.equal(layer.weight, theirs.weight)


def test_neighbouring_floats_and_tiny_ones_keep_their_order():
    layer = nn.Linear(4, 1, bias=False)
    one = np.float32(1 + 2**-23)
    layer.weight.data = torch.tensor([[float(np.nextafter(one, np.float32(2))), one, 2e-30, 1e-30]])
    prune_once(layer, 0.75, ["weight"])
    assert layer.weight.detach().ne(0).tolist() == [[True, False, False, False]]
    layer.weight.data = torch.tensor([[3e-30, 1e-30, 4e-30, 2e-30]])
    prune_once(layer, 0.5, ["weight"])
    assert layer.weight.detach().ne(0).tolist() == [[True, False, True, False]]


@pytest.mark.parametrize(
    ("module", "gates"),
    [
        (nn.GRU(12, 20), 3),
        (nn.GRU(12, 20, bidirectional=True, num_layers=2), 3),
        (nn.LSTM(12, 20), 4),
        (nn.GRUCell(12, 20), 3),
        (nn.LSTMCell(12, 20), 4),
        (nn.RNN(12, 20), 1),
    ],
)
def test_every_gate_gets_the_same_density(module, gates):
    before = {name: weight.detach().numpy().copy() for name, weight in module.named_parameters()}
    pruner = prune_once(module, 0.85, ["weight_*"], pattern="1x8")
    for layer in pruner.sparsity_report().layers:
        pruned = expected_pruned(before[layer.name], (8, 1), gates, 0.85)
        weight = module.get_parameter(layer.name).detach().numpy()
        np.testing.assert_array_equal(weight, np.where(pruned, 0, before[layer.name]))
        assert layer.gates == gates
    assert all((module.get_parameter(n) != 0).all() for n in before if "bias" in n)


def test_gates_can_be_switched_off_and_named():
    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(6, 8)
            self.recurrent = nn.Parameter(torch.arange(24 * 8.0).reshape(24, 8) + 1)

    model = Custom()
    model.gru.weight_hh_l0.data = model.recurrent.data.clone()
    targets = ["recurrent", "gru.weight_hh_l0"]
    prune_once(model, 0.5, targets, per_gate=False)
    assert (model.gru.weight_hh_l0[:12] == 0).all() and (model.gru.weight_hh_l0[12:] != 0).all()

    model.recurrent.data = torch.arange(24 * 8.0).reshape(24, 8) + 1
    prune_once(model, 0.5, ["recurrent"], per_gate={"recurrent": 3})
    alive = (model.recurrent.detach().reshape(3, 8, 8) != 0).sum((1, 2))
    assert alive.tolist() == [32, 32, 32]


def test_small_edge_block_competes_by_its_mean():
    layer = nn.Linear(1, 9, bias=False)
    layer.weight.data = torch.tensor([[1.0]] * 8 + [[2.0]])
    prune_once(layer, 0.5, ["weight"], pattern="1x8")
    assert layer.weight.detach().flatten().tolist() == [0.0] * 8 + [2.0]


def test_convolution_counts_as_outputs_by_the_rest():
    layer = nn.Conv2d(3, 10, (2, 2))
    before = layer.weight.detach().numpy().copy()
    prune_once(layer, 0.7, ["weight"], block=(4, 2))
    pruned = expected_pruned(before.reshape(10, 12), (4, 2), 1, 0.7).reshape(before.shape)
    np.testing.assert_array_equal(layer.weight.detach().numpy(), np.where(pruned, 0, before))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_float_types(dtype):
    layer = nn.Linear(16, 16).to(dtype)
    before = layer.weight.detach().double().numpy().copy()
    prune_once(layer, 0.5, ["weight"], pattern="1x8")
    pruned = expected_pruned(before, (8, 1), 1, 0.5)
    np.testing.assert_array_equal(layer.weight.detach().double().numpy() == 0, pruned)


def test_report_counts_nonzeros_and_blocks():
    model = nn.Sequential(nn.Linear(10, 16), nn.Linear(16, 12))
    pruner = prune_once(model, 0.5, ["*.weight"], pattern="1x8")
    with torch.no_grad():
        column = int(model[0].weight[0].nonzero()[0])
        model[0].weight[0, column] = 0
    first, second = pruner.sparsity_report().layers
    assert (first.nnz, first.elements, first.occupied_blocks, first.blocks) == (79, 160, 10, 20)
    assert first.density == 79 / 160 and first.block_density == 0.5
    assert (second.shape, second.blocks, second.occupied_blocks) == ((12, 16), 32, 16)
    assert pruner.sparsity_report().density == (79 + second.nnz) / (160 + 192)
