"""Functions that are formulas, over all of float32, against torch in float64."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from runnable import ISAS
from test_float_arithmetic import Applied

import sparsejit
from sparsejit.ir.graph import Array

SPECIAL = (
    *(0.0, 1e-45, 1e-40, 1.1754944e-38, 1e-30, 1e-9, 0.25, 0.5, 0.9999999, 1.0, 1.0000001),
    *(1.5, 2.0, 2.5, 3.0, 10.0, 30.5, 89.0, 1e5, 1e10, 1e30, 3.4e38, np.inf),
)
EDGES = np.array([*SPECIAL, *(-each for each in SPECIAL), np.nan], np.float32)
# The most last places that each may be off.
UNARY = {
    torch.atan: 3,
    torch.asin: 2.5,
    torch.acos: 2.5,
    torch.asinh: 2.5,
    torch.acosh: 2.5,
    torch.atanh: 2.5,
}
BINARY = {torch.atan2: 2.5}


def numbers() -> Array:
    """The edges, numbers of all magnitudes, and more of those near 1."""
    random = np.random.default_rng(3)
    spread = 10.0 ** random.uniform(-44, 38.4, 6000) * random.choice([-1, 1], 6000)
    near = [random.uniform(-limit, limit, 6000) for limit in (1, 20)]
    return np.concatenate([EDGES, spread, *near]).astype(np.float32)


def pairs() -> tuple[Array, Array]:
    """Every edge with every edge, and numbers in two orders."""
    first, second = np.meshgrid(EDGES, EDGES)
    x = numbers()
    y = np.random.default_rng(4).permutation(x)
    return np.concatenate([first.ravel(), x]), np.concatenate([second.ravel(), y])


def assert_near(found: Array, exact: Array, places: float, *operands: Array) -> None:
    """Within so many last places of float32; infinities, NaN and signs of zeros are the same."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype(np.float32)
        error = np.abs(found.astype(np.float64) - exact) / np.spacing(np.abs(rounded))
    finite = np.isfinite(rounded) & np.isfinite(found)
    alike = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    near = alike | (finite & (error <= places))
    zeros = (rounded == 0) & (found == 0)
    near &= ~zeros | (np.signbit(found) == np.signbit(rounded))
    # Where float64's result only rounds to infinity, the largest number is as near.
    near |= np.isinf(rounded) & np.isfinite(exact) & (np.abs(found) > 3.4e38)
    bad = np.flatnonzero(~near)[:5]
    assert near.all(), [(*(x[n] for x in operands), found[n], exact[n]) for n in bad]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("function", [*UNARY, *BINARY], ids=lambda each: each.__name__)
def test_functions_are_right_to_the_last_places(
    function: object, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", isa)
    operands = (numbers(),) if function in UNARY else pairs()
    tensors = tuple(map(torch.from_numpy, operands))
    compiled = sparsejit.compile(Applied(function).eval(), tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exact = function(*(x.double() for x in tensors)).numpy()
    places = UNARY.get(function) or BINARY[function]
    assert_near(compiled(*tensors).numpy(), exact, places, *operands)
