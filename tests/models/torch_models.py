"""Torch models, and their graphs compared with torch in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils._pytree import tree_leaves, tree_map

from sparsejit.frontends import nesting
from sparsejit.frontends.torch_export import Exported, export


class Written(nn.Module):
    """A module whose forward is a function of it and the inputs."""

    def __init__(self, function: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def in_float64(model: nn.Module, args: Any, kwargs: Any) -> list[np.ndarray]:
    def wide(x: Any) -> Any:
        return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    try:
        model.eval().double()
        with torch.no_grad():
            results = model(*tree_map(wide, args), **tree_map(wide, kwargs))
    finally:
        model.float()
    return [x.numpy() for x in tree_leaves(results) if isinstance(x, torch.Tensor)]


def checked(model: nn.Module, *args: Any, tolerance: float = 1e-6, **kwargs: Any) -> Exported:
    """Compare at the example's batch and, where it is free, at others."""
    exported = export(model.eval(), args, kwargs, True)
    for batch in (None, 1, 5) if exported.batch_is_free else (None,):

        def of_batch(x: Any, batch: int | None = batch) -> Any:
            rows = isinstance(x, torch.Tensor) and batch is not None
            return torch.cat([x] * 5)[:batch] if rows else x

        given_args, given_kwargs = tree_map(of_batch, (args, kwargs))
        inputs = nesting.flatten(exported.input_tree, (given_args, given_kwargs), "inputs")
        results = exported.graph(batch).evaluate([x.numpy() for x in inputs])
        wanted = in_float64(model, given_args, given_kwargs)
        assert len(results) == len(wanted)
        for result, want in zip(results, wanted, strict=True):
            np.testing.assert_allclose(result, want, rtol=tolerance, atol=tolerance)
    return exported


def encoder(**options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def bottleneck() -> nn.Module:
    layers = nn.Sequential(
        *(nn.Conv2d(4, 8, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True)),
        *(nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), nn.BatchNorm2d(8)),
        *(nn.Hardswish(inplace=True), nn.Conv2d(8, 4, 1, bias=False), nn.BatchNorm2d(4)),
    )

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        y += x
        return y

    return Written(forward, layers=layers)


def deep_and_wide(self: Any, ids: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    users, ads = self.users(ids[:, 0]), self.ads(ids[:, 1])
    dot = torch.bmm(users.unsqueeze(1), ads.unsqueeze(2)).squeeze(2)
    scaled = torch.clamp((wide - 0.5) * 2.0, 0, 10)
    return torch.sigmoid(self.last(torch.cat([dot, scaled], 1)))


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "perceptron": lambda: (
        nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(16, 3)),
        (torch.randn(1, 8),),
    ),
    "tagger": lambda: (
        Written(
            lambda m, x: m.out(m.gru(m.embed(x))[0]),
            embed=nn.Embedding(20, 8),
            gru=nn.GRU(8, 6, 2, batch_first=True, bidirectional=True),
            out=nn.Linear(12, 5),
        ),
        (torch.randint(0, 20, (3, 7)),),
    ),
    "lstm": lambda: (
        Written(lambda m, x: m.lstm(x)[0][:, -1], lstm=nn.LSTM(8, 6, batch_first=True)),
        (torch.randn(3, 4, 8),),
    ),
    "cell": lambda: (
        Written(lambda m, x, h: m.cell(x, h), cell=nn.GRUCell(8, 6)),
        (torch.randn(3, 8), torch.randn(3, 6)),
    ),
    "bottleneck": lambda: (
        nn.Sequential(
            *(nn.Conv2d(3, 4, 3, 2, 1), bottleneck(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
            *(nn.Linear(4, 3), nn.LogSoftmax(1)),
        ),
        (torch.randn(2, 3, 16, 16),),
    ),
    "encoder": lambda: (encoder(activation="gelu"), (torch.randn(2, 6, 16),)),
    "norm first": lambda: (encoder(norm_first=True), (torch.randn(2, 6, 16),)),
    "attention weights": lambda: (
        Written(lambda m, x: m.of(x, x, x), of=nn.MultiheadAttention(16, 4, batch_first=True)),
        (torch.randn(2, 6, 16),),
    ),
    "bags": lambda: (nn.EmbeddingBag(10, 4, mode="mean"), (torch.randint(0, 10, (3, 4)),)),
    "deep and wide": lambda: (
        Written(
            deep_and_wide,
            users=nn.Embedding(9, 4),
            ads=nn.Embedding(9, 4),
            last=nn.Linear(6, 1),
        ),
        (torch.randint(0, 9, (2, 2)), torch.randn(2, 5)),
    ),
    "weight norm": lambda: (parametrizations.weight_norm(nn.Linear(8, 4)), (torch.randn(2, 8),)),
    "circular": lambda: (
        nn.Conv1d(4, 3, 4, padding="same", padding_mode="circular"),
        (torch.randn(2, 4, 9),),
    ),
    "images": lambda: (
        Written(
            lambda m, x: torch.cat(
                [m.up(m.down(x)), functional.interpolate(x[:, :, ::2, ::2], scale_factor=2)], 1
            ),
            up=nn.ConvTranspose2d(8, 4, 2, 2),
            down=nn.Conv2d(4, 8, 2, 2),
        ),
        (torch.randn(2, 4, 8, 8),),
    ),
    "normalised": lambda: (
        nn.Sequential(
            *(nn.Conv1d(4, 8, 3), nn.GroupNorm(2, 8), nn.Mish(), nn.InstanceNorm1d(8)),
            *(nn.PReLU(8), nn.GLU(1), nn.LayerNorm(7)),
        ),
        (torch.randn(2, 4, 9),),
    ),
}
