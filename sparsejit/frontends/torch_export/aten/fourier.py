"""ATen's Fourier transforms; torch composes its other ones of the first three here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from sparsejit.frontends.writing import fourier
from sparsejit.frontends.writing.arranging import padded, reshaped, sliced, swapped
from sparsejit.frontends.writing.complex_values import Complex, as_complex
from sparsejit.frontends.writing.views import pad_any
from sparsejit.frontends.writing.writer import Operand, Unmapped, Writer
from sparsejit.ir.values import Array, Value

# torch's fft_norm_mode: the power of the number of points by which a result is divided.
_NORMS = {0: 0.0, 1: 0.5, 2: 1.0}


def _scale(mode: int, sizes: Sequence[int]) -> float:
    return float(prod(sizes) ** -_NORMS[mode])


def spectrum(
    write: Writer, x: Operand, dim: Sequence[int], normalization: int, forward: bool
) -> Complex:
    """The transform of a complex tensor over axes, or its inverse."""
    made = as_complex(write, x)
    scale = _scale(normalization, [made.shape[axis] for axis in dim])
    for axis in dim:
        size = made.shape[axis]
        plan = fourier.Transform(size, -1 if forward else 1, scale, size)
        made, scale = fourier.transformed(write, made, plan, axis), 1.0
    return made


def real_spectrum(
    write: Writer, x: Operand, dim: Sequence[int], normalization: int, onesided: bool
) -> Complex:
    """The transform of a real tensor over axes; if one-sided, half of the last one."""
    value = write.floats(x)
    *others, last = dim
    scale = _scale(normalization, [value.shape[axis] for axis in dim])
    plan = (fourier.one_sided if onesided else fourier.forward)(value.shape[last], scale)
    return spectrum(write, fourier.transformed(write, value, plan, last), others, 0, True)


def real_signal(
    write: Writer, x: Operand, dim: Sequence[int], normalization: int, last_dim_size: int
) -> Value:
    """The real tensor of a spectrum that is one-sided on the last of the axes."""
    *others, last = dim
    whole = as_complex(write, x)
    sizes = [whole.shape[axis] for axis in others]
    turned = spectrum(write, whole, others, 0, False)
    scale = _scale(normalization, [*sizes, last_dim_size])
    return fourier.real_signal(write, turned, last_dim_size, scale, last)


def shift(is_back: bool) -> Callable[..., Any]:
    """Mapping of fftshift, or ifftshift if `is_back`."""

    def mapping(write: Writer, x: Operand, dim: Sequence[int] | None = None) -> Any:
        shape = x.shape if isinstance(x, Complex) else write.shape(x)
        axes = range(len(shape)) if dim is None else [dim] if isinstance(dim, int) else dim
        return fourier.shifted(write, x, axes, is_back)

    return mapping


def stft(
    write: Writer,
    x: Operand,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Operand = None,
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:
    """Spectra (..., bins, frames) of windows of a signal (..., time)."""
    if align_to_window:
        raise Unmapped("has align_to_window")
    hop = n_fft // 4 if hop_length is None else hop_length
    pair = x if isinstance(x, Complex) else write.floats(x)
    if window is None and win_length not in (None, n_fft):
        window = np.ones(win_length)
    centred = None if window is None else _centred(write, window, n_fft)

    def framed(part: Value) -> Value:
        rows = fourier.frames(write, part, n_fft, hop)
        return rows if centred is None else write.pointwise("mul", rows, centred)

    signal = fourier.of_parts(framed, pair)
    is_half = not isinstance(x, Complex) if onesided is None else onesided
    plan = (fourier.one_sided if is_half else fourier.forward)(
        n_fft, n_fft**-0.5 if normalized else 1.0
    )
    made = fourier.transformed(write, signal, plan)
    turned = Complex(*(swapped(write, part, -1, -2) for part in (made.real, made.imag)))
    return turned if return_complex else fourier.complex_values.on_last_axis(write, turned)


def centred_stft(
    write: Writer,
    x: Operand,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Operand = None,
    center: bool = True,
    pad_mode: str = "reflect",
    *rest: Any,
    **named: Any,
) -> Any:
    """Spectra as `stft`; with `center` the signal is padded by half a window at both ends."""
    signal = x if isinstance(x, Complex) else write.floats(x)
    if center:
        half = n_fft // 2

        def surrounded(part: Value) -> Value:
            flat = reshaped(write, part, (1, *part.shape))
            whole = pad_any(write, flat, (half, half), pad_mode)
            return reshaped(write, whole, whole.shape[1:])

        signal = fourier.of_parts(surrounded, signal)
    return stft(write, signal, n_fft, hop_length, win_length, window, *rest, **named)


def _centred(write: Writer, window: Operand, size: int) -> Value:
    """A window padded with zeros on both sides."""
    if isinstance(window, Complex):
        raise Unmapped("has a complex window; multiply frames by it")
    value = write.floats(window)
    before = (size - value.shape[0]) // 2
    return padded(write, value, [(before, size - value.shape[0] - before)])


def istft(
    write: Writer,
    x: Operand,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Operand = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Value:
    """The signal (..., time) of spectra (..., bins, frames).

    Windows are added, and divided by the sum of their squares.
    """
    if return_complex:
        raise Unmapped("has return_complex; take real signals")
    hop = n_fft // 4 if hop_length is None else hop_length
    whole = as_complex(write, x)
    rows = Complex(*(swapped(write, part, -1, -2) for part in (whole.real, whole.imag)))
    scale = n_fft**-0.5 if normalized else 1 / n_fft
    signals = fourier.real_signal(write, rows, n_fft, scale)
    known = _known_window(write, window, win_length, n_fft)
    signals = write.pointwise("mul", signals, known.astype(np.float32))
    made = fourier.overlapped(write, signals, hop)
    start = n_fft // 2 if center else 0
    end = made.shape[-1] - start if length is None else min(start + length, made.shape[-1])
    made = sliced(write, made, -1, start, end)
    sums = _squares(known, hop, signals.shape[-2])[start:end]
    if sums.min(initial=np.inf) < 1e-11:
        raise Unmapped("its windows add up to zero somewhere; take a window that overlaps")
    made = write.pointwise("mul", made, (1 / sums).astype(np.float32))
    missing = 0 if length is None else length - made.shape[-1]
    return padded(write, made, [(0, 0)] * (len(made.shape) - 1) + [(0, missing)])


def _known_window(write: Writer, window: Operand, win_length: int | None, size: int) -> Array:
    """The known window in float64, padded with zeros on both sides to `size` elements."""
    known = np.ones(win_length or size) if window is None else write.known(window)
    if known is None:
        raise Unmapped("has a window that is not known; make it a buffer or a constant")
    before = (size - len(known)) // 2
    return np.pad(known.astype(np.float64), (before, size - len(known) - before))


def _squares(window: Array, hop: int, count: int) -> Array:
    """The sum of the squares of all windows at each place."""
    total = np.zeros((count - 1) * hop + len(window))
    for n in range(count):
        total[n * hop : n * hop + len(window)] += window**2
    return total


# Rows that take a real signal, with a complex or a real result.
OPERATORS: dict[str, Callable[..., Any]] = {
    "aten.stft.default": stft,
    "aten.stft.center": centred_stft,
}
COMPLEX_OPERATORS: dict[str, Callable[..., Any]] = {
    **OPERATORS,
    "aten.fft_fftshift.default": shift(is_back=False),
    "aten.fft_ifftshift.default": shift(is_back=True),
    "aten._fft_c2c.default": spectrum,
    "aten._fft_r2c.default": real_spectrum,
    "aten._fft_c2r.default": real_signal,
    "aten.istft.default": istft,
}
