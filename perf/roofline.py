"""Roofline plot of kernels (Williams, Waterman and Patterson, CACM 2009)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from sparsejit.files import atomic_path
from sparsejit.perf.kernels import Row
from sparsejit.perf.machine import MachineLimits

_MARKERS = {"float32": "o", "bfloat16": "s", "float16": "D", "int8": "^"}


def draw_roofline(path: Path, rows: Sequence[Row], limits: MachineLimits) -> None:
    """Write a PNG: real GFLOPS over flops per byte of literals and code, with one roof per cache.

    A kernel between two slopes is fed by the cache of the upper slope. int8 may lie above the roof,
    which is the float32 rate.
    """
    figure = Figure(figsize=(10, 6.5), layout="constrained")
    axes = figure.add_subplot()
    intensity = np.geomspace(0.02, 10, 100)
    slopes = {
        "L1": limits.l1_bytes_per_ns,
        "L2": limits.l2_bytes_per_ns,
        "L3": limits.l3_bytes_per_ns,
    }
    for level, rate in slopes.items():
        roof = np.minimum(rate * intensity, limits.fma_gflops)
        axes.plot(intensity, roof, color="grey", linewidth=1)
        place = (intensity[20], roof[20])
        axes.annotate(f"{level} {rate:.0f} B/ns", place, fontsize=8, rotation=28)
    axes.axhline(limits.fma_gflops, color="black", linewidth=1)
    roof_name = f"float32 FMA rate {limits.fma_gflops:.0f} GFLOPS"
    axes.annotate(roof_name, (0.025, limits.fma_gflops * 1.04))
    problems = list(dict.fromkeys(row.problem for row in rows))
    for row in rows:
        flops = row.real_gflops * row.ns_min
        point = flops / (row.code_bytes + row.pool_bytes - row.padding_bytes), row.real_gflops
        colour = f"C{problems.index(row.problem) % 10}"
        axes.plot(*point, _MARKERS[row.dtype], color=colour)
        axes.annotate(row.problem, point, fontsize=8, xytext=(5, 3), textcoords="offset points")
    for dtype, marker in _MARKERS.items():
        axes.plot([], [], marker, color="black", label=dtype)
    axes.legend(loc="lower right")
    axes.set(xscale="log", yscale="log", xlabel="flops a byte of code and literals")
    axes.set(ylabel="real GFLOPS (2 nnz / time)", title=f"{limits.isa}, one core", ylim=(5, None))
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
