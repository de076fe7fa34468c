"""How far outputs are from others, as one number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsejit.ir.graph import Array


def output_error(found: Sequence[Sequence[Array]], exact: Sequence[Sequence[Array]]) -> float:
    """The largest difference of an output, over its largest value in all of the data.

    It is the worst of all outputs; of whole numbers and bool the share that differs. Both have a
    list of outputs for each element of the data.
    """
    pairs = [
        (list(ours), list(theirs))
        for ours, theirs in zip(zip(*found, strict=True), zip(*exact, strict=True), strict=True)
    ]
    return max((largest_error(*pair) for pair in pairs), default=0.0)


def largest_error(found: Sequence[Array], exact: Sequence[Array]) -> float:
    """The same of one output, an array for each element of the data."""
    if not any(each.size for each in exact):
        return 0.0
    if exact[0].dtype.kind != "f":
        wrong = sum(np.count_nonzero(a != b) for a, b in zip(found, exact, strict=True))
        return wrong / sum(each.size for each in exact)
    largest = max(float(np.abs(each).max(initial=0.0)) for each in exact)
    off = max(
        float(np.abs(a.astype(np.float64) - b).max(initial=0.0))
        for a, b in zip(found, exact, strict=True)
    )
    return off / (largest or 1.0) if np.isfinite(off) else float("inf")


def mean_error(found: Sequence[Array], exact: Sequence[Array]) -> float:
    """The root mean square of the difference, over that of the exact values."""
    off = sum(
        float(np.square(a.astype(np.float64) - b).sum())
        for a, b in zip(found, exact, strict=True)
    )
    whole = sum(float(np.square(each.astype(np.float64)).sum()) for each in exact)
    return float(np.sqrt(off / whole)) if whole else float(np.sqrt(off))
