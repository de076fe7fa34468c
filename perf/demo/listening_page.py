"""The page of `sparsejit demo`: sounds with their spectrograms, and times by part.

The page is one self-contained file, with sounds and pictures as base64. Sounds are FLAC, because
every browser plays it, it is lossless, and it takes two thirds of the bytes of 16-bit WAV.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from sparsejit import __version__
from sparsejit.api.report_page import page_style
from sparsejit.perf.demo.layer_columns import LAYER_COLUMNS
from sparsejit.perf.demo.spectrogram_image import (
    RANGE_DB,
    TOP_HZ,
    power_db,
    scale_colours,
    spectrogram_png,
)
from sparsejit.perf.kernels import Row

_TEMPLATE = Path(__file__).with_name("listening_page.html")
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
class SampleTime:
    """Microseconds for one sample of audio, of a sampler or of a part of one."""

    name: str
    us: float


@dataclass(frozen=True)
class ListeningPage:
    """The content of the page.

    text, source: the spoken words, and the origin of the recording. machine: the processor of all
    measurements. takes: the sounds, the recording first. samplers: times of whole samplers, ours
    first, which the page compares with the duration of a sample at `sample_rate`; `timed` says how
    they were measured. layers: our sampler's kernels, measured alone. density: share of its weights
    that are not zero.
    """

    text: str
    source: str
    machine: str
    takes: Sequence[Take]
    layers: Sequence[Row]
    samplers: Sequence[SampleTime]
    timed: str
    sample_rate: int
    density: float

    @property
    def sample_us(self) -> float:
        """Duration of a sample, in microseconds."""
        return 1e6 / self.sample_rate

    def parts(self) -> list[SampleTime]:
        """Our sampler's time by part: each layer as measured alone, and the rest."""
        parts = [SampleTime(row.problem, row.ns_min / 1e3) for row in self.layers]
        rest = self.samplers[0].us - sum(part.us for part in parts)
        return [*parts, SampleTime("the rest", rest)] if rest > 0 else parts

    def html(self) -> str:
        """The page; all text in it is escaped."""
        environment = Environment(
            autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        environment.filters["figure"] = _figure
        template = environment.from_string(_TEMPLATE.read_text("utf-8"))
        return template.render(
            page=self,
            version=__version__,
            style=Markup(page_style()),
            takes=_shown(self.takes),
            scale=Markup(", ".join(scale_colours())),
            range_db=RANGE_DB,
            top_khz=TOP_HZ // 1000,
            columns=LAYER_COLUMNS,
            peers=list(dict.fromkeys(peer.name for row in self.layers for peer in row.peers)),
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
