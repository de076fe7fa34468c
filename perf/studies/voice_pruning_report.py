"""The voice pruning study's rows: kernel times added to them, and tables made of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from sparsejit.perf.history import circumstances, read_rows, replace_rows
from sparsejit.perf.kernels import kernel_time

Row = dict[str, Any]
DENSE = ("unstructured", 0.0, True)
HEADER = (
    "amount",
    "pattern",
    "nats, per gate",
    "change",
    "kernel, ns",
    "nats, across gates",
    "change",
    "kernel, ns",
    "r, z, n kept",
)


def add_kernel_times(results: Path, matrices: Path) -> None:
    """Compile and time each row's matrix that is not timed yet, and write it into its row.

    With the commit of the compiler, which is not that of the training.
    Raises CompileError where a kernel is wrong.
    """
    rows, commit = read_rows(results), circumstances()["commit"]
    for row in rows:
        if "kernel_ns" not in row:
            row["kernel_commit"] = commit
            row["kernel"], row["kernel_ns"] = kernel_time(np.load(matrices / row["matrix"]))
            replace_rows(results, rows)


def markdown(rows: Iterable[Row]) -> str:
    """The table of every amount and pattern, and that of the repeats at 90 %."""
    by_run: dict[tuple[int, int], dict[tuple[str, float, bool], Row]] = {}
    for row in rows:
        arms = by_run.setdefault((row["samples"], row["order"]), {})
        arms[row["pattern"], row["amount"], row["per_gate"]] = row
    first = by_run[min(by_run)]
    patterns = list(dict.fromkeys(pattern for pattern, *_ in first))
    lines = [*_head(HEADER), _line("0%", "dense", *_cells(first[DENSE], first[DENSE]))]
    for amount in sorted({amount for _, amount, _ in first} - {0.0}):
        for pattern in patterns:
            pair = [first.get((pattern, amount, per_gate)) for per_gate in (True, False)]
            cells = [cell for row in pair for cell in _cells(row, first[DENSE])]
            lines.append(_line(f"{amount:.0%}", pattern, *cells, _kept(pair[1])))
    lines += ["", *_head(("extra samples", "order", "dense", *patterns))]
    for (samples, order), arms in sorted(by_run.items()):
        dense = arms[DENSE]
        changes = [_cells(arms.get((pattern, 0.9, True)), dense)[1] for pattern in patterns]
        lines.append(_line(f"{samples / 1e6:g} M", str(order), f"{dense['nats']:.3f}", *changes))
    return "\n".join(lines)


def _cells(row: Row | None, dense: Row) -> list[str]:
    if row is None:
        return ["", "", ""]
    change = "" if row is dense else f"{row['nats'] - dense['nats']:+.3f}"
    nanoseconds = f"{row['kernel_ns']:.0f}" if "kernel_ns" in row else ""
    return [f"{row['nats']:.3f}", change, nanoseconds]


def _kept(row: Row | None) -> str:
    return "" if row is None else ", ".join(f"{density:.1%}" for density in row["gate_density"])


def _head(names: tuple[str, ...]) -> list[str]:
    return [_line(*names), "|" + "---|" * len(names)]


def _line(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
