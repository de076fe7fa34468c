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
    """The results of the compiled function, and torch's."""
    model = Applied(function).eval()
    found = sparsejit.compile(model, x)(*x)
    return np.asarray(found), function(*x).numpy()


def assert_same(found: np.ndarray, wanted: np.ndarray) -> None:
    """Compare every bit except NaN's."""
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


@pytest.mark.parametrize("function", [torch.remainder, torch.fmod, torch.floor_divide])
@pytest.mark.parametrize("divisor", [None, 1.0, -3.0, 1e-40, 1e30])
def test_remainders_of_any_numbers(function: Function, divisor: float | None) -> None:
    """Remainders of quotients up to 2^277, torch's NaN where float32 has no such number."""
    bits = np.random.default_rng(5).integers(0, 1 << 32, (2, 1, 20_000), dtype=np.uint64)
    x, others = (torch.from_numpy(each.astype(np.uint32).view(np.float32)) for each in bits)
    x[0, :6] = torch.tensor([inf, -inf, nan, 3.4e38, -1e-45, 0.0])
    given = (x, others) if divisor is None else (x,)
    other = others if divisor is None else torch.tensor(divisor)
    found, _ = pairs(lambda x, o=other: function(x, o), *given)
    own = function(x, other).numpy()
    exact = function(x.double(), other.double()).float().numpy()
    differs = ~np.isfinite(own) & np.isfinite(exact)
    with np.errstate(invalid="ignore"):
        differs |= np.abs(own - exact) <= 1  # of a quotient that torch rounds to a whole number
    assert_same(found, np.where(differs, exact, own))


def test_remainders_of_a_number() -> None:
    x = torch.linspace(-1000, 1000, 20_001).reshape(1, -1)
    for divisor in (0.1, -0.1, 1.5):
        assert_same(*pairs(lambda x, d=divisor: x % d, x))
    assert_same(*pairs(lambda x: x % 1.5, column(1e10, -1e10, 1e13)))


def test_gelu_vanishes_for_large_negative_numbers() -> None:
    x = column(-1e38, -1e6, -100.0, -6.0, 6.0, 1e6, 1e38)
    assert_same(*pairs(torch.nn.functional.gelu, x))


def test_signs() -> None:
    assert_same(*pairs(torch.sign, column(nan, -nan, 0.0, -0.0, inf, -inf, 1e-45, -2.0)))


def test_log_sum_exp_of_infinities() -> None:
    x = torch.tensor([[inf, 0.0], [-inf, -inf], [inf, -inf], [-inf, 1.0], [nan, inf], [89.0, 90.0]])
    found, wanted = pairs(lambda x: torch.logsumexp(x, 1), x)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("function", [torch.sinh, torch.cosh])
def test_hyperbolic_functions_reach_as_far_as_float32(function: Function) -> None:
    x = torch.cat([torch.linspace(-89.4, 89.4, 4001), torch.logspace(-20, 0, 400)])
    found, _ = pairs(function, x.reshape(1, -1))
    wanted = function(x.double()).numpy()
    np.testing.assert_allclose(found[0], wanted, rtol=2e-6)
    assert_same(*pairs(function, column(inf, -inf, nan, 0.0, 90.0, -90.0)))


@pytest.mark.parametrize("power", [2.5, 1 / 3, -0.3, 0.5, -0.5, 3, -2, 65.0, 100, 0])
def test_powers_of_extremes(power: float) -> None:
    x = column(inf, -inf, nan, 0.0, 1.0, 2.0, -1.0, -2.0)
    found, wanted = pairs(lambda x: x**power, x)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
