"""The page of `sparsejit demo`: sounds with their spectrograms, and times by part.

    LAYER_COLUMNS     columns of the table of a network's layers, on a terminal and on a page
    ListeningPage     the page
    draw_mels         the picture of a synthesis: the mel that was asked for above the mel that was
                      spoken
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from sparsejit.api.reports.shown import share_of_limit_text
from sparsejit.files import atomic_path
from sparsejit.perf.kernels import Row
from sparsejit.perf.voice.sound_page import Take, rendered

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
        peers = list(dict.fromkeys(peer.name for row in self.layers for peer in row.peers))
        return rendered(
            "listening_page.html", self, self.takes, columns=LAYER_COLUMNS, peers=peers
        )


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
