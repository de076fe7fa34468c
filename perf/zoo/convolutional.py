"""Models of convolutions, over time and over images of 64 x 64 and 224 x 224."""

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
    """(batch, 32, time) -> (batch, 16, time)."""
    blocks = [CausalBlock(64 if number else 32, 64, 2**number) for number in range(5)]
    return nn.Sequential(*blocks, nn.Conv1d(64, 16, 1))


class Separable(nn.Module):
    """A convolution a channel, then one across channels, each normalised, then clamped."""

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
    """(batch, channels, height, width) -> as many channels, a 3 x 3 kernel each."""
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
    return _with_statistics(net)


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
    return _with_statistics(net)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a residual: (batch, channels, height, width)."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride, bias=False),
                nn.BatchNorm2d(out_channels),
            )

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
    return _with_statistics(net)


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
    return _with_statistics(net)


def _with_statistics(net: nn.Module) -> nn.Module:
    """The net with batch-norms as after training: statistics and scales that differ by channel."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.2, 0.6)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    return net
