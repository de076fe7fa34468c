"""Columns that CatBoost computes from hashes of categories, and their reader.

    category                "red", 3                    as text, UTF-8
    its hash                CityHash64, version 1.0     the lowest 32 bits, as a signed number
    combination             h = M (h + M element)       modulo 2^64, of hashes and of 0 and 1
    column                  a table of combinations     a share of the target's classes, or a count
                            a comparison of hashes      1 for one category, else 0

Hashes are all that a model keeps of its categories, so each category of X is hashed once, and its
hash is remembered. Trees then compare the columns as they compare numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.words import WordColumn, WordColumns
from sparsejit.ir.values import Array

_ALL = (1 << 64) - 1
_K = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F, 0xC949D7C7509E6557
_MIX = 0x9DDFEA08EB382D69
_COMBINE = 0x4906BA494954CB65
_MOST_KNOWN = 1 << 20  # categories whose hashes are remembered


def _load(data: bytes, place: int, size: int = 8) -> int:
    return int.from_bytes(data[place : place + size], "little")


def _rotated(x: int, by: int) -> int:
    """64 bits rotated to the right."""
    x &= _ALL
    return ((x >> by) | (x << (64 - by))) & _ALL if by else x


def _shift_mixed(x: int) -> int:
    """CityHash's ShiftMix."""
    return (x & _ALL) ^ ((x & _ALL) >> 47)


def _pair_hash(low: int, high: int) -> int:
    """The hash of 128 bits."""
    low, high = low & _ALL, high & _ALL
    one = _shift_mixed((low ^ high) * _MIX)
    return _shift_mixed((high ^ one) * _MIX) * _MIX & _ALL


def _short_hash(data: bytes) -> int:
    """The hash of up to 16 bytes."""
    size = len(data)
    if size > 8:
        low, high = _load(data, 0), _load(data, size - 8)
        return _pair_hash(low, _rotated(high + size, size)) ^ high
    if size >= 4:
        return _pair_hash(size + (_load(data, 0, 4) << 3), _load(data, size - 4, 4))
    if size:
        low = data[0] + (data[size >> 1] << 8)
        high = size + (data[-1] << 2)
        return _shift_mixed(low * _K[2] ^ high * _K[3]) * _K[2] & _ALL
    return _K[2]


def _middle_hash(data: bytes) -> int:
    """The hash of 17 to 32 bytes."""
    size = len(data)
    a, b = _load(data, 0) * _K[1] & _ALL, _load(data, 8)
    c, d = _load(data, size - 8) * _K[2] & _ALL, _load(data, size - 16) * _K[0]
    first = _rotated(a - b, 43) + _rotated(c, 30) + d
    return _pair_hash(first, a + _rotated(b ^ _K[3], 20) - c + size)


def _long_hash(data: bytes) -> int:
    """The hash of 33 to 64 bytes."""
    size = len(data)
    z = _load(data, 24)
    a = _load(data, 0) + (size + _load(data, size - 16)) * _K[0]
    sums = []
    for second, third in ((8, 16), (size - 24, size - 16)):
        b, c = _rotated(a + z, 52), _rotated(a, 37)
        a += _load(data, second)
        c += _rotated(a, 7)
        a += _load(data, third)
        sums.append((a + z, b + _rotated(a, 31) + c))
        a = _load(data, 16) + _load(data, size - 32)
        z = _load(data, size - 8)
    (vf, vs), (wf, ws) = sums
    found = _shift_mixed((vf + ws) * _K[2] + (wf + vs) * _K[0])
    return _shift_mixed(found * _K[0] + vs) * _K[2] & _ALL


def _weak_hash(data: bytes, place: int, a: int, b: int) -> tuple[int, int]:
    """Two hashes of 32 bytes and two seeds."""
    w, x, y, z = (_load(data, place + 8 * number) for number in range(4))
    a = a + w
    b = _rotated(b + a + z, 21)
    c = a
    a = a + x + y
    b += _rotated(a, 44)
    return (a + z) & _ALL, (b + c) & _ALL


def city_hash(data: bytes) -> int:
    """Return CityHash64 of bytes, version 1.0."""
    size = len(data)
    if size <= 64:
        return (_short_hash if size <= 16 else _middle_hash if size <= 32 else _long_hash)(data)
    x, y = _load(data, 0), _load(data, size - 16) ^ _K[1]
    z = _load(data, size - 56) ^ _K[0]
    v = _weak_hash(data, size - 64, size, y)
    w = _weak_hash(data, size - 32, size * _K[1], _K[0])
    z += _shift_mixed(v[1]) * _K[1]
    x = _rotated(z + x, 39) * _K[1]
    y = _rotated(y, 33) * _K[1]
    for place in range(0, (size - 1) & ~63, 64):
        x = _rotated(x + y + v[0] + _load(data, place + 16), 37) * _K[1] & _ALL
        y = _rotated(y + v[1] + _load(data, place + 48), 42) * _K[1] & _ALL
        x, y = x ^ w[1], y ^ v[0]
        z = _rotated((z & _ALL) ^ w[0], 33)
        v = _weak_hash(data, place, v[1] * _K[1], x + w[0])
        w = _weak_hash(data, place + 32, z + w[1], y)
        z, x = x, z
    return _pair_hash(
        _pair_hash(v[0], w[0]) + _shift_mixed(y) * _K[1] + z, _pair_hash(v[1], w[1]) + x
    )


