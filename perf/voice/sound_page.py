"""Sounds to hear and to see, as one page: the writer that pages of recordings share.

    spectrogram_png   a recording's spectrogram as a bare picture, for pages that write axes and
                      legend around it
    Take              a sound of a page
    SoundPage         a page of sounds, and figures about them
    rendered          any page whose template extends the one of `SoundPage`

A page is one self-contained file, with sounds and pictures as base64. Sounds are FLAC, because
every browser plays it, it is lossless, and it takes two thirds of the bytes of 16-bit WAV.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import soundfile
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image
from scipy.signal import ShortTimeFFT
from scipy.signal.windows import hann

from sparsejit import __version__
from sparsejit.api.reports.report_page import page_style
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


_TICK_SECONDS = (0.5, 1, 2, 5, 10, 20, 50, 100)
_MOST_TICKS = 8


@dataclass(frozen=True)
class Take:
    """One sound: mono float32 `samples` in [-1, 1], and a sentence that describes it."""

    name: str
    note: str
    samples: npt.NDArray[np.float32]
    sample_rate: int

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate


@dataclass(frozen=True)
class SoundPage:
    """The content of a page.

    heading, lead: its title and first sentences. figures: numbers as they are shown, each with the
    words under it, measured on `machine`. source: the origin of the sounds. takes: the sounds, the
    one first by which the colours of all are scaled. maker: the command that writes the page.
    """

    heading: str
    lead: str
    figures: Sequence[tuple[str, str]]
    machine: str
    source: str
    takes: Sequence[Take]
    maker: str

    def html(self) -> str:
        """The page; all text in it is escaped."""
        return rendered("sound_page.html", self, self.takes)


def rendered(template: str, page: Any, takes: Sequence[Take], **others: Any) -> str:
    """A page by its template in this folder, which gets `page` and `others`; text is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = _figure
    return environment.get_template(template).render(
        page=page,
        version=__version__,
        style=Markup(page_style()),
        takes=_shown(takes),
        scale=Markup(", ".join(scale_colours())),
        range_db=RANGE_DB,
        top_khz=TOP_HZ // 1000,
        **others,
    )


def _figure(value: float) -> str:
    """The value with three digits, or with all digits before the point."""
    decimals = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{decimals}f}"


def _shown(takes: Sequence[Take]) -> list[dict[str, Any]]:
    """Each take with its sound and its spectrogram, all on the colour scale of the first."""
    spectra = [power_db(take.samples, take.sample_rate) for take in takes]
    loudest = float(spectra[0].max())
    return [
        {
            "name": take.name,
            "note": take.note,
            "seconds": take.seconds,
            "sound": _data_url("audio/flac", _flac(take)),
            "picture": _data_url("image/png", spectrogram_png(db, loudest)),
            "width": db.shape[1],
            "height": db.shape[0],
            "ticks": _ticks(take.seconds),
        }
        for take, db in zip(takes, spectra, strict=True)
    ]


def _flac(take: Take) -> bytes:
    stream = io.BytesIO()
    samples = np.clip(take.samples, -1, 1)
    soundfile.write(stream, samples, take.sample_rate, format="FLAC", subtype="PCM_16")
    return stream.getvalue()


def _data_url(kind: str, content: bytes) -> Markup:
    return Markup(f"data:{kind};base64,{base64.b64encode(content).decode()}")


def _ticks(seconds: float) -> list[float]:
    """Round times from 0 to the end, few enough to be labelled."""
    steps = (step for step in _TICK_SECONDS if seconds / step < _MOST_TICKS)
    step = next(steps, seconds)
    return [float(tick) for tick in np.arange(0, seconds, step)]
