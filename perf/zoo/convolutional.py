"""Models of convolutions, over time and over images of 64 x 64 and 224 x 224.

    temporal_convolutions       convolutions over time
    mobilenet_like              images of 64 x 64; also `resnet_like`
    mobilenet_v1, resnet_18     images of 224 x 224; also `resnet_50`, `mobilenet_v2`
    efficientnet_b0             inverted residuals with squeeze-and-excitation
"""

from torch import Tensor, nn
from torch.nn.functional import pad, relu


class CausalBlock(nn.Module):
    """Two dilated convolutions that see the past only, and a residual: (batch, channels, time)."""

    KERNEL = 3

    def __init__(self, in_channels: int, out_channels: int, dilation: int) -> None:
        super().__init__()
        self.past = (self.KERNEL - 1) * dilation
        self.conv1 = nn.Conv1d(in_channels, out_channels, self.KERNEL, dilation=dilation)
        self.conv2 = nn.Conv1d(out_channels, out_channels, self.KERNEL, dilation=dilation)
        same = in_channels == out_channels
        self.shortcut = nn.Identity() if same else nn.Conv1d(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.conv1(pad(x, (self.past, 0))))
        y = relu(self.conv2(pad(y, (self.past, 0))))
        return relu(y + self.shortcut(x))


def temporal_convolutions() -> nn.Module:
    """Dilated convolutions over time: (batch, 32, time) -> (batch, 16, time)."""
    blocks = [CausalBlock(64 if number else 32, 64, 2**number) for number in range(5)]
    return nn.Sequential(*blocks, nn.Conv1d(64, 16, 1))


class Separable(nn.Module):
    """A depthwise and a pointwise convolution, each normalised and clamped."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        clamp: type[nn.ReLU] | type[nn.ReLU6] = nn.ReLU6,
    ) -> None:
        super().__init__()
        self.clamp = clamp()
        self.depthwise = nn.Conv2d(
            in_channels, in_channels, 3, stride, padding=1, groups=in_channels, bias=False
        )
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.pointwise = nn.Conv2d(in_channels, out_channels, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.clamp(self.bn2(self.pointwise(self.clamp(self.bn1(self.depthwise(x))))))


def depthwise(channels: int, stride: int) -> nn.Module:
    """(batch, channels, height, width) -> the same channels, each by its own 3 x 3 kernel."""
    return nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels)


def mobilenet_like() -> nn.Module:
    """(batch, 3, 64, 64) -> (batch, 10)."""
    channels = ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1))
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU6(),
        *(Separable(*row) for row in channels),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 10),
    )
    return with_statistics(net)


def mobilenet_v1() -> nn.Module:
    """(batch, 3, 224, 224) -> (batch, 1000)."""
    channels = (
        *((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)),
        *((512, 512, 1),) * 5,
        *((512, 1024, 2), (1024, 1024, 1)),
    )
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        *(Separable(*row, clamp=nn.ReLU) for row in channels),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1024, 1000),
    )
    return with_statistics(net)


def _shortcut(in_channels: int, out_channels: int, stride: int) -> nn.Module:
    """The way past a block, which is added to it: its input, convolved where sizes differ."""
    if stride == 1 and in_channels == out_channels:
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
    )


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a residual: (batch, channels, height, width)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        return relu(y + self.shortcut(x))


def resnet_like() -> nn.Module:
    """(batch, 3, 64, 64) -> (batch, 10)."""
    channels = ((32, 32, 1), (32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1))
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        *(BasicBlock(*row) for row in channels),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    return with_statistics(net)


def resnet_18() -> nn.Module:
    """(batch, 3, 224, 224) -> (batch, 1000)."""
    sizes = ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2))
    blocks = [
        BasicBlock(*row) for first in sizes for row in (first, (first[1], first[1], 1))
    ]
    net = nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 1000),
    )
    return with_statistics(net)


class Bottleneck(nn.Module):
    """Convolutions of 1 x 1, 3 x 3 and 1 x 1 and a residual: (batch, channels, height, width)."""

    WIDER = 4  # channels of its result over channels of its 3 x 3 convolution

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = self.WIDER * channels
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.shortcut = _shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = relu(self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))))
        return relu(self.bn3(self.conv3(y)) + self.shortcut(x))


def resnet_50() -> nn.Module:
    """(batch, 3, 224, 224) -> (batch, 1000)."""
    blocks, in_channels = [], 64
    for channels, count, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            blocks.append(Bottleneck(in_channels, channels, 1 if number else first))
            in_channels = Bottleneck.WIDER * channels
    net = nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(in_channels, 1000),
    )
    return with_statistics(net)


class InvertedResidual(nn.Module):
    """A 1 x 1 convolution to more channels, a depthwise one, and 1 x 1 to few, not clamped."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, wider: int) -> None:
        super().__init__()
        channels = wider * in_channels
        self.expand: nn.Module = nn.Identity()
        if wider > 1:
            self.expand = nn.Sequential(
                nn.Conv2d(in_channels, channels, 1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU6(),
            )
        self.depthwise = nn.Sequential(
            nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU6(),
        )
        self.project = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn = nn.BatchNorm2d(out_channels)
        self.is_residual = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn(self.project(self.depthwise(self.expand(x))))
        return x + y if self.is_residual else y


def mobilenet_v2() -> nn.Module:
    """(batch, 3, 224, 224) -> (batch, 1000)."""
    blocks, in_channels = [], 32
    for wider, channels, count, first in (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    ):
        for number in range(count):
            blocks.append(InvertedResidual(in_channels, channels, 1 if number else first, wider))
            in_channels = channels
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU6(),
        *blocks,
        nn.Conv2d(in_channels, 1280, 1, bias=False),
        nn.BatchNorm2d(1280),
        nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1280, 1000),
    )
    return with_statistics(net, 0.5, 1.5)


def small_1d() -> nn.Module:
    """Four convolutions over time: (batch, 40, 64) -> (batch, 40, 32), features of 64 frames."""
    return nn.Sequential(
        nn.Conv1d(40, 128, 5, padding=2),
        nn.ReLU(),
        nn.Conv1d(128, 128, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv1d(128, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv1d(256, 40, 1),
    )


def small_2d() -> nn.Module:
    """Four convolutions, means, and a linear layer: (batch, 3, 32, 32) -> (batch, 10)."""
    channels = ((3, 32, 1), (32, 64, 2), (64, 128, 2), (128, 128, 1))
    layers: list[nn.Module] = []
    for in_channels, out_channels, stride in channels:
        layers += [nn.Conv2d(in_channels, out_channels, 3, stride, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def with_statistics(net: nn.Module, least: float = 0.2, most: float = 0.6) -> nn.Module:
    """The net with batch-norms as after training: statistics and scales that differ by channel.

    Variances lie between `least` and `most`: by these, signals of the pruned net keep their size.
    """
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, least, most)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    return net


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
