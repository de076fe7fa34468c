"""The README's picture: speed-up over a dense layer, from the newest recorded run.

`python -m sparsejit.perf.studies.speed_chart docs/speed.png` draws it again.
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from sparsejit.files import atomic_path
from sparsejit.perf.history import RESULTS

# Problems of the table in docs/notes/figures.md, with their labels.
PROBLEMS = {
    "A": "256 x 256, 90 % zero",
    "B": "256 x 256, 80 % zero, 1x8 blocks",
    "C90": "1024 x 1024, 90 % zero",
    "C95": "1024 x 1024, 95 % zero",
    "G95": "3072 x 1024, 95 % zero",
    "E": "4096 x 4096, 90 % zero",
}
DENSE, SPARSE_PEER = "OpenBLAS sgemv", "MKL CSR"
_COLOURS = {"MKL CSR": "#9aa5b1", "sparsejit float32": "#2b6cb0", "sparsejit int8": "#63b3ed"}


def speed_ups(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Speed-up over the dense product of the same run, by contestant and problem.

    Contestants are our kernels by dtype, and MKL's sparse product.
    """
    found: dict[str, dict[str, float]] = {name: {} for name in _COLOURS}
    for row in rows:
        if not row["auto"] or row["isa"] != "avx512":
            continue
        peers = {peer["name"]: peer["ns_min"] for peer in row["peers"]}
        series = f"sparsejit {row['dtype']}"
        if series in found and DENSE in peers:
            found[series][row["problem"]] = peers[DENSE] / row["ns_min"]
            found["MKL CSR"][row["problem"]] = peers[DENSE] / peers[SPARSE_PEER]
    return found


def newest_run(path: Path) -> list[dict[str, Any]]:
    """The rows of the last recorded commit, of the problems that are drawn."""
    recorded = (json.loads(line) for line in path.read_text().splitlines())
    rows = [row for row in recorded if row["problem"] in PROBLEMS]
    return [row for row in rows if row["commit"] == rows[-1]["commit"]]


def draw(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a PNG of horizontal bars, a group a problem."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    series = speed_ups(rows)
    height = 0.26
    for number, (name, values) in enumerate(series.items()):
        places = [index + (number - 1) * height for index in range(len(PROBLEMS))]
        widths = [values[problem] for problem in PROBLEMS]
        bars = axes.barh(places, widths, height, label=name, color=_COLOURS[name])
        labels = [f"{width:.{1 if width < 2 else 0}f}x" for width in widths]
        axes.bar_label(bars, labels, padding=3, fontsize=8)
    axes.set_yticks(range(len(PROBLEMS)), list(PROBLEMS.values()))
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(0.6, 150)
    axes.set_xticks([1, 3, 10, 30, 100], ["1x", "3x", "10x", "30x", "100x"])
    axes.set_xlabel("times as fast as OpenBLAS, dense; batch 1, one core, native calls (log scale)")
    axes.set_title(f"{rows[0]['machine']}, commit {rows[0]['commit'][:12]}", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), newest_run(RESULTS / "kernels.jsonl"))
