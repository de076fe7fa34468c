"""A net of inverted residuals, as MobileNet v2 has them, equals torch; its products clamp."""

import numpy as np
import torch
from torch import Tensor, nn

import sparsejit


class InvertedResidual(nn.Module):
    """Sandler et al. 2018, arXiv:1801.04381: expand, filter by channel, project, add."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = factor * in_channels
        self.adds = stride == 1 and in_channels == out_channels
        self.layers = nn.Sequential(
            *_layer(in_channels, wide, 1),
            *_layer(wide, wide, 3, stride, groups=wide),
            *_layer(wide, out_channels, 1)[:2],
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.adds else y


def _layer(
    in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    conv = nn.Conv2d(
        in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False
    )
    return [conv, nn.BatchNorm2d(out_channels), nn.ReLU6()]


def _net() -> nn.Module:
    rows = ((16, 16, 1, 2), (16, 24, 2, 6), (24, 24, 1, 6), (24, 40, 2, 6), (40, 40, 1, 6))
    return nn.Sequential(
        *_layer(3, 16, 3, 2),
        *(InvertedResidual(*row) for row in rows),
        nn.Hardtanh(0, 6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(40, 10),
    )


def test_inverted_residuals_equal_torch() -> None:
    torch.manual_seed(4)
    net = _net().eval()
    for part in net.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.normal_(part.weight, std=2.0 / part.weight[0].numel() ** 0.5)
            if part.kernel_size == (1, 1):
                with torch.no_grad():
                    part.weight.mul_(torch.rand_like(part.weight) < 0.2)
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        wanted = net.double()(x.double()).numpy()
    net.float()
    fast = sparsejit.compile(net, example_inputs=(x,))
    np.testing.assert_allclose(fast(x).numpy(), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    assert not [node for node in fast.graph.nodes if "minimum" in str(node)]
