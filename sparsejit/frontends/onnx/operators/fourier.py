"""Fourier transforms, whose last axis holds real and imaginary parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.writing import fourier
from sparsejit.frontends.writing.arranging import at, reshaped
from sparsejit.frontends.writing.complex_values import Complex, from_last_axis, on_last_axis
from sparsejit.frontends.writing.fourier import Signal
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.values import Value, axis_of


def dft(write: Writer, call: Call) -> Value:
    """The transform over an axis, its inverse, or the one-sided transform of a real signal."""
    x = _signal(write, call.value(write, 0))
    rank = len(x.shape) + 1
    if call.opset >= 20:
        given = call.number(2, "axis") if call.has(2) else -2
    else:
        given = call.attribute("axis", 1)
    axis = axis_of(given, rank)
    if axis == rank - 1:
        raise Unmapped(f"its axis is {given}, which holds real and imaginary parts")
    inverse, half = call.flag("inverse"), call.flag("onesided")
    length = x.shape[axis]
    size = 2 * (length - 1) if inverse and half else length
    if call.has(1):
        size = call.number(1, "dft_length")
    if size < 1:
        raise Unmapped(f"has {size} points")
    if inverse and half:
        if not isinstance(x, Complex):
            raise Unmapped("is a one-sided inverse of real numbers")
        if length != size // 2 + 1:  # the package and ONNX Runtime differ there
            raise Unmapped(f"is a one-sided inverse of {size} points with {length} bins")
        made = fourier.real_signal(write, x, size, 1 / size, axis)
        return reshaped(write, made, (*made.shape, 1))
    plan = (fourier.one_sided if half else fourier.inverse if inverse else fourier.forward)(size)
    return on_last_axis(write, fourier.transformed(write, x, plan, axis))


def stft(write: Writer, call: Call) -> Value:
    """Spectra (batch, frames, bins, 2) of windows of a signal."""
    signal = call.value(write, 0)
    if len(signal.shape) == 2:  # as ONNX Runtime takes it too
        signal = reshaped(write, signal, (*signal.shape, 1))
    x = _signal(write, signal)
    hop = call.number(1, "frame_step")
    window = call.optional(write, 2)
    size = x.shape[-1] if window is None else window.shape[0]
    if call.has(3):
        size = call.number(3, "frame_length")
    if window is not None and window.shape != (size,):
        raise Unmapped(f"its window {list(window.shape)} is not of {size} elements")
    if hop < 1 or not 1 <= size <= x.shape[-1]:
        raise Unmapped(f"frames of {size} elements at steps of {hop} of {x.shape[-1]}")

    def framed(part: Value) -> Value:
        rows = fourier.frames(write, part, size, hop)
        return rows if window is None else write.pointwise("mul", rows, window)

    frames = Complex(*map(framed, (x.real, x.imag))) if isinstance(x, Complex) else framed(x)
    plan = fourier.one_sided if call.flag("onesided", True) else fourier.forward
    return on_last_axis(write, fourier.transformed(write, frames, plan(size)))


def _signal(write: Writer, x: Value) -> Signal:
    """A signal without its last axis: one element there is a real number, two a complex one."""
    if not x.shape or x.shape[-1] not in (1, 2):
        raise Unmapped(f"its last axis must have 1 or 2 elements, and its shape is {list(x.shape)}")
    value = write.floats(x)
    return from_last_axis(write, value) if x.shape[-1] == 2 else at(write, value, -1, 0)


OPERATORS: dict[str, Callable[[Writer, Call], Any]] = {"DFT": dft, "STFT": stft}
