"""Functions that are formulas, over all of float32, against torch in float64."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from runnable import ISAS
from test_float_arithmetic import Applied

import sparsejit
from sparsejit.ir.values import Array

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
    torch.erfc: 4,
    torch.erfinv: 4,
}
BINARY = {torch.atan2: 2.5, torch.hypot: 2.5, torch.pow: 6, torch.copysign: 0}


def numbers() -> Array:
    """The edges, numbers of all magnitudes, and more of those near 1."""
    random = np.random.default_rng(3)
    spread = 10.0 ** random.uniform(-44, 38.4, 6000) * random.choice([-1, 1], 6000)
    near = [random.uniform(-limit, limit, 6000) for limit in (1, 20)]
    return np.concatenate([EDGES, spread, *near]).astype(np.float32)


def pairs() -> tuple[Array, Array]:
    """Every edge with every edge, numbers in two orders, and powers within float32."""
    first, second = np.meshgrid(EDGES, EDGES)
    x = numbers()
    random = np.random.default_rng(4)
    bases = np.exp(random.uniform(-80, 80, 8000))
    bases[::2] = random.uniform(0.5, 2, 4000)
    powers = random.uniform(-88, 88, 8000) / np.log(bases)
    columns = [first.ravel(), x, bases], [second.ravel(), random.permutation(x), powers]
    one, other = (np.concatenate(column).astype(np.float32) for column in columns)
    return one, other


def assert_near(found: Array, exact: Array, places: float, *operands: Array) -> None:
    """Within that many last places of float32; infinities, NaN and signs of zeros are the same."""
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype(np.float32)
        error = np.abs(found.astype(np.float64) - exact) / np.spacing(np.abs(rounded))
    finite = np.isfinite(rounded) & np.isfinite(found)
    alike = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
    near = alike | (finite & (error <= places))
    zeros = (rounded == 0) & (found == 0)
    near &= ~zeros | (np.signbit(found) == np.signbit(rounded))
    # The largest number is as near where float64's result only rounds to infinity.
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


@pytest.mark.parametrize("isa", ISAS)
def test_gamma_functions(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To last places above 0 but for the root of digamma; below, parts of 1 near their roots."""
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", isa)
    x = numbers()
    positive, negative = np.abs(x), -np.abs(x[np.abs(x) < 30])
    compiled = sparsejit.compile(Applied(torch.lgamma).eval(), (torch.from_numpy(x),))
    above, below = (torch.from_numpy(each) for each in (positive, negative))
    assert_near(compiled(above).numpy(), torch.lgamma(above.double()).numpy(), 4, positive)
    wanted = torch.lgamma(below.double()).numpy()
    np.testing.assert_allclose(compiled(below), wanted, rtol=2e-6, atol=2e-5)
    compiled = sparsejit.compile(Applied(torch.digamma).eval(), (torch.from_numpy(x),))
    above = above[(above == 0) | (above > 1e-38)]  # below, its size is beyond float32
    wanted = torch.digamma(above.double()).numpy()
    np.testing.assert_allclose(compiled(above), wanted, rtol=1e-6, atol=1e-6)
    near = below[(below - below.round()).abs() > 0.01]
    wanted = torch.digamma(near.double()).numpy()
    np.testing.assert_allclose(compiled(near), wanted, rtol=1e-4, atol=1e-5)


WHOLE = [-(2**63), -(2**62) - 1, -7, -2, -1, 0, 1, 2, 3, 7, 10, 2**31 + 1, 2**62, 2**63 - 1]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtypes", [(torch.int64, torch.int64), (torch.int8, torch.uint8)])
def test_powers_of_whole_numbers_wrap(
    dtypes: tuple[torch.dtype, torch.dtype], isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARSEJIT_MAX_ISA", isa)
    x, y = torch.meshgrid(torch.tensor(WHOLE), torch.tensor([*WHOLE, 5, 63, 64]), indexing="ij")
    x, y = x.reshape(-1).to(dtypes[0]), y.reshape(-1).to(dtypes[1])
    compiled = sparsejit.compile(Applied(torch.pow).eval(), (x, y))
    assert torch.equal(compiled(x, y), torch.pow(x, y))
