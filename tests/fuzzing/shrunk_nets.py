"""Random small nets, shrunk: within the budget, never slower, and the same in ONNX Runtime.

case = make(seed)        a net, samples of its inputs, and the arguments of shrink
check(case)              "shrunk" or "dense", or "refused" with the reason
"""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

import sparsejit
from sparsejit.errors import InvalidInput

# Fresh inputs may err more than the held elements that the budget is about.
_MOST_ERROR = 3.0
_LIKE_ORT = 2e-3
# Refusals that a random net may deserve.
_REFUSED = ("too few elements", "no linear layer", "out of reach")


@dataclass(frozen=True)
class ShrunkCase:
    """A net, samples, fresh inputs, whether it goes through ONNX, and the arguments of shrink."""

    title: str
    net: nn.Module
    samples: list[torch.Tensor]
    fresh: list[torch.Tensor]
    by_onnx: bool
    arguments: dict[str, Any]


def make(seed: int) -> ShrunkCase:
    """The case of a seed."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    net, shape = draw.choice((_layers, _images, _sequences, _recurrences))(draw)
    wide, few = int(np.prod(shape)), draw.choice((4, 8, 16))
    mixing = torch.randn(few, wide)
    count = draw.choice((16, 40, 80))
    batch = draw.choice((1, 4, 16))
    inputs = [(torch.randn(batch, few) @ mixing).reshape(batch, *shape) for _ in range(count + 8)]
    arguments: dict[str, Any] = {"dtype": draw.choice(("float32", "auto"))}
    arguments |= draw.choice(({"budget": draw.choice((0.01, 0.05, 0.2, 0.4))}, {"speed": 1.3}))
    by_onnx = draw.random() < 0.5
    title = f"{type(net).__name__} {arguments} by_onnx={by_onnx}: {net}"
    return ShrunkCase(title, net.eval(), inputs[8:], inputs[:8], by_onnx, arguments)


def check(case: ShrunkCase) -> str:
    """Raises AssertionError for a result beyond the budget, slower, or other in its file."""
    with warnings.catch_warnings(), TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        path = Path(folder) / "net.onnx"
        if case.by_onnx:
            given = (case.samples[0],)
            torch.onnx.export(case.net, given, str(path), dynamo=False, input_names=["x"])
        model = str(path) if case.by_onnx else case.net
        try:
            result = sparsejit.shrink(model, case.samples, **case.arguments)
        except InvalidInput as error:
            if any(why in str(error) for why in _REFUSED):
                return f"refused: {error}"
            raise
        _check_result(case, result)
        if case.by_onnx:
            _check_file(case, result, Path(folder) / "small.onnx")
    return "dense" if result.is_dense else "shrunk"


def _check_result(case: ShrunkCase, result: sparsejit.Shrunk) -> None:
    budget = case.arguments.get("budget")
    assert budget is None or result.error <= budget
    assert result.speed >= 1
    with torch.no_grad():
        wanted = torch.cat([case.net(x) for x in case.fresh]).numpy()
    found = np.concatenate([np.asarray(result.model(x)) for x in case.fresh])
    error = np.sqrt(np.square(found - wanted).mean() / np.square(wanted).mean())
    assert np.isfinite(found).all()
    assert budget is None or error <= _MOST_ERROR * budget + 1e-5, f"fresh inputs err by {error}"


def _check_file(case: ShrunkCase, result: sparsejit.Shrunk, path: Path) -> None:
    import onnx
    import onnxruntime

    result.save(path)
    onnx.checker.check_model(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for x in case.fresh[:2]:
        (theirs,) = session.run(None, {"x": x.numpy()})
        ours = np.asarray(result.model(x.numpy()))
        # A value on the border between two steps of int8 may go either way.
        off = np.abs(ours - theirs) > _LIKE_ORT * np.abs(theirs).max()
        most = 0.02 if result.scales is not None else 0.0
        assert off.mean() <= most, f"ONNX Runtime differs by {np.abs(ours - theirs).max()}"


def _activation(draw: random.Random) -> nn.Module:
    return draw.choice((nn.ReLU, nn.Tanh, nn.SiLU, nn.GELU, nn.LeakyReLU))()


def _layers(draw: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    widths = [draw.choice((17, 32, 64, 96, 130)) for _ in range(draw.randint(2, 4))]
    made: list[nn.Module] = []
    for first, second in pairwise(widths):
        made += [nn.Linear(first, second, bias=draw.random() < 0.8), _activation(draw)]
        made += [nn.LayerNorm(second)] if draw.random() < 0.3 else []
    return nn.Sequential(*made), (widths[0],)


def _images(draw: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    channels = [draw.choice((3, 8, 16, 32)) for _ in range(draw.randint(2, 4))]
    made: list[nn.Module] = []
    for first, second in pairwise(channels):
        size = draw.choice((1, 3))
        made += [nn.Conv2d(first, second, size, padding=size // 2, bias=draw.random() < 0.7)]
        made += [nn.BatchNorm2d(second)] if draw.random() < 0.5 else []
        made += [_activation(draw)]
    made += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], 24)]
    return nn.Sequential(*made), (channels[0], 8, 8)


class Residual(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def _sequences(draw: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    width, length = draw.choice((32, 48)), draw.choice((5, 12))
    around = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
    inner = nn.Sequential(around[0], _activation(draw), around[1])
    made = nn.Sequential(Residual(inner), nn.LayerNorm(width), nn.Linear(width, 20))
    return made, (length, width)


class Recurrent(nn.Module):
    """A recurrent net between two linear layers; of its last step, or of all."""

    def __init__(self, inner: nn.RNNBase, width: int, is_last: bool) -> None:
        super().__init__()
        self.mixing = nn.Linear(width, inner.input_size)
        self.inner, self.is_last = inner, is_last
        ways = 2 if inner.bidirectional else 1
        self.last = nn.Linear(ways * inner.hidden_size, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(self.mixing(x))[0]
        return self.last(y[:, -1] if self.is_last else y)


def _recurrences(draw: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    width, length = draw.choice((24, 40)), draw.choice((1, 5, 12))
    kind = draw.choice((nn.LSTM, nn.GRU, nn.RNN))
    inner = kind(
        draw.choice((17, 32)),
        draw.choice((20, 32, 48)),
        num_layers=draw.choice((1, 1, 2)),
        bias=draw.random() < 0.8,
        batch_first=True,
        bidirectional=draw.random() < 0.4,
    )
    return Recurrent(inner, width, draw.random() < 0.5), (length, width)
