"""Fourier transforms of any length, and models with complex values inside, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runnable import ISAS
from torch import nn
from torch.nn import functional
from torch_models import Written

import sparsejit
from sparsejit.frontends.torch_export import export

SIZES = (1, 2, 3, 7, 16, 31, 63, 64, 65, 100, 127, 128, 257, 400, 512, 1000)
NORMS = ("backward", "ortho", "forward")
Transform = Callable[..., torch.Tensor]


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def largest_error(model: nn.Module, *inputs: torch.Tensor, isa: str = "native") -> float:
    """The error of compiled code beside torch in float64, as a part of the largest output."""
    found = sparsejit.compile(model.eval(), inputs, target=isa, free_batch=False)(*inputs)
    wanted = model.double()(*(x.double() for x in inputs))
    model.float()
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))


def of_parts(transform: Transform) -> Written:
    """A transform of a + ib, as a real tensor."""
    return Written(lambda _, a, b: as_real(transform(torch.complex(a, b))))


def as_real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def every_transform(a: torch.Tensor, b: torch.Tensor, size: int) -> list[torch.Tensor]:
    z = torch.complex(a, b)[:, :size]
    half = torch.fft.fft(z, norm="ortho")[..., : size // 2 + 1]
    made = [half, torch.fft.ifft(z), torch.fft.rfft(z.real), torch.fft.irfft(half, n=size)]
    return [as_real(each).flatten(1) for each in made]


@pytest.mark.parametrize("first", range(4))
def test_transforms_of_any_length_are_as_exact_as_float32(first: int) -> None:
    sizes = SIZES[first::4]

    def forward(_: Any, a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        return [each for size in sizes for each in every_transform(a, b, size)]

    inputs = numbers(2, 1000), numbers(3, 1000)[:2]
    found = sparsejit.compile(Written(forward).eval(), inputs, free_batch=False)(*inputs)
    wanted = forward(None, *(x.double() for x in inputs))
    for number, (each, want) in enumerate(zip(found, wanted, strict=True)):
        error = (each - want).abs().max() / want.abs().max()
        assert error < 1e-6, (sizes[number // 4], number % 4)


@pytest.mark.parametrize("isa", ISAS)
def test_4096_points(isa: str) -> None:
    model = of_parts(torch.fft.fft)
    assert largest_error(model, numbers(2, 4096), numbers(3, 4096)[:2], isa=isa) < 1e-6


@settings(max_examples=20, deadline=None)
@given(
    shape=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    axis=st.integers(-1, 0),
    size=st.none() | st.integers(1, 80),
    norm=st.sampled_from(NORMS),
    name=st.sampled_from(["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]),
)
def test_one_axis(shape: list[int], axis: int, size: int | None, norm: str, name: str) -> None:
    a, b = numbers(*shape), numbers(*shape, 1)[..., 0]
    transform = getattr(torch.fft, name)
    is_real = name in ("rfft", "ihfft")
    if name in ("irfft", "hfft") and size is None and shape[axis] == 1:
        size = 1

    def forward(_: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        given_ = a if is_real else torch.complex(a, b)
        return as_real(transform(given_, n=size, dim=axis, norm=norm)) + b.sum() * 0

    graph = export(Written(forward).eval(), (a, b), free_batch=False).graph()
    (found,) = graph.evaluate([a.numpy(), b.numpy()])
    wanted = forward(None, a.double(), b.double()).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * abs(wanted).max())


SEVERAL: dict[str, Transform] = {
    "fft2": lambda z: torch.fft.fft2(z, norm="ortho"),
    "ifft2": lambda z: torch.fft.ifft2(z, s=(8, 5)),
    "fftn": lambda z: torch.fft.fftn(z, dim=(0, 2)),
    "ifftn": torch.fft.ifftn,
    "rfft2": lambda z: torch.fft.rfft2(z.real, s=(6, 9)),
    "irfft2": torch.fft.irfft2,
    "rfftn": lambda z: torch.fft.rfftn(z.imag, dim=(1, 2), norm="forward"),
    "irfftn": lambda z: torch.fft.irfftn(z, s=(5, 10), dim=(1, 2)),
    "hfft2": torch.fft.hfft2,
    "ihfft2": lambda z: torch.fft.ihfft2(z.real),
    "hfftn": lambda z: torch.fft.hfftn(z, dim=(1, 2)),
    "fftshift": lambda z: torch.fft.fftshift(z, dim=(1, 2)),
    "ifftshift of reals": lambda z: torch.fft.ifftshift(z.real),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_axes(name: str) -> None:
    model = of_parts(SEVERAL[name])
    assert largest_error(model, numbers(3, 6, 7), numbers(4, 6, 7)[:3]) < 1e-6


def test_the_batch_stays_free() -> None:
    model = of_parts(lambda z: torch.fft.irfft(torch.fft.fft(z)[:, :100], n=150).abs())
    fast = sparsejit.compile(model.eval(), (numbers(3, 130), numbers(3, 130)))
    a, b = numbers(5, 130), numbers(7, 130)[:5]
    np.testing.assert_allclose(fast(a, b), model(a, b), rtol=1e-5, atol=1e-5)


def test_angles_of_a_real_signal_have_the_sign_of_torchs() -> None:
    signal = numbers(40, 9)
    for size in (1, 9, 66):
        model = Written(lambda _, x, n=size: torch.fft.rfft(x, n=n).angle()[:, :: max(n // 2, 1)])
        fast = sparsejit.compile(model.eval(), (signal,), free_batch=False)
        assert (fast(signal) - model(signal)).abs().max() < 1e-5


def test_frames_and_reflections_are_few_copies() -> None:
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        around = functional.pad(x, (250, 250), mode="reflect")
        return around.unfold(1, 400, 100) * 2

    x = numbers(2, 1000)
    exported = export(Written(forward).eval(), (x,))
    assert exported.batch_is_free
    assert len(exported.graph().nodes) < 25
    np.testing.assert_array_equal(exported.graph().evaluate([x.numpy()])[0], forward(None, x))


class Vocos(nn.Module):
    """A head that gives magnitude and phase, and the signal of these."""

    def __init__(self, features: int, n_fft: int, hop: int) -> None:
        super().__init__()
        self.out = nn.Linear(features, n_fft + 2)
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size, phase = self.out(x).transpose(1, 2).chunk(2, dim=1)
        spectrum = torch.exp(size).clip(max=1e2) * (torch.cos(phase) + 1j * torch.sin(phase))
        return torch.istft(spectrum, self.n_fft, self.hop, self.n_fft, self.window, center=True)


class Spectrogram(nn.Module):
    def __init__(self, n_fft: int, hop: int, win: int, magnitude: bool) -> None:
        super().__init__()
        self.n_fft, self.hop, self.magnitude = n_fft, hop, magnitude
        self.register_buffer("window", torch.hann_window(win))
        self.register_buffer("mel", torch.rand(8, n_fft // 2 + 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        win = self.window.shape[0]
        spectrum = torch.stft(
            x, self.n_fft, self.hop, win, self.window, center=True, return_complex=True
        )
        power = spectrum.abs() if self.magnitude else torch.view_as_real(spectrum).pow(2).sum(-1)
        return torch.log(self.mel @ power + 1e-3)


def rotated(m: Any, x: torch.Tensor) -> torch.Tensor:
    """Rotary embedding as in Llama's first code: pairs of features as complex numbers."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    turned = pairs * m.freqs_cis.view(1, x.shape[1], 1, -1)
    return torch.view_as_real(turned).flatten(3).type_as(x)


