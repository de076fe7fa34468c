"""The polynomials behind exponentials, logarithms, erf and tanh, in exact arithmetic."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.special import erf

from sparsejit.asm_templates.pointwise.power_of_two import COEFFICIENTS
from sparsejit.asm_templates.pointwise.row_chain import coefficients as chain
from sparsejit.asm_templates.shared import activation

HALF = np.log(2) / 2


def of(table: Sequence[float], x: Any) -> Any:
    """The polynomial of float32 coefficients, constant term first."""
    return np.polyval(np.float64(np.float32(table))[::-1], x)


def quotient(above: Sequence[float], below: Sequence[float], x: Any) -> Any:
    return x * of(above, x * x) / of(below, x * x)


CASES: dict[str, tuple[Any, Any, tuple[float, float], float]] = {
    "2^x": (lambda x: of(COEFFICIENTS, x), np.exp2, (0, 1), 1.1e-7),
    "exp": (lambda x: 1 + x + x * x * of(chain.EXP, x), np.exp, (-HALF, HALF), 4e-9),
    "log1p": (lambda x: x - x * x / 2 + x**3 * of(chain.LOG, x), np.log1p, (-0.25, 0.5), 1e-8),
    "erf": (
        lambda x: quotient(chain.ERF_NUMERATOR, chain.ERF_DENOMINATOR, x),
        erf,
        (0, chain.ERF_LIMIT),
        6e-8,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_relative_errors_are_what_is_said_of_them(name: str) -> None:
    found, exact, (low, high), bound = CASES[name]
    x = np.linspace(low, high, 1 << 20)
    x = x[x != 0]
    assert 0.5 * bound < np.abs(found(x) / exact(x) - 1).max() < bound


def test_pieces_of_erf_err_by_what_is_said() -> None:
    """In float32 arithmetic but for fused products, from the smallest numbers to the limit."""
    pieces = chain.erf_pieces(16)
    x = np.concatenate([np.logspace(-30, -1, 1 << 16), np.linspace(0.1, 4.1, 1 << 20)])
    place = np.minimum(np.float32(x) * np.float32(1 / chain.ERF_STEP), np.float32(15.49))
    whole = np.round(place)
    found = np.zeros_like(place)
    for row in pieces[::-1]:
        product = found.astype(np.float64) * (place - whole)
        found = np.float32(product + row[whole.astype(int)])
    exact = erf(np.float64(np.float32(x)))
    assert 0.5e-7 < np.abs(found - exact).max() < 1e-7
    assert np.abs(found / exact - 1).max() < 3.5e-7
    assert found.max() == 1


@pytest.mark.parametrize(
    ("above", "below", "end", "bound"),
    [
        (activation.NUMERATOR, activation.DENOMINATOR, activation.LIMIT, 1.5e-7),
        (
            activation.COARSE_NUMERATOR,
            activation.COARSE_DENOMINATOR,
            activation.COARSE_LIMIT,
            5.4e-5,
        ),
    ],
)
def test_tanh_errs_evenly_and_by_what_is_said(
    above: Sequence[float], below: Sequence[float], end: float, bound: float
) -> None:
    """The best rational errs most once more often than it has free coefficients, in turn."""
    x = np.linspace(0, end, 1 << 20)
    error = quotient(above, below, x) - np.tanh(x)
    assert 0.5 * bound < np.abs(error).max() < bound
    runs = np.split(error, np.flatnonzero(np.diff(np.sign(error))) + 1)
    heights = [np.abs(run).max() for run in runs]
    assert sum(height > 0.5 * bound for height in heights) >= len(above) + len(below) - 2
    assert above[0] == below[0] == 1, "tanh of a denormal is the denormal"


def test_powers_of_two_grow_with_their_exponents() -> None:
    coefficients = np.array(COEFFICIENTS, np.float32)
    assert np.all(coefficients > 0), "Horner's scheme is monotone only for positive coefficients"
    for end in (np.float32(1.0) - np.float32(2.0**-24), np.float32(1.0)):
        assert np.polyval(coefficients[::-1], end) <= 2.0, "2^t steps down where floor(t) steps up"
