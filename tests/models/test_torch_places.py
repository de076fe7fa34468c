"""Elements at places that a call decides, in models whose batch is of any size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from runnable import ISAS

import sparsejit
from sparsejit.errors import InvalidInput
from sparsejit.frontends.torch_export import export

Model = Callable[..., torch.Tensor]
GENERATOR = torch.Generator().manual_seed(7)


class Applied(torch.nn.Module):
    """A function as a model."""

    def __init__(self, function: Model) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        return self.function(*x)


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR)


def whole(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=GENERATOR)


def _row(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.shape[0])


def _filled(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    result = x.clone()
    result[_row(x), places] = 1.5
    return result


def _pooled_at_the_largest(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """As CLIP takes the token with the highest number."""
    return x[_row(x), ids.to(torch.int).argmax(-1)] * 2


def _windows(x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """As TimesFM takes a window that begins where a call says."""
    return x[_row(x)[:, None], first[:, None] + torch.arange(3)]


# The model, and its inputs for a batch of that many.
MODELS: dict[str, tuple[Model, Callable[[int], tuple[torch.Tensor, ...]]]] = {
    "pooling": (_pooled_at_the_largest, lambda n: (rand(n, 7, 5), whole(99, n, 7))),
    "windows": (_windows, lambda n: (rand(n, 9, 2), whole(6, n))),
    "last of each": (lambda x, n: x[_row(x), n - 1], lambda n: (rand(n, 6, 3), whole(6, n) + 1)),
    "gather": (lambda x, i: x.gather(1, i), lambda n: (rand(n, 6, 4), whole(6, n, 3, 4))),
    "rows": (
        lambda x, i: x.gather(1, i.unsqueeze(-1).repeat(1, 1, x.shape[-1])),
        lambda n: (rand(n, 6, 4), whole(6, n, 3)),
    ),
    "known places": (
        lambda x: x.gather(2, torch.tensor([[[3, 0], [1, 1]]]).expand(x.shape[0], 2, 2)),
        lambda n: (rand(n, 2, 4),),
    ),
    "sorted": (lambda x: x.gather(1, x.argsort(dim=1)[:, :2]), lambda n: (rand(n, 6, 4),)),
    "scatter": (
        lambda x, i, y: x.scatter(1, i, y) + x.scatter_add(1, i, y),
        lambda n: (rand(n, 6), whole(6, n, 4), rand(n, 4)),
    ),
    "extremes": (
        lambda x, i, y: x.scatter_reduce(1, i, y, "amax", include_self=False),
        lambda n: (rand(n, 6), whole(6, n, 4), rand(n, 4)),
    ),
    "index_put": (_filled, lambda n: (rand(n, 6, 2), whole(6, n))),
    "index_add": (
        lambda x: x.index_add(1, torch.tensor([2, 2, 0]), x[:, :3]),
        lambda n: (rand(n, 6, 2),),
    ),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", MODELS)
def test_places_leave_the_batch_free(name: str, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", isa)
    function, inputs = MODELS[name]
    model = Applied(function).eval()
    compiled = sparsejit.compile(model, inputs(3))
    assert compiled.batch_is_free
    for batch in (1, 2, 3, 20):
        given = inputs(batch)
        np.testing.assert_allclose(compiled(*given), function(*given), rtol=1e-6, atol=1e-6)


def test_a_batch_of_one_shows_it_as_well() -> None:
    function, inputs = MODELS["pooling"]
    assert export(Applied(function).eval(), inputs(1), {}, True).batch_is_free


@pytest.mark.parametrize("wrong", [7, -8, 2**40])
def test_a_place_that_is_none_is_reported(wrong: int) -> None:
    x, places = rand(2, 7), torch.tensor([[0, 3], [1, 2]])

    def put(x: torch.Tensor, places: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        return torch.scatter(x, 1, places, new)

    compiled: Any = sparsejit.compile(Applied(put).eval(), (x, places, x[:, :2]))
    with pytest.raises(InvalidInput, match="an index without a row in its table"):
        compiled(x, torch.tensor([[0, 1], [wrong, 2]]), x[:, :2])
