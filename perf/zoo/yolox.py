"""YOLOX: a cross-stage partial darknet, a pyramid up and down, a head for each of three sizes."""

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from sparsejit.perf.zoo.convolutional import with_statistics

_CLASSES = 80
_POOLED = (5, 9, 13)


class ConvolvedSilu(nn.Sequential):
    """A convolution, a batch norm and SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs), nn.SiLU())


class DarknetBlock(nn.Module):
    """A 1x1 and a 3x3 convolution; the input is added where `adds`."""

    def __init__(self, channels: int, adds: bool) -> None:
        super().__init__()
        self.conv1 = ConvolvedSilu(channels, channels)
        self.conv2, self.adds = ConvolvedSilu(channels, channels, 3), adds

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv2(self.conv1(x))
        return x + y if self.adds else y


class HalvedLayers(nn.Module):
    """Cross-stage partial layer: two halves of the channels, one through blocks, then joined."""

    def __init__(self, inputs: int, outputs: int, blocks: int, adds: bool = True) -> None:
        super().__init__()
        half = outputs // 2
        self.conv1, self.conv2 = ConvolvedSilu(inputs, half), ConvolvedSilu(inputs, half)
        self.blocks = nn.Sequential(*(DarknetBlock(half, adds) for _ in range(blocks)))
        self.conv3 = ConvolvedSilu(2 * half, outputs)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.blocks(self.conv1(x)), self.conv2(x)], 1)
        y: Tensor = self.conv3(both)
        return y


class PooledPyramid(nn.Module):
    """Spatial pyramid pooling: max pools of several window sizes, joined with x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.conv1 = ConvolvedSilu(channels, half)
        self.pools = nn.ModuleList(nn.MaxPool2d(size, 1, size // 2) for size in _POOLED)
        self.conv2 = ConvolvedSilu(half * (len(_POOLED) + 1), channels)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        y: Tensor = self.conv2(torch.cat([x, *(pool(x) for pool in self.pools)], 1))
        return y


class DetectionHead(nn.Module):
    """Box, presence and classes of every place: (batch, 85, height, width)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.stem = ConvolvedSilu(inputs, width)
        twice = partial(ConvolvedSilu, width, width, 3)
        self.classes, self.boxes = nn.Sequential(twice(), twice()), nn.Sequential(twice(), twice())
        self.which, self.where, self.whether = (nn.Conv2d(width, n, 1) for n in (_CLASSES, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        kinds, boxes = self.classes(x), self.boxes(x)
        parts = [self.where(boxes), self.whether(boxes).sigmoid(), self.which(kinds).sigmoid()]
        return torch.cat(parts, 1)


class Yolox(nn.Module):
    """(batch, 3, height, width), both multiples of 32 -> (batch, places, 85)."""

    def __init__(self, width: int, depth: int) -> None:
        """`width`: channels of the first convolution; `depth`: a third of the deepest blocks."""
        super().__init__()
        sizes = [width * 2**n for n in range(5)]
        third, fourth, fifth = sizes[2:]
        down = [ConvolvedSilu(a, b, 3, 2) for a, b in pairwise(sizes)]
        self.stem = ConvolvedSilu(12, width, 3)
        self.dark2 = nn.Sequential(down[0], HalvedLayers(sizes[1], sizes[1], depth))
        self.dark3 = nn.Sequential(down[1], HalvedLayers(third, third, 3 * depth))
        self.dark4 = nn.Sequential(down[2], HalvedLayers(fourth, fourth, 3 * depth))
        last = HalvedLayers(fifth, fifth, depth, adds=False)
        self.dark5 = nn.Sequential(down[3], PooledPyramid(fifth), last)
        halved = partial(HalvedLayers, blocks=depth, adds=False)
        self.lateral5, self.lateral4 = ConvolvedSilu(fifth, fourth), ConvolvedSilu(fourth, third)
        self.up4, self.up3 = halved(2 * fourth, fourth), halved(2 * third, third)
        self.down3 = ConvolvedSilu(third, third, 3, 2)
        self.down4 = ConvolvedSilu(fourth, fourth, 3, 2)
        self.out4, self.out5 = halved(2 * third, fourth), halved(2 * fourth, fifth)
        self.heads = nn.ModuleList(DetectionHead(n, third) for n in (third, fourth, fifth))

    def forward(self, x: Tensor) -> Tensor:
        corners = [x[..., row::2, column::2] for column in (0, 1) for row in (0, 1)]
        third = self.dark3(self.dark2(self.stem(torch.cat(corners, 1))))
        fourth = self.dark4(third)
        narrow5 = self.lateral5(self.dark5(fourth))
        joined4 = self.up4(torch.cat([interpolate(narrow5, scale_factor=2.0), fourth], 1))
        narrow4 = self.lateral4(joined4)
        out3 = self.up3(torch.cat([interpolate(narrow4, scale_factor=2.0), third], 1))
        out4 = self.out4(torch.cat([self.down3(out3), narrow4], 1))
        out5 = self.out5(torch.cat([self.down4(out4), narrow5], 1))
        found = [head(y) for head, y in zip(self.heads, (out3, out4, out5), strict=True)]
        return torch.cat([y.flatten(2) for y in found], 2).permute(0, 2, 1)


def yolox_tiny() -> nn.Module:
    """(batch, 3, 640, 640) -> (batch, 8400, 85), with 5.1 million weights."""
    return with_statistics(Yolox(24, 1), 0.4, 0.9)
