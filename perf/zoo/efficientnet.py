"""EfficientNet-B0: inverted residuals with squeeze-and-excitation."""

from torch import Tensor, nn

from sparsejit.perf.zoo.convolutional import with_statistics

# Widening, outputs, blocks, stride of the first, kernel: table 1 of the paper.
_STAGES = (
    *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
    *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
)


class SqueezedScale(nn.Module):
    """x times a sigmoid of two layers of its channels' means: (batch, channels, height, width)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce, self.silu = nn.Conv2d(channels, squeezed, 1), nn.SiLU()
        self.restore, self.sigmoid = nn.Conv2d(squeezed, channels, 1), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        gate: Tensor = self.sigmoid(self.restore(self.silu(self.reduce(self.pool(x)))))
        return x * gate


def _layer(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.SiLU(),
    )


class ScaledResidual(nn.Module):
    """An inverted residual with a `SqueezedScale`; x is added where its shape is the result's."""

    def __init__(self, inputs: int, outputs: int, wider: int, stride: int, kernel: int) -> None:
        super().__init__()
        hidden = wider * inputs
        self.expand = _layer(inputs, hidden) if wider > 1 else nn.Identity()
        self.depthwise = _layer(hidden, hidden, kernel, stride, hidden)
        self.scale = SqueezedScale(hidden, max(1, inputs // 4))
        self.project = nn.Sequential(
            nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.scale(self.depthwise(self.expand(x))))
        return x + y if self.adds else y


def efficientnet_b0() -> nn.Module:
    """(batch, 3, 224, 224) -> (batch, 1000)."""
    blocks, inputs = list[nn.Module](), 32
    for wider, outputs, count, stride, kernel in _STAGES:
        for number in range(count):
            step = stride if number == 0 else 1
            blocks.append(ScaledResidual(inputs, outputs, wider, step, kernel))
            inputs = outputs
    net = nn.Sequential(
        _layer(3, 32, 3, 2),
        *blocks,
        _layer(inputs, 1280),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1280, 1000),
    )
    return with_statistics(net, 0.5, 1.0)
