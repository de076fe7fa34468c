"""Floating-point formats that numpy lacks, read from their bytes."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def _bfloat16(data: bytes) -> Floats:
    """The upper halves of float32 values."""
    words = np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)
    return words.view(np.float32)


def _float8_e5m2(data: bytes) -> Floats:
    """The upper halves of float16 values."""
    words = np.frombuffer(data, np.uint8).astype(np.uint16) << np.uint16(8)
    return words.view(np.float16).astype(np.float32)


def _float8_e4m3fn(data: bytes) -> Floats:
    """Four bits of exponent, three of fraction, no infinity; NaN where all seven bits are set."""
    codes = np.arange(256)
    exponent, fraction = codes >> 3 & 15, codes & 7
    magnitudes = np.where(
        exponent == 0, np.ldexp(fraction, -9), np.ldexp(8 + fraction, exponent - 10)
    )
    values = np.where(codes < 128, magnitudes, -magnitudes).astype(np.float32)
    values[[0x7F, 0xFF]] = np.nan
    result: Floats = values[np.frombuffer(data, np.uint8)]
    return result


# By the names of the safetensors format.
SHORT_FLOATS: dict[str, Callable[[bytes], Floats]] = {
    "BF16": _bfloat16,
    "F8_E4M3": _float8_e4m3fn,
    "F8_E5M2": _float8_e5m2,
}
