"""Compiled functions of elements at large, infinite and missing numbers, against torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import sparsejit

Function = Callable[..., torch.Tensor]
inf, nan = float("inf"), float("nan")


class Applied(torch.nn.Module):
    """A function as a model."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *x: torch.Tensor) -> torch.Tensor:
        return self.function(*x)


def pairs(function: Function, *x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """What the compiled function gives, and torch."""
    model = Applied(function).eval()
    found = sparsejit.compile(model, x)(*x)
    return np.asarray(found), function(*x).numpy()


def assert_same(found: np.ndarray, wanted: np.ndarray) -> None:
    """Every bit but those of NaN."""
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(np.signbit(found)[wanted == 0], np.signbit(wanted)[wanted == 0])


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values).reshape(1, -1)


@pytest.mark.parametrize("function", [torch.remainder, torch.fmod])
def test_remainders(function: Function) -> None:
    generator = torch.Generator().manual_seed(3)
    x = 10 ** (torch.rand(1, 4000, generator=generator) * 12 - 2)
    other = 10 ** (torch.rand(1, 4000, generator=generator) * 4 - 2)
    x, other = (t * (torch.rand(t.shape, generator=generator) - 0.5).sign() for t in (x, other))
    near = (other * torch.arange(4000)).nextafter(column(-inf))  # just below whole quotients
    for dividend in (x, near, other * 3, other * -4096):
        assert_same(*pairs(function, dividend, other))
    grid = torch.tensor([0.0, -0.0, 1.0, -1.5, 1e10, -1e10, 4.0, inf, -inf, nan, 1e-10, -1e-10])
    first, second = torch.meshgrid(grid, grid[:-2], indexing="ij")
    assert_same(*pairs(function, first.reshape(1, -1), second.reshape(1, -1)))


def test_remainders_of_a_number() -> None:
    x = torch.linspace(-1000, 1000, 20_001).reshape(1, -1)
    for divisor in (0.1, -0.1, 1.5):
        assert_same(*pairs(lambda x, d=divisor: x % d, x))
    assert_same(*pairs(lambda x: x % 1.5, column(1e10, -1e10, 1e13)))
