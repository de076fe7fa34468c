"""Attention among the frames of a stream: each frame attends to a band of frames around it.

mask (T, T)                       keys = concat(past, k)          the last frames of the band
y = attention(q, k, v, mask)  ->  s = bmm(q, keys) + mask         of frames outside of the band, and
                                  y = bmm(softmax(s), values)     of those before the first one
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sparsejit.ir.ops import row_chains
from sparsejit.ir.ops.pointwise import Pointwise
from sparsejit.ir.ops.products import Bmm
from sparsejit.ir.values import Array, Origin, Value
from sparsejit.passes.step_frames import Frames, FrameWriter


class NearFrames(NamedTuple):
    """The frames that a frame attends to.

    `allowed[..., n]` says whether it attends to the one that is `first` + n frames earlier, or
    later where that is below 0. Leading axes are the mask's.
    """

    first: int
    allowed: Array

    @property
    def last(self) -> int:
        """The largest distance of a frame behind the one that attends to it."""
        return self.first + self.allowed.shape[-1] - 1


def band_of(mask: Array) -> NearFrames | None:
    """The band of a mask (..., frames, frames), if each frame has the same, as far as there are.

    Distances are of earlier frames, below 0 of later ones. None for another mask.
    """
    frames = mask.shape[-1]
    if mask.shape[-2] != frames:
        return None
    numbers = np.arange(frames)
    distance = numbers[:, None] - numbers
    diagonals = (mask.diagonal(-each, -2, -1) for each in range(1 - frames, frames))
    every = np.stack([each.any(axis=-1) for each in diagonals], axis=-1)
    if not np.array_equal(every[..., distance + frames - 1], mask):
        return None
    found = np.flatnonzero(every.any(axis=tuple(range(every.ndim - 1))))
    if not len(found):
        return None
    return NearFrames(int(found[0]) + 1 - frames, every[..., found[0] : found[-1] + 1])


def common_band(long: Array, short: Array, window: int | None) -> NearFrames | None:
    """The band of the masks of two lengths.

    Where all earlier frames are allowed, the last `window` frames are. None without a band.
    """
    own, other = band_of(long), band_of(short)
    if own is None or other is None:
        return None
    if own.first == other.first and np.array_equal(own.allowed, other.allowed):
        return own
    size = own.allowed.shape[-1]
    is_causal = own.first == other.first == 0 and own.allowed.all() and other.allowed.all()
    if window is None or not is_causal or size != long.shape[-1]:
        return None
    return NearFrames(0, own.allowed[..., :window])


def attended(
    writer: FrameWriter,
    operands: tuple[Frames, Frames, Frames],
    band: NearFrames,
    scale: float,
    origin: Origin,
) -> Frames:
    """The result for queries, keys and values, which have time on their last axis but one."""
    query, key, value = (writer.settled(each, origin) for each in operands)
    key, value = writer.aligned([key, value], origin)
    late = key.delay
    delay = max(query.delay, late - band.first)
    query = writer.delayed(query, delay, origin)
    value = writer.masked(value, 0.0, late)
    past, frames = delay + band.last - late, query.count
    seen = frames + band.allowed.shape[-1] - 1
    keys, values = (
        writer.cut(writer.history(each, past, 0.0, origin), each.axis, 0, seen)
        for each in (key, value)
    )
    scores = writer.build.one(Bmm(transposed=True, scale=scale), query.value, keys, origin=origin)
    added = _added(writer, band, query, past + late)
    numbers = row_chains.LEAST_SCORE, row_chains.LEAST_TOTAL
    least = [writer.number(each) for each in numbers]
    softmax = row_chains.masked_softmax(scores.shape)
    shares = writer.build.one(softmax, scores, added, *least, origin=origin)
    made = writer.build.one(Bmm(), shares, values, origin=origin)
    place = query.place._replace(axis=len(made.shape) - 2)
    return replace(query, value=made, place=place)


def _added(writer: FrameWriter, band: NearFrames, query: Frames, until: int) -> Value:
    """The numbers added to scores (..., frames, keys): 0, or -infinity for a key not attended to.

    Key n of a step is of frame n - `until` of the sequence in the first step.
    """
    size, frames, rank = band.allowed.shape[-1], query.count, len(query.value.shape)
    distance = np.arange(frames)[:, None] - np.arange(frames + size - 1) + size - 1
    inside = (distance >= 0) & (distance < size)
    allowed = inside & band.allowed[..., np.clip(distance, 0, size - 1)]
    rows = writer.is_reached(frames + size - 1, until, frames)
    reached = writer.spread(rows, rank, query.sample_axis, rank - 1)
    known = writer.build.constant(allowed, Origin("band"))
    both = writer.one(Pointwise("logical_and"), reached, known)
    return writer.one(Pointwise("where"), both, writer.number(0.0), writer.number(-np.inf))
