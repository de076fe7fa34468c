"""Columns of the table of a network's layers, on a terminal and on a page."""

from collections.abc import Callable

from sparsejit.api.shown import share_of_limit_text
from sparsejit.perf.kernels import Row

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
