"""Layers of random torch models, pruned: each row of LAYERS adds one to a growing program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from fuzzing.torch_steps import Row, is_float, is_whole
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from fuzzing.torch_models import Growing


def _long_enough(x: Tensor, rank: int) -> bool:
    return is_float(x) and x.dim() == rank and min(x.shape[1:]) > 0


def linear(grow: Growing) -> None:
    place = grow.any(lambda x: is_float(x) and x.dim() > 1 and x.shape[-1] > 0)
    if place is None:
        return
    sizes = grow.values[place].shape[-1], grow.draw.choice([1, 3, 8, 17, 40])
    layer = nn.Linear(*sizes, bias=grow.draw.random() < 0.7)
    grow.add(f"linear {sizes}", grow.layer(layer), place)


def convolution(grow: Growing) -> None:
    rank = grow.draw.choice([1, 2])
    place = grow.any(lambda x: _long_enough(x, rank + 2))
    if place is None:
        return
    channels, draw = grow.values[place].shape[1], grow.draw
    groups = channels if draw.random() < 0.2 else 1
    kernel, stride, padding, dilation = (
        draw.choice(sizes) for sizes in ((1, 2, 3, 5), (1, 1, 2, 3), (0, 1, 2), (1, 1, 2))
    )
    out = channels * draw.choice([1, 2]) if groups > 1 else draw.choice([1, 3, 8, 17])
    kind = (nn.Conv1d, nn.Conv2d)[rank - 1]
    if draw.random() < 0.2:
        kind = (nn.ConvTranspose1d, nn.ConvTranspose2d)[rank - 1]
        layer = kind(channels, out, kernel, stride, padding, groups=groups)
    else:
        layer = kind(channels, out, kernel, stride, padding, dilation, groups)
    grow.add(f"{layer}", grow.layer(layer), place)


def pool(grow: Growing) -> None:
    rank = grow.draw.choice([1, 2])
    place = grow.any(lambda x: _long_enough(x, rank + 2))
    if place is None:
        return
    kinds = [(nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d)]
    kinds.append((nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d))
    layer = grow.draw.choice(kinds[rank - 1])(grow.draw.choice([1, 2, 3]))
    grow.add(f"{layer}", layer, place)


def normalise(grow: Growing) -> None:
    place = grow.any(lambda x: is_float(x) and x.dim() > 1 and min(x.shape[1:]) > 0)
    if place is None:
        return
    x = grow.values[place]
    makers: list[Callable[[], nn.Module]] = [
        lambda: nn.LayerNorm(x.shape[-1]),
        lambda: nn.LayerNorm(x.shape[1:]),
        lambda: nn.GroupNorm(1, x.shape[1]),
        lambda: nn.RMSNorm(x.shape[-1]),
    ]
    if x.dim() in (3, 4):
        makers.append(lambda: (nn.BatchNorm1d, nn.BatchNorm2d)[x.dim() - 3](x.shape[1]))
    layer = grow.draw.choice(makers)()
    for name, buffer in layer.named_buffers():
        if name == "running_var":
            buffer.copy_(torch.rand(buffer.shape) + 0.5)
        elif name == "running_mean":
            buffer.copy_(torch.randn(buffer.shape))
    grow.add(f"{layer}", grow.layer(layer), place)


def recurrent(grow: Growing) -> None:
    place = grow.any(lambda x: _long_enough(x, 3) and x.shape[1] < 12)
    if place is None:
        return
    draw, inputs = grow.draw, grow.values[place].shape[-1]
    kind = draw.choice([nn.GRU, nn.LSTM, nn.RNN])
    layer = grow.layer(
        kind(
            inputs,
            draw.choice([1, 4, 9, 17]),
            num_layers=draw.choice([1, 1, 2]),
            batch_first=True,
            bidirectional=draw.random() < 0.3,
        )
    )
    which = draw.choice(["sequence", "last", "state"])

    def run(x: Tensor) -> Tensor:
        sequence, state = layer(x)
        if which == "sequence":
            return sequence
        if which == "last":
            return sequence[:, -1]
        state = state[0] if isinstance(state, tuple) else state
        return state.transpose(0, 1)

    grow.add(f"{layer} {which}", run, place)


def attention(grow: Growing) -> None:
    place = grow.any(lambda x: _long_enough(x, 3) and x.shape[1] < 40)
    if place is None:
        return
    size, draw = grow.values[place].shape[-1], grow.draw
    if draw.random() < 0.5:
        causal = draw.random() < 0.5

        def attend(x: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(x, x, x, is_causal=causal)

        grow.add(f"attention {causal}", attend, place)
        return
    heads = draw.choice([n for n in (1, 2, 3, 4) if size % n == 0])
    layer = grow.layer(nn.MultiheadAttention(size, heads, batch_first=True))
    grow.add(f"{heads} heads of {size}", lambda x: layer(x, x, x, need_weights=False)[0], place)


def embed(grow: Growing) -> None:
    rows = 11
    place = grow.any(
        lambda x: is_whole(x) and (not x.numel() or bool(((x >= 0) & (x < rows)).all()))
    )
    if place is None:
        place = grow.any(is_whole)
        if place is None or not grow.add("bounded", lambda x: x.clamp(0, 10), place):
            return
        place = len(grow.values) - 1
    layer = nn.Embedding(rows, grow.draw.choice([1, 3, 8, 17]))
    grow.add(f"{layer}", grow.layer(layer), place)


def product(grow: Growing) -> None:
    place = grow.any(lambda x: _long_enough(x, 3))
    if place is None:
        return
    x = grow.values[place]
    other = grow.any(lambda y: _long_enough(y, 3) and y.shape[2] == x.shape[2])
    if other is not None:
        grow.add("bmm", lambda x, y: torch.bmm(x, y.transpose(1, 2)), place, other)


def matrices(grow: Growing) -> None:
    """Products of values with axes enough, stacks broadcast."""
    place = grow.any(lambda x: is_float(x) and x.dim() > 1 and min(x.shape) > 0)
    if place is None:
        return
    x = grow.values[place]
    other = grow.any(
        lambda y: is_float(y) and y.dim() > 1 and min(y.shape) > 0 and x.shape[-1] == y.shape[-1]
    )
    if other is not None:
        grow.add("matmul", lambda x, y: torch.matmul(x, y.transpose(-1, -2)), place, other)


def pick(grow: Growing) -> None:
    """Places of an axis by whole numbers of the model's, kept within it."""
    place = grow.any(lambda x: x.dim() > 1 and x.shape[1] > 0)
    index = grow.any(lambda x: is_whole(x) and x.dim() == 1)
    if place is not None and index is not None:
        last = grow.values[place].shape[1] - 1
        grow.add("pick", lambda x, i: x[:, i.clamp(0, last).long()], place, index)


def resize(grow: Growing) -> None:
    place = grow.any(lambda x: _long_enough(x, 4))
    mode = grow.draw.choice(["nearest", "bilinear"])
    if place is not None:
        grow.add(
            f"resize {mode}", lambda x: functional.interpolate(x, scale_factor=2, mode=mode), place
        )


# A row as often as it is to be taken.
LAYERS: tuple[Row, ...] = (
    *(linear, linear, convolution, convolution, pool, normalise, recurrent, attention, embed),
    *(product, matrices, pick, resize),
)
