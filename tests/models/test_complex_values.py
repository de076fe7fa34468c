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


KERNEL = torch.arange(24).reshape(2, 4, 3) * (0.1 - 0.2j)
EXAMPLES: dict[str, Model] = {
    "product": lambda a, b: torch.view_as_real(torch.complex(a, b) * torch.complex(b, a)),
    "magnitude": lambda a, b: torch.complex(a, b).abs(),
    "polar": lambda a, b: torch.view_as_real(torch.polar(a, b)),
    "spectrum": lambda a, b: torch.fft.irfft(torch.complex(a, a)),
    "einsum": lambda a, b: torch.einsum("ij,kj->ik", torch.complex(a, b), b + 0j).abs(),
    "turned": lambda a, b: torch.complex(a, b).H.flip(0).conj().roll(1, 1).real,
    "written into": lambda a, b: written(torch.complex(a, b)),
    "literal": lambda a, b: (a * torch.tensor([1 + 2j, 0.5j, 3, -1j, 2, 1]) / (2 - 1j)).imag,
    "negated view": lambda a, b: torch.complex(a, b).conj().imag + a,
    "embedding": lambda a, b: torch.outer(a[0], torch.polar(b[0], a[0])).sum(0).angle(),
    "convolution": lambda a, b: torch.nn.functional.conv1d(
        torch.complex(a, b)[None], KERNEL.to(a.dtype.to_complex())
    ).abs(),
    "reserved": lambda a, b: torch.empty(4, 6, dtype=torch.complex64).copy_(a * 2j + b).imag,
}


def written(z: torch.Tensor) -> torch.Tensor:
    out = z.clone()
    out[:, 1:3] = z[:, :2] * 1j
    out.real[:, 0] = 5.0
    return torch.view_as_real(out)


def two_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(4, 6, generator=generator), torch.randn(4, 6, generator=generator)


@pytest.mark.parametrize("name", EXAMPLES)
def test_complex_values_inside_models(name: str) -> None:
    inputs = two_inputs()
    model = of_two(EXAMPLES[name])
    found = sparsejit.compile(model, inputs, free_batch=False)(*inputs)
    torch.testing.assert_close(found, model(*(x.double() for x in inputs)).float())


UNKNOWN: dict[str, Model] = {
    "expm1": lambda a, b: torch.complex(a, b).expm1().real,
    "prod": lambda a, b: torch.complex(a, b).prod(0).abs(),
    "linalg_eig": lambda a, b: torch.linalg.eig(torch.complex(a, b)[:, :4])[0].abs(),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_other_operators_are_refused_by_dtype(name: str) -> None:
    with pytest.raises(UnsupportedOperator, match=rf"aten.{name}.*complex64"):
        sparsejit.compile(of_two(UNKNOWN[name]), two_inputs(), free_batch=False)


def test_complex_numbers_of_float16_are_refused() -> None:
    model = of_two(lambda a, b: torch.complex(a, b).to(torch.complex32).to(torch.complex64).abs())
    with pytest.raises(UnsupportedOperator, match=r"aten.*complex32"):
        sparsejit.compile(model, two_inputs(), free_batch=False)


def test_conjugated_and_negated_weights_are_read_as_they_are() -> None:
    class Weights(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            base = torch.tensor([1 + 2j, 3 - 1j])
            self.register_buffer("plain", base)
            self.register_buffer("conjugated", base.conj())
            self.register_buffer("negated", base.conj().imag)
            self.factor = torch.nn.Parameter(torch.tensor([2 + 1j, 1j]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            z = x * self.plain + self.conjugated * self.factor * x
            return z.imag * self.negated

    model = Weights().eval()
    x = torch.randn(3, 2)
    torch.testing.assert_close(sparsejit.compile(model, (x,))(x), model(x).detach())


def test_complex_inputs_and_outputs_are_refused_with_the_remedy() -> None:
    taking = Written(lambda _, z: z.real).eval()
    with pytest.raises(InvalidInput, match=r"args_0 has complex64.*view_as_real"):
        sparsejit.compile(taking, (torch.randn(3, 2, dtype=torch.complex64),))
    giving = Written(lambda _, x: x + 1j).eval()
    with pytest.raises(InvalidInput, match=r"has complex64.*view_as_real"):
        sparsejit.compile(giving, (torch.randn(3, 2),))
