"""Random small nets that are quantised afterwards: convolutions, or layers of transformers.

    net, inputs = grown(draw)        of torch's generator, which the caller seeds
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

FUNCTIONS: tuple[Callable[[], nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.SiLU, nn.Hardswish, nn.GELU, nn.Identity, nn.Sigmoid, nn.Tanh),
    *(partial(nn.LeakyReLU, 0.1), partial(nn.Hardtanh, -0.7, 0.9)),
)
# The number that a mask adds to hidden scores.
HIDDEN = -1e4


class ResidualSum(nn.Module):
    """after(x + inner(x))."""

    def __init__(self, inner: nn.Module, after: nn.Module) -> None:
        super().__init__()
        self.inner, self.after = inner, after

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.after(x + self.inner(x))
        return y


class SqueezeExcite(nn.Module):
    """x * gate(wide(function(narrow(means of x))))."""

    def __init__(self, channels: int, function: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        few = max(1, channels // 4)
        self.narrow, self.wide = nn.Conv2d(channels, few, 1), nn.Conv2d(few, channels, 1)
        self.function, self.gate = function, gate

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdim=True)
        y: Tensor = x * self.gate(self.wide(self.function(self.narrow(means))))
        return y


class SideBySide(nn.Module):
    """Channels of several, one after the other."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], 1)


class TransformerLayer(nn.Module):
    """Attention and two linear layers; norms before either, or behind the sums."""

    def __init__(self, draw: random.Random, heads: int, width: int) -> None:
        super().__init__()
        self.heads, self.is_before = heads, draw.random() < 0.4
        inner = width * draw.randint(1, 3)
        self.q, self.k, self.v, self.out = (
            nn.Linear(width, width, bias=draw.random() < 0.8) for _ in range(4)
        )
        self.one, self.other = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.function = draw.choice((nn.GELU, nn.ReLU, nn.SiLU))()

    def attention(self, x: Tensor, mask: Tensor | None) -> Tensor:
        samples, length, width = x.shape
        shape = samples, length, self.heads, width // self.heads
        q, k, v = (each(x).view(shape).transpose(1, 2) for each in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / shape[-1] ** 0.5
        shares = torch.softmax(scores if mask is None else scores + mask, -1)
        y: Tensor = self.out((shares @ v).transpose(1, 2).reshape(x.shape))
        return y

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.is_before:
            x = x + self.attention(self.one(x), mask)
            return x + self.down(self.function(self.up(self.other(x))))
        x = self.one(x + self.attention(x, mask))
        y: Tensor = self.other(x + self.down(self.function(self.up(x))))
        return y


class Transformer(nn.Module):
    """Layers, of which all see the same mask; a norm before them, linear layers behind."""

    def __init__(self, before: nn.Module, layers: list[nn.Module], behind: nn.Module) -> None:
        super().__init__()
        self.before, self.layers, self.behind = before, nn.ModuleList(layers), behind

    def forward(self, x: Tensor, there: Tensor | None = None) -> Tensor:
        x = self.before(x)
        mask = None if there is None else (1 - there) * HIDDEN
        for layer in self.layers:
            x = layer(x, mask)
        y: Tensor = self.behind(x)
        return y


def grown(draw: random.Random) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A net, and inputs of one to five samples."""
    samples = draw.choice((1, 1, 2, 3, 4, 5))
    kind = draw.choice((_convolutions,) * 6 + (_transformer,) * 3 + (_linear,))
    while True:
        net, inputs = kind(draw, samples)
        try:
            with torch.no_grad():
                net(*inputs)
        except RuntimeError:  # strides have left too little for a kernel
            continue
        return net, inputs


def _linear(draw: random.Random, samples: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    sizes = [draw.choice((5, 16, 33, 64, 96)) for _ in range(draw.randint(2, 5))]
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs, bias=draw.random() < 0.8), draw.choice(FUNCTIONS)()]
    shape = (samples, draw.choice((1, 7, 33, 64)), sizes[0])
    return nn.Sequential(*layers), (torch.randn(shape if draw.random() < 0.7 else shape[::2]),)


def _transformer(draw: random.Random, samples: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    heads, length = draw.choice((1, 2, 4)), draw.choice((7, 33, 40, 64, 70))
    width = heads * draw.choice((4, 8, 12, 16))
    layers: list[nn.Module] = [
        TransformerLayer(draw, heads, width) for _ in range(draw.randint(1, 2))
    ]
    before = nn.LayerNorm(width) if draw.random() < 0.5 else nn.Identity()
    behind = nn.Linear(width, 9) if draw.random() < 0.3 else nn.Identity()
    x = torch.randn(samples, length, width)
    if draw.random() < 0.6:
        return Transformer(before, layers, behind), (x,)
    lengths = torch.tensor([draw.randint(1, length) for _ in range(samples)])
    there = (torch.arange(length) < lengths[:, None]).float()[:, None, None]
    return Transformer(before, layers, behind), (x, there)


def _convolutions(draw: random.Random, samples: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    first = channels = draw.choice((3, 5, 8, 16))
    size = draw.choice((9, 14, 17, 28)), draw.choice((9, 14, 20, 31))
    layers: list[nn.Module] = []
    for number in range(draw.randint(2, 6)):
        step = _with_weights(draw, channels) if not number or draw.random() < 0.7 else None
        layer, channels = step or _without_weights(draw, channels)
        layers.append(layer)
    if draw.random() < 0.5:
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*layers), (torch.randn(samples, first, *size),)


def _with_weights(draw: random.Random, channels: int) -> tuple[nn.Module, int]:
    function, bias = draw.choice(FUNCTIONS), draw.random() < 0.75
    stride, outputs = draw.choice((1, 1, 2)), draw.choice((8, 16, 24, 33))
    kinds = ("1x1", "3x3", "3x3", "grouped", "depthwise", "depthwise", "sum", "se", "cat")
    kind = draw.choice(kinds)
    if kind == "sum":
        inner = nn.Conv2d(channels, channels, draw.choice((1, 3)), padding="same", bias=bias)
        after = draw.choice((nn.ReLU, nn.Identity))()
        return ResidualSum(nn.Sequential(inner, function()), after), channels
    if kind == "se":
        gate = draw.choice((nn.Sigmoid, nn.Hardsigmoid))()
        return SqueezeExcite(channels, function(), gate), channels
    if kind == "cat":
        one = nn.Sequential(nn.Conv2d(channels, 8, 1, bias=bias), function())
        return SideBySide(one, nn.Conv2d(channels, 8, 3, padding=1)), 16
    if kind == "1x1":
        layer = nn.Conv2d(channels, outputs, 1, stride, bias=bias)
    elif kind == "depthwise":
        outputs, taps = channels, draw.choice((3, 5))
        layer = nn.Conv2d(channels, channels, taps, stride, taps // 2, groups=channels, bias=bias)
    else:
        groups = 1 if kind == "3x3" or channels % 2 else 2
        outputs += groups * (outputs % 2)
        outputs -= outputs % groups
        layer = nn.Conv2d(channels, outputs, 3, stride, draw.choice((0, 1, 1)), 1, groups, bias)
    return nn.Sequential(layer, function()), outputs


def _without_weights(draw: random.Random, channels: int) -> tuple[nn.Module, int]:
    makers = (
        lambda: nn.MaxPool2d(3, draw.choice((1, 2)), 1),
        lambda: nn.AvgPool2d(2, 1),
        lambda: nn.AvgPool2d(3, 2, 1),
        lambda: nn.Upsample(scale_factor=2),
    )
    return draw.choice(makers)(), channels
