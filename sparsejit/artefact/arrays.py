"""Arrays as numbered tensors of a file. Equal arrays are stored once; every bit is kept.

An array is described by {"element": ..., "shape": [...], "form": ..., "tensors": [number, ...]}:

    whole    the array
    packed   float32 with many zeros: a bit mask of the nonzeros, and their values; where there are
             elements of -0.0, as in masked weights, also a bit mask of these
    rows     float32 with very few nonzeros: starts, columns and values of compressed rows
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.artefact.records import fields_of
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.ir.values import Array, Element, TensorType
from sparsejit.whole_numbers import ceil_div

# Below this share of nonzeros a float32 array is packed.
PACKED_BELOW = 0.5
_WHOLE, _PACKED, _ROWS = "whole", "packed", "rows"


def type_to_data(kind: TensorType) -> dict[str, Any]:
    """Return the element type and the shape as JSON data."""
    return {"element": kind.element.value, "shape": list(map(int, kind.shape))}


def type_from_data(element: Any, shape: Any) -> TensorType:
    """Return the tensor type. Raises DamagedFile for an impossible element type or shape."""
    if not all(type(size) is int for size in shape):
        raise DamagedFile(f"has a value of shape {shape}")
    if element not in {member.value for member in Element}:
        raise DamagedFile(f"has a value of element {element!r}")
    try:
        return TensorType(tuple(shape), Element(element))
    except InvalidInput as error:
        raise DamagedFile(f"has {error}") from error


class ArrayWriter:
    """Collects the arrays of a file as its `tensors`, named by number, equal ones once."""

    def __init__(self) -> None:
        self.tensors: dict[str, Array] = {}
        self._numbers: dict[tuple[str, tuple[int, ...], bytes], int] = {}

    def add(self, array: Array | CompressedRows) -> dict[str, Any]:
        """Add an array, and return its description for the header."""
        if isinstance(array, CompressedRows):
            if array.is_vast:
                return self._described(array.shape, Element.FLOAT32, _ROWS, array.arrays)
            array = array.dense()
        packed = array.dtype == np.float32 and np.count_nonzero(array) < PACKED_BELOW * array.size
        form, parts = (_PACKED, _packed(array)) if packed else (_WHOLE, [array])
        return self._described(array.shape, Element(array.dtype.name), form, parts)

    def _described(
        self, shape: tuple[int, ...], element: Element, form: str, parts: Iterable[Array]
    ) -> dict[str, Any]:
        numbers = [self._number(part) for part in parts]
        return {**type_to_data(TensorType(shape, element)), "form": form, "tensors": numbers}

    def _number(self, array: Array) -> int:
        key = array.dtype.name, array.shape, array.tobytes()
        number = self._numbers.setdefault(key, len(self._numbers))
        self.tensors.setdefault(str(number), array)
        return number


def _packed(array: Array) -> list[Array]:
    flat = array.reshape(-1)
    kept = flat != 0
    minus = np.signbit(flat) & ~kept
    return [np.packbits(kept), flat[kept], *([np.packbits(minus)] if minus.any() else [])]


class ArrayReader:
    """Reads arrays by their descriptions. Raises DamagedFile where a tensor is not as described."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self._tensors = tensors
        self._unread = set(tensors)

    def read(self, data: Any) -> Array:
        """Return the dense array that `ArrayWriter.add` described."""
        found = self.matrix(data)
        if isinstance(found, CompressedRows):
            raise DamagedFile("has compressed rows in the place of an array")
        return found

    def matrix(self, data: Any) -> Array | CompressedRows:
        """Return the array or the compressed rows that `ArrayWriter.add` described."""
        element, shape, form, numbers = fields_of(
            data, element=str, shape=list, form=str, tensors=list
        )
        kind = type_from_data(element, shape)
        if form == _WHOLE and len(numbers) == 1:
            return self._tensor(numbers[0], kind.shape, element)
        if form == _PACKED and len(numbers) in (2, 3) and kind.element is Element.FLOAT32:
            return self._unpacked(kind, *numbers)
        if form == _ROWS and len(numbers) == 3 and kind.element is Element.FLOAT32:
            return self._rows(kind, *numbers)
        raise DamagedFile(f"has {kind} as {form!r} of {len(numbers)} tensors")

    def finish(self) -> None:
        """Raise DamagedFile for tensors that were never read."""
        if self._unread:
            raise DamagedFile(f"has unread tensors: {', '.join(sorted(self._unread))}")

    def _unpacked(self, kind: TensorType, mask: Any, values: Any, minus: Any = None) -> Array:
        kept = self._mask(mask, kind)
        array = np.zeros(kind.size, np.float32)
        if minus is not None:
            array[self._mask(minus, kind)] = -0.0
        array[kept] = self._tensor(values, (int(np.count_nonzero(kept)),), "float32")
        return array.reshape(kind.shape)

    def _rows(self, kind: TensorType, starts: Any, columns: Any, values: Any) -> CompressedRows:
        held = self._tensors.get(str(values))
        if len(kind.shape) != 2 or held is None:
            raise DamagedFile(f"has compressed rows of {kind}")
        parts = (
            self._tensor(starts, (kind.shape[0] + 1,), "int64"),
            self._tensor(columns, held.shape, "int64"),
            self._tensor(values, held.shape, "float32"),
        )
        rows = CompressedRows((kind.shape[0], kind.shape[1]), *parts)
        try:
            rows.check()
        except InvalidInput as error:
            raise DamagedFile(f"has {error}") from error
        return rows

    def _mask(self, number: Any, kind: TensorType) -> npt.NDArray[np.bool_]:
        bits = self._tensor(number, (ceil_div(kind.size, 8),), "uint8")
        return np.unpackbits(bits, count=kind.size).astype(bool)

    def _tensor(self, number: Any, shape: tuple[int, ...], dtype: str) -> Array:
        array = self._tensors.get(str(number))
        if array is None or array.shape != shape or array.dtype != dtype:
            found = "none" if array is None else f"{array.dtype}{list(array.shape)}"
            raise DamagedFile(f"has {found} as tensor {number}, not {dtype}{list(shape)}")
        self._unread.discard(str(number))
        return array
