"""Complex values inside models: computed as pairs of real ones, or refused by dtype."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
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


def several(_: object, z: torch.Tensor, x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"sum": (z * x + 1j).conj(), "size": z.abs(), "spectrum": torch.fft.fft(z)}


def complex_pair(rows: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    z = torch.randn(rows, 8, dtype=torch.complex64, generator=generator)
    return z, torch.randn(rows, 8, generator=generator)


def test_calls_take_and_give_complex_tensors(tmp_path: Path) -> None:
    model, (z, x) = Written(several).eval(), complex_pair()
    fast = sparsejit.compile(model, (z, x))
    assert fast.batch_is_free
    fast.save(tmp_path / "model.sjit")
    strided = torch.view_as_complex(torch.randn(8, 3, 2)).T
    calls = ((z, x), complex_pair(5), (z.conj(), x), (strided, x), (z, z.conj().imag))
    for compiled in (fast, sparsejit.load(tmp_path / "model.sjit")):
        for given in calls:
            torch.testing.assert_close(compiled(*given), model(*given))
    arrays = fast(z.numpy(), x.numpy())
    assert {key: each.dtype.name for key, each in arrays.items()} == {
        "sum": "complex64", "size": "float32", "spectrum": "complex64",
    }  # fmt: skip


def test_other_dtypes_and_shapes_in_the_place_of_complex_ones_are_refused() -> None:
    z, x = complex_pair()
    fast = sparsejit.compile(Written(several).eval(), (z, x))
    for other in (x, x.long()):
        with pytest.raises(InvalidInput, match=r"float32|int64.*give complex64"):
            fast(other, x)
    with pytest.raises(InvalidInput, match="has shape"):
        fast(z[:, :4], x)


def test_bound_arrays_are_pairs() -> None:
    z, _ = complex_pair()
    fast = sparsejit.compile(Written(lambda _, z: z.conj()).eval(), (z,), free_batch=False)
    given, found = torch.view_as_real(z).numpy(), np.zeros((3, 8, 2), np.float32)
    fast.bind([given], [found])()
    np.testing.assert_array_equal(found, torch.view_as_real(z.conj().resolve_conj()))
    with pytest.raises(InvalidInput, match=r"complex64.*bind a numpy array of float32"):
        fast.bind([z.numpy()], [found])


def test_complex128_comes_back_as_such() -> None:
    z, x = complex_pair()
    model = Written(lambda _, z, x: (z * x, z.real)).eval()
    product, real = sparsejit.compile(model, (z.to(torch.complex128), x))(z.to(torch.complex128), x)
    assert (product.dtype, real.dtype) == (torch.complex128, torch.float64)
    torch.testing.assert_close(product, (z * x).to(torch.complex128), rtol=1e-6, atol=1e-6)


def test_a_complex_number_and_named_sizes() -> None:
    model = Written(lambda _, z, x: z * x.sum()).eval()
    number, x = torch.tensor(1 + 2j), torch.randn(3, 4)
    torch.testing.assert_close(sparsejit.compile(model, (number, x))(number, x), model(number, x))
    z, _ = complex_pair()

    class Spectrum(torch.nn.Module):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return torch.fft.fft(z).real

    fast = sparsejit.compile(Spectrum().eval(), (z,), dynamic_shapes={"z": {1: "time"}})
    for length in (8, 5, 70):
        given = torch.randn(3, length, dtype=torch.complex64)
        torch.testing.assert_close(fast(given), torch.fft.fft(given).real, rtol=1e-5, atol=1e-5)


def test_complex_numbers_of_float16_are_no_inputs() -> None:
    with pytest.raises(InvalidInput, match="complex32"):
        sparsejit.compile(
            Written(lambda _, z: z.real).eval(), (torch.zeros(3, 2, dtype=torch.complex32),)
        )


def test_dynamo_compiles_operators_of_complex_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsejit.frontends.dynamo import part

    made = []
    add = part.DynamoPart._made
    monkeypatch.setattr(
        part.DynamoPart, "_made", lambda *args: made.append(args) or add(*args)
    )
    z, x = complex_pair()
    model = Written(lambda _, z, x: {"y": torch.polar(x.abs(), x) * z.exp() + x, "w": z.conj()})
    torch._dynamo.reset()
    with torch.no_grad():
        found = torch.compile(model.eval(), backend="sparsejit")(z.conj(), x)
        torch.testing.assert_close(found, model(z.conj(), x), rtol=1e-5, atol=1e-5)
    assert made
