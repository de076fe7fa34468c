"""The picture of a synthesis: the mel that was asked for above the mel that was spoken."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from sparsejit.files import atomic_path


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
