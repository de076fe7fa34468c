"""Complex values inside models: computed as pairs of real ones, or refused by dtype."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch_models import Written

import sparsejit
from sparsejit.errors import InvalidInput, UnsupportedOperator

Model = Callable[..., torch.Tensor]


def of_two(function: Model) -> Written:
    return Written(lambda _, a, b: function(a, b)).eval()


PRODUCTS: dict[str, Model] = {
    "product": lambda a, b: torch.view_as_real(torch.complex(a, b) * torch.complex(b, a)),
    "magnitude": lambda a, b: torch.complex(a, b).abs(),
    "polar": lambda a, b: torch.view_as_real(torch.polar(a, b)),
    "spectrum": lambda a, b: torch.fft.irfft(torch.complex(a, a)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_complex_values_are_refused_by_dtype(name: str) -> None:
    inputs = torch.randn(4, 6), torch.randn(4, 6)
    with pytest.raises(UnsupportedOperator, match=r"aten.*complex64"):
        sparsejit.compile(of_two(PRODUCTS[name]), inputs)


def test_complex_weights_are_refused_by_dtype() -> None:
    factor = torch.tensor([1 + 2j, 3 - 1j])
    model = Written(lambda _, x: (x * factor).real).eval()
    with pytest.raises(UnsupportedOperator, match=r"aten.*complex64"):
        sparsejit.compile(model, (torch.randn(3, 2),))


def test_complex_inputs_are_refused_by_dtype() -> None:
    model = Written(lambda _, z: z.real).eval()
    with pytest.raises(InvalidInput, match="complex64"):
        sparsejit.compile(model, (torch.randn(3, 2, dtype=torch.complex64),))
