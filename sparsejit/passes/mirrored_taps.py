"""Filters that are mirror images of themselves, as the cosines and sines of a spectrum are.

y[k] = sum_n W[k, n] x[n]       even rows: W[k, N-n] = W[k, n]     odd rows: W[k, N-n] = -W[k, n]

    sums = x[n] + x[N-n], x[N/2], x[0]           y[even] = W[even, half] sums
    differences = x[n] - x[N-n]            ->    y[odd] = W[odd, half] differences

Half of the products are left, with the same weights. A window that is symmetric about N/2 leaves
the rows of a Fourier transform even or odd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple, TypeGuard

import numpy as np

from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Operator
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.selection import Embedding
from sparsejit.ir.ops.views import Concat, Permute, Reshape, Slice
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Array, Origin, Value
from sparsejit.passes.rewriter import Site, rewrite

# Fewer filters save less than the sums and differences of x cost.
_FEWEST_ROWS, _FEWEST_OF_A_KIND = 128, 16


class _Rows(NamedTuple):
    """Consecutive filters that are all even or all odd."""

    is_even: bool
    first: int
    end: int


def halve_mirrored(graph: Graph) -> Graph:
    """The graph with half of the products for filters that are mirror images of themselves."""
    return rewrite(graph, _halved)


def _halved(site: Site) -> Sequence[Value] | None:
    op = site.op
    if not _is_plain(op) or len(site.inputs) > 3:
        return None
    x, weights, *bias = site.inputs
    array = site.array(weights)
    if array is None or weights.shape[0] < _FEWEST_ROWS or weights.shape[1] != 1:
        return None
    filters = array[:, 0]
    rows = _alike(filters)
    if rows is None:
        return None
    frames = _FilterWindows(site, x, filters.shape[1], op.stride[0])
    has_first = bool(filters[:, 0].any())
    operands = {even: frames.folded(even, has_first) for even in {each.is_even for each in rows}}
    made = []
    for is_even, first, end in rows:
        own = _half(filters[first:end], is_even, has_first)[..., None]
        taps = site.constant(np.ascontiguousarray(own), weights.origin)
        biases = [site.one(Slice(0, first, end), each) for each in bias]
        plain = replace(op, stride=(1,))
        made.append(site.one(plain, operands[is_even], taps, *biases))
    return (made[0] if len(made) == 1 else site.one(Concat(1), *made),)


def _is_plain(op: Operator) -> TypeGuard[Convolution]:
    """Whether an operator is a float32 convolution of one axis without padding."""
    if not isinstance(op, Convolution) or op.transposed or len(op.stride) != 1 or op.groups != 1:
        return False
    is_float = op.dtype is DType.FLOAT32 and op.x_steps is None and op.rounding is None
    return is_float and op.padding == (0,) and op.dilation == (1,)


def _alike(filters: Array) -> list[_Rows] | None:
    """Runs of even and of odd filters (rows, N); None where a filter is neither, or runs are short.

    A filter of zeros, such as the sine of frequency 0, is odd.
    """
    size = filters.shape[1]
    if size % 2 or size < 4:
        return None
    ahead, behind = filters[:, 1 : size // 2], filters[:, : size // 2 : -1]
    even = (ahead == behind).all(axis=1)
    odd = (ahead == -behind).all(axis=1) & ~filters[:, [0, size // 2]].any(axis=1)
    if not (even | odd).all():
        return None
    starts = [0, *(1 + np.flatnonzero(odd[1:] != odd[:-1])), len(odd)]
    runs = [_Rows(not odd[first], first, end) for first, end in pairwise(map(int, starts))]
    return runs if min(end - first for _, first, end in runs) >= _FEWEST_OF_A_KIND else None


def _half(filters: Array, is_even: bool, has_first: bool) -> Array:
    """The weights of sums or differences: taps 1 to N/2 - 1; of even filters N/2, and perhaps 0."""
    half = filters.shape[1] // 2
    if not is_even:
        return filters[:, 1:half]
    return np.concatenate([filters[:, 1 : half + 1], filters[:, :has_first]], axis=1)


class _FilterWindows:
    """The windows of x (batch, 1, length) that a filter meets, as images of their elements.

    The elements of several samples are gathered: samples then lie side by side in all operands.
    """

    def __init__(self, site: Site, x: Value, size: int, stride: int) -> None:
        self._site, self._size = site, size
        batch, _, length = x.shape
        self._count = site.output.shape[2]
        self._stride = stride if self._count > 1 else length
        self._by_time = site.one(Permute((1, 0)), site.one(Reshape((batch, length)), x))

    def folded(self, is_even: bool, has_first: bool) -> Value:
        """Sums of elements n and N - n, N/2 and perhaps 0; or differences: (batch, n, windows)."""
        site, half = self._site, self._size // 2
        ahead = self._elements(range(1, half))
        behind = self._elements(range(self._size - 1, half, -1))
        folded = site.one(Pointwise("add" if is_even else "sub"), ahead, behind)
        if is_even:
            alone = [self._elements(range(n, n + 1)) for n in [half, 0][: 1 + has_first]]
            folded = site.one(Concat(0), folded, *alone)
        return site.one(Permute((2, 0, 1)), folded)

    def _elements(self, numbers: range) -> Value:
        """These elements of each window: (elements, windows, batch)."""
        view = self._view(numbers) if self._by_time.shape[1] == 1 else None
        return self._gathered(numbers) if view is None else view

    def _view(self, numbers: range) -> Value | None:
        """They as a view; None unless they lie between two multiples of the stride."""
        site, (length, batch) = self._site, self._by_time.shape
        blocks, first = divmod(numbers.start, self._stride)
        start, end = blocks * self._stride, (blocks + self._count) * self._stride
        last = first + len(numbers)
        if numbers.step != 1 or last > self._stride or end > length:
            return None
        whole = site.one(Slice(0, start, end), self._by_time)
        apart = site.one(Reshape((self._count, self._stride, batch)), whole)
        return site.one(Permute((1, 0, 2)), site.one(Slice(1, first, last), apart))

    def _gathered(self, numbers: range) -> Value:
        places = np.array(numbers)[:, None] + np.arange(self._count) * self._stride
        index = self._site.constant(places.astype(np.int64), Origin("mirror"))
        return self._site.one(Embedding(), index, self._by_time)
