"""Benchmark results as rich tables."""

from collections.abc import Sequence

from rich.table import Table

from sparsejit.api.reports.shown import share_of_limit_text, table_of
from sparsejit.perf.kernels import Comparison, PeerTime, Row
from sparsejit.perf.machine import MachineLimits
from sparsejit.perf.operators import OperatorTime
from sparsejit.perf.problems import MatVecProblem
from sparsejit.perf.timing import empty_native_call, empty_python_call

_COLUMNS = (
    "kernel or peer",
    "call",
    "min, ns",
    "median, ns",
    "effective\nGFLOPS",
    "real\nGFLOPS",
    "of\nlimit",
    "code + pool\nKiB",
    "compile\nms",
    "max error",
    "times\nfaster",
    "both from\nPython",
)


def comparison_table(comparison: Comparison) -> Table:
    """Kernels, then peers, each compared with the float32 kernel that strategy="auto" picks.

    "times faster" takes the kernel's native time, "both from Python" its time called from Python.
    """
    problem, rows = comparison.problem, comparison.rows
    pattern = problem.pattern.name
    title = (
        f"{problem.name}: {problem.out_features} x {problem.in_features}, "
        f"{problem.sparsity:.0%} zero, {pattern}{_batch(problem)}; {rows[0].isa}"
    )
    skipped = (f"{name} skipped: {why}" for name, why in comparison.skipped.items())
    table = table_of(title, _COLUMNS[:2], _COLUMNS[2:], skipped)
    for row in rows:
        table.add_row(*_kernel_cells(row), style="bold" if row.auto else None)
    # The peers compute in float32: they are compared with the kernel that does so too.
    same_type = [row for row in rows if row.dtype == "float32"] or rows
    reference = next((row for row in same_type if row.auto), same_type[0])
    table.add_row(f"{reference.strategy} via Python", "python", f"{reference.ns_python:,.0f}")
    table.add_section()
    for peer in sorted(reference.peers, key=lambda peer: peer.ns_min):
        table.add_row(*_peer_cells(peer, reference))
    return table


def _batch(problem: MatVecProblem) -> str:
    return "" if problem.batch == 1 else f", batch {problem.batch} {problem.layout.value}"


_OF_OPERATORS = (
    "kernel\nmedian, ns",
    "predicted, ns",
    "whole graph\nmin, ns",
    "median, ns",
    "code + pool\nKiB",
    "compile\nms",
    "max error",
)


def operators_table(times: Sequence[OperatorTime]) -> Table:
    """Kernels of operators other than products, each in its graph, and the sizes of graphs."""
    title = f"kernels of other operators, each in a small graph; {times[0].isa}"
    kernels: dict[str, dict[str, None]] = {}
    for one in times:
        sizes = ", ".join(f"{name} {size}" for name, size in one.sizes.items())
        kernels.setdefault(sizes, {})[one.strategy] = None
    notes = [f"{sizes}: {', '.join(names)}" for sizes, names in kernels.items()]
    table = table_of(title, ("operator", "kernel"), _OF_OPERATORS, notes)
    for one in times:
        table.add_row(
            one.problem,
            f"{one.strategy} {one.dtype}",
            *_times(one.ns_kernel, one.ns_predicted),
            *_times(one.ns_min, one.ns_median),
            *_cells_of_code(one),
            f"{one.max_abs_error:.1e}",
        )
    return table


def limits_table(limits: MachineLimits) -> Table:
    """Table of the limits behind "of limit", and of an empty call's time in either timing loop."""
    cells = {
        "L1 B/ns": f"{limits.l1_bytes_per_ns:.0f}",
        "L2 B/ns": f"{limits.l2_bytes_per_ns:.0f}",
        "L3 B/ns": f"{limits.l3_bytes_per_ns:.0f}",
        "memory B/ns": f"{limits.memory_bytes_per_ns:.0f}",
        "FMA GFLOPS": f"{limits.fma_gflops:.0f}",
        "empty native call, ns": f"{empty_native_call().min_ns:.1f}",
        "empty Python call, ns": f"{empty_python_call().min_ns:.1f}",
    }
    table = table_of(f"one core's measured limits, {limits.isa}", (), cells)
    table.add_row(*cells.values())
    return table


def _kernel_cells(row: Row) -> tuple[str, ...]:
    return (
        f"{row.strategy} {row.dtype}{' (auto)' if row.auto else ''}",
        "native",
        *_times(row.ns_min, row.ns_median),
        f"{row.effective_gflops:.0f}",
        f"{row.real_gflops:.1f}",
        f"{share_of_limit_text(row.share_of_limit)} {row.limit}",
        *_cells_of_code(row),
        f"{row.max_abs_error:.1e}",
    )


def _cells_of_code(row: Row | OperatorTime) -> tuple[str, str]:
    kib = f"{row.code_bytes / 1024:,.0f} + {row.pool_bytes / 1024:,.0f}"
    return kib, f"{row.compile_ms:.1f}"


def _peer_cells(peer: PeerTime, reference: Row) -> tuple[str, ...]:
    return (
        peer.name,
        peer.call,
        *_times(peer.ns_min, peer.ns_median),
        f"{2 * reference.M * reference.N * reference.batch / peer.ns_min:.0f}",
        f"{2 * reference.nnz * reference.batch / peer.ns_min:.1f}",
        *("", "", ""),
        f"{peer.max_abs_error:.1e}",
        f"{reference.speed_up(peer.name):.1f}",
        f"{peer.ns_min / reference.ns_python:.1f}" if peer.call == "python" else "",
    )


def _times(minimum: float, median: float) -> tuple[str, str]:
    return f"{minimum:,.0f}", f"{median:,.0f}"
