"""A recording's spectrogram as a bare picture, for pages that write axes and legend around it."""

import io

import matplotlib
import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.signal import ShortTimeFFT
from scipy.signal.windows import hann

from sparsejit.whole_numbers import ceil_div

TOP_HZ = 8000
RANGE_DB = 80
_COLOUR_MAP = "magma"
_COLOURS = 64  # more cannot be told apart, and would make the file larger

FloatArray = npt.NDArray[np.float32]


def power_db(samples: FloatArray, sample_rate: int) -> FloatArray:
    """Power in decibels, (bins from 0 to TOP_HZ, frames of 10 ms), of mono samples.

    Windows of 36 ms: the harmonics of a voice stand apart, and so do its syllables.
    """
    window = hann(round(0.036 * sample_rate), sym=False)
    bins = 2 ** int(np.ceil(np.log2(len(window))))
    transform = ShortTimeFFT(window, sample_rate // 100, sample_rate, mfft=bins)
    frames = ceil_div(len(samples), transform.hop)
    power = transform.spectrogram(samples.astype(np.float64), p0=0, p1=frames)
    top = np.searchsorted(transform.f, TOP_HZ, side="right")
    return (10 * np.log10(power[:top] + 1e-12)).astype(np.float32)


def spectrogram_png(db: FloatArray, loudest: float) -> bytes:
    """PNG of `power_db`, a pixel a value; colours span RANGE_DB decibels below `loudest`."""
    share = np.clip(1 + (db[::-1] - loudest) / RANGE_DB, 0, 1)
    image = Image.fromarray(np.rint(share * (_COLOURS - 1)).astype(np.uint8), mode="P")
    image.putpalette(_palette().tobytes())
    stream = io.BytesIO()
    image.save(stream, "PNG", optimize=True)
    return stream.getvalue()


def scale_colours(count: int = 8) -> list[str]:
    """Colours of the scale as CSS writes them, evenly spaced from the quietest to the loudest."""
    chosen = _palette()[np.linspace(0, _COLOURS - 1, count).round().astype(int)]
    return [f"#{red:02x}{green:02x}{blue:02x}" for red, green, blue in chosen.tolist()]


def _palette() -> npt.NDArray[np.uint8]:
    colours = matplotlib.colormaps[_COLOUR_MAP](np.linspace(0, 1, _COLOURS))
    return np.rint(255 * colours[:, :3]).astype(np.uint8)
