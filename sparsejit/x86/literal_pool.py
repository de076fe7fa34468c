"""The literals of an image, kept apart until its size is known and written once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class LiteralPool:
    """Arrays in order, with what aligns them; `size` is in bytes.

    Large arrays are not copied: they must stay as they are until `write`.
    """

    def __init__(self) -> None:
        self.size = 0
        self._places: list[tuple[int, memoryview]] = []

    def append(self, values: npt.NDArray[Any], align: int) -> int:
        """Where the array begins, a multiple of `align` bytes."""
        offset = -(-self.size // align) * align
        whole = np.ascontiguousarray(values).reshape(-1)
        if whole.nbytes < _LARGE:
            whole = whole.copy()
        self._places.append((offset, whole.view(np.uint8).data))
        self.size = offset + whole.nbytes
        return offset

    def write(self, room: memoryview) -> None:
        """All into `size` bytes."""
        end = 0
        for offset, part in self._places:
            room[end:offset] = bytes(offset - end)
            end = offset + len(part)
            room[offset:end] = part


_LARGE = 1 << 16  # bytes
