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
    assert sizes[8] <= 2 * sizes[1]
