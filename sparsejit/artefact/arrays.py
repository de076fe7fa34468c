"""Arrays as named tensors of a file, float32 ones with many zeros packed, every bit kept.

An array is described by {"element": ..., "shape": [...], "packed": bool}. It is the tensor `name`;
packed, it is `name.mask`, one bit an element, `name.values` of the elements whose bit is set, and
`name.minus`, one bit an element, which zeros are -0.0: masked weights are full of these. Without
any of them it is left out.

A vast matrix is described by {"element": "float32", "vast": shape}: `name.starts`, `name.columns`
and `name.values` are its compressed rows.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.artefact.records import fields_of
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.ir.compressed_rows import CompressedRows
from sparsejit.ir.graph import Array, Element, TensorType

# Below this share of nonzeros a float32 array is packed.
PACKED_BELOW = 0.5
_ROW_PARTS = ("starts", "columns", "values")


def type_to_data(kind: TensorType) -> dict[str, Any]:
    """Element and shape."""
    return {"element": kind.element.value, "shape": list(map(int, kind.shape))}


def type_from_data(element: Any, shape: Any) -> TensorType:
    """Raises DamagedFile for what no tensor can be."""
    if not all(type(size) is int and size >= 0 for size in shape):
        raise DamagedFile(f"has a value of shape {shape}")
    if element not in {member.value for member in Element}:
        raise DamagedFile(f"has a value of element {element!r}")
    try:
        return TensorType(tuple(shape), Element(element))
    except InvalidInput as error:
        raise DamagedFile(f"has a value that no memory holds: {error}") from error


def array_to_data(name: str, array: Array) -> tuple[dict[str, Any], dict[str, Array]]:
    """What describes an array, and its tensors."""
    described = type_to_data(TensorType(array.shape, Element(array.dtype.name)))
    packed = array.dtype == np.float32 and np.count_nonzero(array) < PACKED_BELOW * array.size
    tensors = _packed(name, array) if packed else {name: array}
    return {**described, "packed": bool(packed)}, tensors


def matrix_to_data(
    name: str, matrix: Array | CompressedRows
) -> tuple[dict[str, Any], dict[str, Array]]:
    """What describes an array or compressed rows, and the tensors."""
    if not isinstance(matrix, CompressedRows):
        return array_to_data(name, matrix)
    if not matrix.is_vast:
        return array_to_data(name, matrix.dense())
    parts = (f"{name}.{part}" for part in _ROW_PARTS)
    tensors = dict(zip(parts, matrix.arrays, strict=True))
    return {"element": "float32", "vast": list(matrix.shape)}, tensors


def _packed(name: str, array: Array) -> dict[str, Array]:
    flat = array.reshape(-1)
    kept = flat != 0
    minus = np.signbit(flat) & ~kept
    parts = {f"{name}.mask": np.packbits(kept), f"{name}.values": flat[kept]}
    return {**parts, f"{name}.minus": np.packbits(minus)} if minus.any() else parts


class ArrayReader:
    """Puts arrays together again. Raises DamagedFile where a tensor is not as described."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self._tensors = tensors
        self._unread = set(tensors)

    def read(self, name: str, data: Any) -> Array:
        """The array that `array_to_data` described."""
        element, shape, packed = fields_of(data, element=str, shape=list, packed=bool)
        kind = type_from_data(element, shape)
        if not packed:
            return self._tensor(name, kind.shape, element)
        if kind.element is not Element.FLOAT32:
            raise DamagedFile(f"has {name} packed, of {kind}")
        kept = self._mask(f"{name}.mask", kind)
        array = np.zeros(kind.size, np.float32)
        if f"{name}.minus" in self._tensors:
            array[self._mask(f"{name}.minus", kind)] = -0.0
        array[kept] = self._tensor(f"{name}.values", (int(np.count_nonzero(kept)),), element)
        return array.reshape(kind.shape)

    def matrix(self, name: str, data: Any) -> Array | CompressedRows:
        """The array or the compressed rows that `matrix_to_data` described."""
        if "vast" not in data:
            return self.read(name, data)
        element, shape = fields_of(data, element=str, vast=list)
        kind = type_from_data(element, shape)
        held = self._tensors.get(f"{name}.values")
        if len(kind.shape) != 2 or kind.element is not Element.FLOAT32 or held is None:
            raise DamagedFile(f"has {name} as compressed rows of {kind}")
        sizes = (kind.shape[0] + 1,), held.shape, held.shape
        types = ("int64", "int64", element)
        parts = [
            self._tensor(f"{name}.{part}", size, dtype)
            for part, size, dtype in zip(_ROW_PARTS, sizes, types, strict=True)
        ]
        rows = CompressedRows((kind.shape[0], kind.shape[1]), *parts)
        try:
            rows.check()
        except InvalidInput as error:
            raise DamagedFile(f"has {name} as {error}") from error
        return rows

    def finish(self) -> None:
        """Raises DamagedFile for tensors that nothing read."""
        if self._unread:
            raise DamagedFile(f"has tensors that nothing reads: {', '.join(sorted(self._unread))}")

    def _mask(self, name: str, kind: TensorType) -> npt.NDArray[np.bool_]:
        bits = self._tensor(name, (-(-kind.size // 8),), "uint8")
        return np.unpackbits(bits, count=kind.size).astype(bool)

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: str) -> Array:
        array = self._tensors.get(name)
        if array is None or array.shape != shape or array.dtype != dtype:
            found = "none" if array is None else f"{array.dtype}{list(array.shape)}"
            raise DamagedFile(f"has {found} as {name}, not {dtype}{list(shape)}")
        self._unread.discard(name)
        return array
