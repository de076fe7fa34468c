"""Padding lines among those that a kernel reads from L2, in order, once a call.

    read     0 1 2 . 3 4 5 . 6 7 8 .        the n-th line lies at n + n // 3; no dot is ever read

Zen 5 seems to take up a sequence at its fourth line, and to fetch ahead of it what the kernel then
fetches again. In runs of three or fewer, lines arrive as fast as L2 can deliver them. Plain loads
of 56 to 400 KB, straight-line or in a loop, from one sequence or from two in turn:

    lines in a run     3 or fewer    4     5    8 or more    in a loop of 32 or 64 lines
    bytes a cycle          64       59    52       48                  32

Every second or third line left out is no better, eight read and eight left out is worse (33).
Within L1 there is nothing to gain, and a little beyond it much still is there at the next call.
Beyond half of L2 sequences come at 55 as they are; there, and from L3, padding only takes room.
More stays in L1 if weights lie in every other line, all in sets of even numbers, and what is
fetched in vain in the others (`int8_permute`, `broadcast_mixed`).
Vectors of 32 bytes, two loads a line, are not read as fast as that (AVX2: 1 to 7 % slower).
`permute` of 768x256 at 10 % takes 514 ns so instead of 674, int8 of 1024x1024 1158 instead of 1495.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sparsejit.machine.target import Target
from sparsejit.x86.assembler import Assembler

CACHE_LINE_BYTES = 64
Number = TypeVar("Number", int, npt.NDArray[Any])


@dataclass(frozen=True)
class StridePadding:
    """Lines of a stream, `run` of every `period` of which are read.

    `period` divides the 256 lines that a one-byte displacement reaches.
    """

    run: int
    period: int

    def place(self, number: Number) -> Number:
        """Where the line of that number among those that are read lies."""
        return number + number // self.run * (self.period - self.run)

    def room(self, count: int) -> int:
        """Lines from the start of `count` that are read to where others may start."""
        return -(-count // self.run) * self.period

    def spread(self, lines: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Lines along axis 1, with the spare ones as zeros in between."""
        if self == DENSE:
            return lines
        count = lines.shape[1]
        spread = np.zeros((lines.shape[0], self.room(count), *lines.shape[2:]), lines.dtype)
        spread[:, self.place(np.arange(count))] = lines
        return spread


DENSE, ALTERNATE, PADDED = StridePadding(1, 1), StridePadding(1, 2), StridePadding(3, 4)


def literal(asm: Assembler, lines: npt.NDArray[Any], space: StridePadding) -> int:
    """Put lines, along axis 1, into the pool, and count the spare bytes in between.

    Their alignment has the padding lines belong to the same sets of L1 in every call.
    """
    spread = space.spread(lines)
    asm.count(padding_bytes=spread.nbytes - lines.nbytes)
    return asm.literal(spread, space.period * CACHE_LINE_BYTES)


def stride_padding(stream_bytes: int, target: Target) -> StridePadding:
    """That of a stream of whole lines, so many bytes a call."""
    beyond_l1 = stream_bytes > target.l1d_bytes * 17 // 16
    fits = PADDED.room(stream_bytes) <= target.l2_bytes // 2
    return PADDED if target.vector_bytes == CACHE_LINE_BYTES and beyond_l1 and fits else DENSE
