"""The literals of an image, kept apart until its size is known and written once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# An offset from here on is one in the literals that images have in common.
COMMON = 1 << 30


class CommonLiterals:
    """The literals of an image that others, in its neighbourhood, read as well.

    `address` is where they begin, 0 until the image is written.
    """

    def __init__(self) -> None:
        self.address = self._size = 0
        self._offsets: dict[_Span, int] = {}
        self._known: dict[int, tuple[npt.NDArray[Any], int]] = {}  # by identity, which they keep

    def offset_of(self, array: npt.NDArray[Any]) -> int | None:
        """Where an array lies that is one of these literals; None for any other."""
        known = self._known.get(id(array))
        if known is not None:
            return known[1]
        if not self.address:
            return None
        first, size = _span(array)
        if first < self.address or first + size > self.address + self._size:
            return None
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[id(array)] = array, first - self.address
        return first - self.address

    def place_of(self, array: npt.NDArray[Any]) -> int | None:
        """Where an array was copied to; None where it was not, as far as is known.

        Another may have lain in the same memory before: who reads there compares.
        """
        return self._offsets.get(_span(array))

    def add(self, array: npt.NDArray[Any], offset: int) -> None:
        """Know that the image which is being made has it there."""
        self._offsets[_span(array)] = offset

    def begin_at(self, address: int, size: int) -> None:
        """Say where the image has them; too many to tell offsets by are not shared."""
        if size < COMMON:
            self.address, self._size = address, size


class LiteralPool:
    """Arrays in order, with what aligns them; `size` is in bytes.

    Large arrays are not copied: they must stay as they are until `write`, and lie in the pool once
    however often they are appended. `common` are literals
    of another image that need not be appended, or those of this one if that has none yet.
    """

    def __init__(self, common: CommonLiterals | None = None) -> None:
        self.size = 0
        self._common = common
        self._places: list[tuple[int, memoryview]] = []
        self._large: dict[tuple[_Span, int], int] = {}

    def append(self, values: npt.NDArray[Any], align: int) -> int:
        """Where the array begins, a multiple of `align` bytes."""
        whole = values if values.flags.c_contiguous else np.ascontiguousarray(values)
        common = self._common
        if common is not None and (there := common.offset_of(whole)) is not None:
            return COMMON + there
        span = _span(whole)
        if (known := self._large.get((span, align))) is not None:
            return known
        whole = whole.reshape(-1)
        offset = -(-self.size // align) * align
        if common is not None and not common.address:
            common.add(whole, offset)
        if whole.nbytes < _LARGE:
            whole = whole.copy()
        else:
            self._large[span, align] = offset
        self._places.append((offset, whole.view(np.uint8).data))
        self.size = offset + whole.nbytes
        return offset

    def write(self, room: memoryview) -> None:
        """All into `size` bytes, where they stay."""
        end = 0
        for offset, part in self._places:
            room[end:offset] = bytes(offset - end)
            end = offset + len(part)
            room[offset:end] = part
        if self._common is not None and not self._common.address and self.size:
            self._common.begin_at(address_of(room), self.size)


def address_of(room: memoryview) -> int:
    """The address of its first byte."""
    return int(np.frombuffer(room, np.uint8).__array_interface__["data"][0])


_Span = tuple[int, int]  # address and bytes


def _span(array: npt.NDArray[Any]) -> _Span:
    return int(array.__array_interface__["data"][0]), array.nbytes


_LARGE = 1 << 16  # bytes
_MOST_KNOWN = 1 << 14