def category_hash(text: str) -> int:
    """Return the hash of a category as CatBoost has it, from -2^31 to below 2^31."""
    return signed(city_hash(text.encode()))


def signed(value: int) -> int:
    """Return the lowest 32 bits as a signed number."""
    low = value & 0xFFFF_FFFF
    return low - (1 << 32) if low >> 31 else low


@dataclass(frozen=True)
class HashElement:
    """A part of a combination: a category's hash, or whether a feature is above or equal.

    `kind` is "category", "above" a `border`, or "equal" to a `border`, which is a hash.
    """

    kind: str
    feature: int
    border: float = 0.0
    is_greatest: bool = False  # NaN counts as above


@dataclass(frozen=True, eq=False)
class HashColumn:
    """A column: the value of a combination by its hash, `others` for unknown ones.

    Without `values` the only element is an "equal", and the column is 1 or 0.
    """

    elements: tuple[HashElement, ...]
    hashes: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    others: float = 0.0

    @cached_property
    def table(self) -> Mapping[int, float]:
        return dict(zip(self.hashes, self.values, strict=True))


@dataclass(frozen=True, eq=False)
class HashColumns(WordColumns):
    """Columns of hashed categories behind the features of X; `hashed` computes them.

    `categories` are the features of categories.
    """

    hashed: tuple[HashColumn, ...] = ()
    categories: tuple[int, ...] = ()
    _known: dict[str, int] = field(default_factory=dict)

    def reads(self, X: Any) -> bool:
        """True: every X has categories to read."""
        return True

    def read(self, columns: Sequence[Any]) -> Array:
        """The columns of a frame, and columns of hashes behind them, float32 (rows, width)."""
        rows = len(columns[0])
        array = np.zeros((rows, self.features), np.float32)
        hashes: dict[int, Array] = {}
        for number, column in enumerate(columns):
            if number in self.categories:
                hashes[number] = self._hashes(number, column)
            else:
                array[:, number] = self._numbers(number, column)
        return np.concatenate([array, self._computed(array, hashes)], axis=1)

    def read_array(self, X: Array) -> Array:
        """An array of objects, as `read` reads a frame."""
        return self.read(list(X.T))

    @staticmethod
    def _numbers(number: int, column: Any) -> Array:
        try:
            with np.errstate(over="ignore"):
                return np.asarray(column).astype(np.float64).astype(np.float32)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"column {number} of X is no column of numbers ({error})") from error

    def _hashes(self, number: int, column: Any) -> Array:
        """The hashes of a column of categories, int64 (rows,)."""
        if getattr(getattr(column, "dtype", None), "kind", "O") == "f":
            raise InvalidInput(
                f"column {number} of X has dtype {column.dtype}, and has categories; give strings "
                "or whole numbers"
            )
        known = self._known
        found = []
        for value in np.asarray(column, object).tolist():
            text = value if type(value) is str else _text_of(value, number)
            code = known.get(text)
            if code is None:
                if len(known) >= _MOST_KNOWN:
                    known.clear()
                code = known[text] = category_hash(text)
            found.append(code)
        return np.array(found, np.int64)

    def _computed(self, array: Array, hashes: Mapping[int, Array]) -> Array:
        made = np.empty((len(array), len(self.hashed)), np.float32)
        combined: dict[tuple[HashElement, ...], list[int]] = {}
        for place, column in enumerate(self.hashed):
            if not column.values:
                (own,) = column.elements
                made[:, place] = hashes[own.feature] == own.border
                continue
            if column.elements not in combined:
                combined[column.elements] = _combined(column.elements, array, hashes)
            get, others = column.table.get, column.others
            made[:, place] = [get(code, others) for code in combined[column.elements]]
        return made


def _text_of(value: Any, number: int) -> str:
    """The text of a category that is no str."""
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, str | int | np.integer):
        return str(value)
    if isinstance(value, bytes):
        return value.decode()
    raise InvalidInput(
        f"column {number} of X has {value!r}, and has categories; give strings or whole numbers"
    )


def _combined(
    elements: Sequence[HashElement], array: Array, hashes: Mapping[int, Array]
) -> list[int]:
    """The hashes of combinations, one for each row."""
    total = np.zeros(len(array), np.uint64)
    factor = np.uint64(_COMBINE)
    for element in elements:
        if element.kind == "category":
            own = hashes[element.feature].astype(np.uint64)
        elif element.kind == "equal":
            own = (hashes[element.feature] == element.border).astype(np.uint64)
        else:
            numbers = array[:, element.feature]
            above = numbers > np.float32(element.border)
            own = (above | (np.isnan(numbers) & element.is_greatest)).astype(np.uint64)
        total = factor * (total + factor * own)
    codes: list[int] = total.tolist()
    return codes


def hash_columns(
    features: int, categories: Sequence[int], hashed: Sequence[HashColumn]
) -> HashColumns:
    """The reader of columns of hashes behind `features` features."""
    columns = tuple(
        WordColumn(each.elements[0].feature, {}, None, None, "CatBoost") for each in hashed
    )
    is_read = np.isin(np.arange(features), categories, invert=True)
    return HashColumns(
        features, columns, is_read, hashed=tuple(hashed), categories=tuple(categories)
    )
