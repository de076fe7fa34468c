"""Leaves out taps of a convolution that meet nothing but padding, at all positions.

    one position of one element, padding 1      [a b c] of  0 x 0   ->   [b] of x

An image that shrinks on its way through a network may end smaller than the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.ops.convolution import Convolution, positions
from sparsejit.ir.values import Value
from sparsejit.passes.rewriter import Site, rewrite


def trim_taps(graph: Graph) -> Graph:
    """The graph with convolutions without the taps that meet only padding."""
    return rewrite(graph, _trim)


def _trim(site: Site) -> Sequence[Value] | None:
    op = site.op
    if not isinstance(op, Convolution) or op.transposed or op.rounding is not None:
        return None
    weights = site.array(site.inputs[1])
    if weights is None:
        return None
    sizes = site.inputs[0].shape[2:], site.output.shape[2:], weights.shape[2:]
    kept = list(map(_kept, *sizes, op.stride, op.padding, op.dilation))
    places = (slice(None), slice(None), *(slice(taps.start, taps.stop) for taps, _ in kept))
    fewer = weights[places]
    if fewer.shape == weights.shape:
        return None
    smaller = replace(op, padding=tuple(before for _, before in kept))
    own = site.constant(np.ascontiguousarray(fewer), site.inputs[1].origin)
    return site.add(smaller, site.inputs[0], own, *site.inputs[2:])


def _kept(
    size: int, count: int, kernel: int, stride: int, padding: int, dilation: int
) -> tuple[range, int]:
    """The taps to keep, and the padding that they need on both sides for `count` positions.

    All taps are kept where no such padding gives `count` positions.
    """
    first = np.arange(kernel) * dilation - padding
    met = first[:, None] + np.arange(count) * stride
    used = np.flatnonzero(((met >= 0) & (met < size)).any(axis=1))
    if len(used) == 0:
        return range(kernel), padding
    taps = range(int(used[0]), int(used[-1]) + 1)
    before = -int(first[taps.start])
    padded = size + 2 * before
    fits = positions((padded,), (len(taps),), (stride,), (dilation,)) == (count,)
    return (taps, before) if before >= 0 and fits else (range(kernel), padding)
