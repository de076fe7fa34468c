"""PP-OCRv4's text recogniser, shrunk to several speeds and scored on rendered lines.

    python -m sparsejit.perf.studies.shrink_lines /path/to/onnx        (some ten minutes)

The folder has ppocr_v4_rec.onnx and render_lines.py. Prints a table: times of one core, dense,
shrunk and ONNX Runtime's in turns, and the share of 1,000 lines that are read without an error.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from rich import print as print_table

import sparsejit
from sparsejit.api.reports.shown import table_of
from sparsejit.frontends.model_source import named_function
from sparsejit.machine.target import Target
from sparsejit.perf.studies.shrink_models import least_ms, onnx_runtime, share_of_zeros

_SAMPLES, _LINES, _SAMPLES_SEED, _LINES_SEED = 288, 1000, 7, 1


def main(
    folder: Annotated[Path, typer.Argument(exists=True, file_okay=False)],
    speeds: Annotated[str, typer.Option(help="Numbers with commas between.")] = "1.6,2.0,2.5",
    dtype: Annotated[str, typer.Option(help="float32 or auto.")] = "float32",
) -> None:
    """Shrink, score and time."""
    render, characters_of, score = (
        named_function(f"{folder / 'render_lines.py'}:{name}", "function")
        for name in ("lines", "characters", "score")
    )
    file = folder / "ppocr_v4_rec.onnx"
    samples, _ = render(_SAMPLES_SEED, _SAMPLES)
    lines, texts = render(_LINES_SEED, _LINES)
    characters = characters_of(file)
    dense = sparsejit.compile(file, (lines[:1],))
    others = onnx_runtime(str(file))

    def row(model: Callable[[Any], Any], zeros: str) -> list[str]:
        outputs = np.concatenate([model(lines[n : n + 1]) for n in range(_LINES)])
        right, _ = score(outputs, texts, characters)
        theirs, own, ours = least_ms([others, dense, model], lines[:, None, None])
        ratios = f"{own / ours:.2f}", f"{theirs / ours:.2f}"
        return [zeros, f"{right:.1%}", f"{ours:.2f}", *ratios]

    title = f"{Target.detect().model}, one core"
    table = table_of(
        title, ("zeros",), ("lines read", "ms", "times dense", "times ONNX Runtime")
    )
    table.add_row(*row(dense, "none"))
    with TemporaryDirectory() as kept:
        options: dict[str, Any] = {"dtype": dtype, "resume": Path(kept, "tables.sjit")}
        for speed in map(float, speeds.split(",")):
            made = sparsejit.shrink(file, list(samples[:, None]), speed=speed, **options)
            table.add_row(*row(made.model, f"{share_of_zeros(made):.0%}"))
    print_table(table)


if __name__ == "__main__":
    typer.run(main)
