"""Products of several samples of a fixed batch: one code, whatever the threads."""

import pytest
import torch
from torch import nn

import sparsejit


def net() -> nn.Module:
    """Products of positions, of padded channels and in order, and gathered columns."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(24, 40, 1), nn.Conv2d(40, 24, 1), nn.Conv2d(24, 16, 3, stride=3)]
    for layer in layers:
        layer.weight.data *= torch.rand_like(layer.weight) < 0.2
    first, second, third = layers
    return nn.Sequential(first, nn.ReLU(), second, third, nn.AvgPool2d(3)).eval()


@pytest.mark.parametrize("threads", [1, 2])
def test_code_of_a_batch_is_about_that_of_a_sample(threads: int) -> None:
    model, sizes = net(), {}
    for batch in (1, 8):
        x = torch.randn(batch, 24, 14, 14)
        compiled = sparsejit.compile(model, (x,), free_batch=False, threads=threads)
        with torch.inference_mode():
            wanted = model(x)
        assert (compiled(x) - wanted).abs().max() <= 1e-5 * wanted.abs().max()
        alone = torch.cat([compiled(x[:1].expand_as(x))[:1], compiled(x)[:1]])
        assert torch.equal(alone[0], alone[1])
        sizes[batch] = compiled.stats["code_bytes"] + compiled.stats["pool_bytes"]
    # Copies that lay samples side by side, and shorter ones; loads that other numbers share.
    assert sizes[8] <= 2.2 * sizes[1]


class Layers(nn.Module):
    """Layers of a transformer, which are alike but for their weights."""

    def __init__(self, layers: int, width: int = 64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mixed = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for mixed, norm in zip(self.mixed, self.norms, strict=True):
            query, key, value = mixed(x).chunk(3, -1)
            scores = torch.softmax(query @ key.transpose(1, 2) / 8, -1)
            x = norm(x + torch.nn.functional.gelu(scores @ value))
        return x


@pytest.mark.parametrize("rows", [33, 128])
def test_steps_that_are_alike_share_code(rows: int) -> None:
    """Attention and norms; each step's operands lie elsewhere, some in the caller's arrays."""
    x, code = torch.randn(2, rows, 64), {}
    for layers in (1, 2, 6):
        model = Layers(layers).eval()
        fast = sparsejit.compile(model, (x,))
        with torch.inference_mode():
            torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
        code[layers] = fast.stats["code_bytes"]
    if rows == 128:  # steps of less than a microsecond have code of their own
        assert (code[6] - code[2]) / 4 < 0.6 * code[1], code


def test_threads_that_share_a_tile_have_code_of_their_own() -> None:
    model, x = Layers(4).eval(), torch.randn(1, 200, 64)
    fast = sparsejit.compile(model, (x,), threads=2, free_batch=False)
    with torch.inference_mode():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)