def rotary() -> nn.Module:
    model = Written(rotated)
    angles = torch.outer(torch.arange(6), 1.0 / 100 ** (torch.arange(0, 8, 2) / 8))
    model.register_buffer("freqs_cis", torch.polar(torch.ones_like(angles), angles))
    return model


class FNet(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(features), nn.Linear(features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real
        return self.mlp(functional.gelu(self.norm(x + mixed)))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "vocos": (lambda: Vocos(8, 32, 8), (2, 7, 8)),
    "vocos, uneven hop": (lambda: Vocos(8, 80, 18), (2, 7, 8)),
    "whisper's spectrogram": (lambda: Spectrogram(400, 160, 400, False), (2, 1600)),
    "spectrogram": (lambda: Spectrogram(64, 16, 48, True), (2, 300)),
    "rotary embedding": (rotary, (2, 6, 3, 8)),
    "fnet": (lambda: FNet(72), (2, 20, 72)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_with_complex_values(name: str) -> None:
    torch.manual_seed(5)
    make, shape = MODELS[name]
    model, x = make().eval(), numbers(*shape)
    fast = sparsejit.compile(model, (x,))
    more = numbers(3, *shape[1:])
    for given_ in (x, more):  # the batch is free
        np.testing.assert_allclose(fast(given_), model(given_).detach(), rtol=2e-5, atol=2e-5)
