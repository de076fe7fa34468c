"""The page of `sparsejit demo`: sounds with their spectrograms, and times by part.

    spectrogram_png   a recording's spectrogram as a bare picture, for pages that write axes and
                      legend around it
    LAYER_COLUMNS     columns of the table of a network's layers, on a terminal and on a page
    ListeningPage     the page
    draw_mels         the picture of a synthesis: the mel that was asked for above the mel that was
                      spoken

The page is one self-contained file, with sounds and pictures as base64. Sounds are FLAC, because
every browser plays it, it is lossless, and it takes two thirds of the bytes of 16-bit WAV.
"""

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import soundfile
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image
from scipy.signal import ShortTimeFFT
from scipy.signal.windows import hann

from sparsejit import __version__
from sparsejit.api.reports.report_page import page_style
from sparsejit.api.reports.shown import share_of_limit_text
from sparsejit.files import atomic_path
from sparsejit.perf.kernels import Row
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


_DENSE_BLAS = ("OpenBLAS sgemv", "MKL sgemv", "numpy (OpenBLAS)", "torch.mv")

# Heading, and a function that formats the cell of a measured kernel.
LAYER_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("layer", lambda row: row.problem),
    ("shape", lambda row: f"{row.M} x {row.N}"),
    ("nonzeros", lambda row: f"{row.nnz:,} ({row.nnz / (row.M * row.N):.0%})"),
    ("kernel", lambda row: row.strategy),
    ("code KiB", lambda row: f"{row.code_bytes / 1024:.1f}"),
    ("ns", lambda row: f"{row.ns_min:,.0f}"),
    ("effective GFLOPS", lambda row: f"{row.effective_gflops:.0f}"),
    ("real GFLOPS", lambda row: f"{row.real_gflops:.1f}"),
    ("of limit", lambda row: f"{share_of_limit_text(row.share_of_limit)} {row.limit}"),
    ("over F.linear", lambda row: f"{row.speed_up('torch F.linear'):.1f}x"),
    ("over dense BLAS", lambda row: f"{_over_dense_blas(row):.1f}x"),
)


def _over_dense_blas(row: Row) -> float:
    """Speed-up over the fastest dense product among the peers."""
    return min(row.speed_up(peer.name) for peer in row.peers if peer.name in _DENSE_BLAS)


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


def draw_mels(
    path: Path,
    asked: npt.NDArray[np.float32],
    spoken: npt.NDArray[np.float32],
    frame_seconds: float,
    title: str,
) -> None:
    """Write a PNG of two log10 mel spectrograms, each (80, frames), on one colour scale."""
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    figure.suptitle(title, fontsize=10)
    low, high = np.percentile(asked, [1, 99.8])
    pairs = (("asked for: mel of the recording", asked), ("spoken: mel of the result", spoken))
    for position, (name, mel) in enumerate(pairs):
        axes = figure.add_subplot(2, 1, position + 1)
        image = axes.imshow(
            mel,
            origin="lower",
            aspect="auto",
            vmin=low,
            vmax=high,
            cmap="magma",
            extent=(0, mel.shape[1] * frame_seconds, 0, mel.shape[0]),
        )
        axes.set_title(name, fontsize=9, loc="left")
        axes.set_ylabel("mel band")
        figure.colorbar(image, ax=axes, label="log10 power")
    axes.set_xlabel("seconds")
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
