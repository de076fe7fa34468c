"""4x1in and 4x2in: four inputs at one tap, of one output or two, pruned together."""

import numpy as np
import pytest
import torch
from torch import nn

from sparsejit.prune import (
    PATTERNS,
    GroupLasso,
    Pruner,
    calibrate,
    prune_second_order,
    prune_wanda,
)


def kept_input_blocks(weight: np.ndarray, rows: int, amount: float) -> np.ndarray:
    """Kept weights (out, in, taps) by loops: four inputs at one tap, of that many outputs."""
    outputs, inputs, taps = weight.shape
    blocks = []
    for top in range(0, outputs, rows):
        for left in range(0, inputs, 4):
            for tap in range(taps):
                place = slice(top, top + rows), slice(left, left + 4), tap
                blocks.append((np.square(weight[place], dtype=np.float64).mean(), place))
    blocks.sort(key=lambda block: block[0])
    kept = np.zeros(weight.shape, bool)
    for _, place in blocks[round(amount * len(blocks)) :]:
        kept[place] = True
    return kept


@pytest.mark.parametrize("inputs", [3, 12, 18])
@pytest.mark.parametrize("kind", ["linear", "1d", "2d"])
@pytest.mark.parametrize("rows", [1, 2])
def test_blocks_over_inputs_lie_at_one_tap(rows, kind, inputs):
    make = {
        "linear": lambda: nn.Linear(inputs, 7),
        "1d": lambda: nn.Conv1d(inputs, 7, 5),
        "2d": lambda: nn.Conv2d(inputs, 7, (3, 2)),
    }
    torch.manual_seed(inputs)
    layer = make[kind]()
    before = layer.weight.detach().numpy().copy()
    pruner = Pruner(0.6, f"4x{rows}in", targets=["weight"])
    pruner.prepare(layer)
    three = before.reshape(*before.shape[:2], -1)
    kept = kept_input_blocks(three, rows, 0.6).reshape(before.shape)
    np.testing.assert_array_equal(layer.weight.detach().numpy(), np.where(kept, before, 0))
    (report,) = pruner.finalize().layers
    blocks = -(-7 // rows) * -(-inputs // 4) * three.shape[2]
    assert (report.pattern, report.blocks) == (f"4x{rows}in", blocks)
    assert report.occupied_blocks == blocks - round(0.6 * blocks)


@pytest.mark.parametrize("method", [prune_wanda, prune_second_order])
def test_blocks_over_inputs_without_training(method):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(10, 6, 3))
    calibration = calibrate(model, ["*.weight"], [torch.randn(4, 10, 9, 9) for _ in range(8)])
    method(model, calibration, 0.5, "4x2in")
    weight = model[0].weight.detach().numpy() != 0
    for top in range(0, 6, 2):
        for left in range(0, 10, 4):
            block = weight[top : top + 2, left : left + 4].reshape(-1, 9)
            assert (block == block[0]).all()
    assert weight.any() and not weight.all()


def test_the_lasso_sums_norms_of_blocks_over_inputs():
    layer = nn.Conv2d(6, 5, 3)
    weight = layer.weight.detach().double().flatten(2)
    wanted = sum(
        block.numel() ** 0.5 * float(block.norm())
        for top in range(0, 5, 2)
        for left in range(0, 6, 4)
        for tap in range(9)
        for block in [weight[top : top + 2, left : left + 4, tap]]
    )
    lasso = GroupLasso(1.0, PATTERNS["4x2in"])
    found = lasso.penalty({"weight": layer.weight}, {"weight": 1})
    assert float(found) == pytest.approx(wanted, rel=1e-5)
