"""A pruned weight matrix and the statistics of its zeros.

Time and memory follow the number of nonzeros: a matrix with hardly any nonzeros (a vast one) is
held as compressed rows alone. Any other matrix makes its dense array on first use.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from sparsejit.errors import CompileError, InvalidInput
from sparsejit.ir.compressed_rows import (
    CompressedRows,
    IntArray,
    count_distinct,
    distinct,
    is_vast,
)
from sparsejit.ir.packed_graph import PackedArray, packed, unpacked
from sparsejit.ir.spec import LARGEST_INT8, SMALLEST_SCALE, MatVec
from sparsejit.whole_numbers import ceil_div, round_up

FloatArray = npt.NDArray[np.float32]
_Made = TypeVar("_Made")
_NOT_MADE = object()

# Largest distance of a weight from a whole number of steps, in steps: the float32 rounding error of
# 127 times a scale, divided by the scale again.
_OFF_STEP = 4e-5
_FEW = 32  # with fewer parts to a row, one numpy call counts each part
_SAMPLE = 16  # weights of a row that are tested before all are


@dataclass(frozen=True)
class BlockShape:
    """A block of `rows` outputs by `columns` inputs that is kept or dropped as one."""

    name: str
    rows: int
    columns: int


UNSTRUCTURED = BlockShape("unstructured", 1, 1)
# One input, eight (sixteen) consecutive outputs of weight[out, in].
BLOCK_1X8 = BlockShape("1x8", 8, 1)
BLOCK_1X16 = BlockShape("1x16", 16, 1)
# As 1x16, but each row has an input of its own among the same sixteen.
LANE16 = BlockShape("lane16", 16, 1)


class SparseMatrix:
    """Weights of shape (out_features, in_features), float32, most of them zero.

    Made from an array, which is copied, or from compressed rows. Negative zeros count as zeros.
    Raises InvalidInput for anything but finite real numbers of a non-empty 2-d shape.
    """

    def __init__(self, weights: npt.ArrayLike | CompressedRows) -> None:
        array = weights if isinstance(weights, CompressedRows) else np.asarray(weights)
        if len(array.shape) != 2 or 0 in array.shape:
            raise InvalidInput(
                f"weights have shape {array.shape}; give a 2-d array (out_features, in_features) "
                "with both at least 1"
            )
        if array.dtype.kind not in "fiu":
            raise InvalidInput(f"weights have dtype {array.dtype}; give real numbers")
        if isinstance(array, CompressedRows):
            array.check()
        elif is_vast(array.size, 0) and is_vast(array.size, int(np.count_nonzero(array))):
            array = CompressedRows.of(array)
        self._whole: FloatArray | CompressedRows | None = _finite(array)
        self._packed: FloatArray | PackedArray | None = None

    @classmethod
    def _of(cls, held: "FloatArray | CompressedRows") -> "SparseMatrix":
        """Make a matrix of these weights, finite and float32, without a check or a copy."""
        matrix = cls.__new__(cls)
        matrix._whole, matrix._packed = held, None
        return matrix

    @classmethod
    def of_rows(cls, rows: CompressedRows) -> "SparseMatrix":
        """A matrix of values of any dtype, unchecked, for its statistics."""
        return cls._of(rows)

    @property
    def held(self) -> "FloatArray | CompressedRows":
        """The weights as they are stored: an array, or compressed rows."""
        return self._held

    @property
    def _held(self) -> "FloatArray | CompressedRows":
        whole = self._whole  # read once: `compress` of another thread may set it to None
        if whole is None:
            assert self._packed is not None
            whole = self._whole = unpacked(self._packed)
            whole.flags.writeable = False
        return whole

    def compress(self) -> None:
        """Pack the weights into less memory until they are next used; keep the statistics."""
        whole = self._whole
        if isinstance(whole, np.ndarray):
            self._shape = whole.shape
            self._packed = packed(whole) if self._packed is None else self._packed
            self._whole = None
        for name in ("dense", "nonzeros", "_blocks"):
            self.__dict__.pop(name, None)

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        return self._held.shape

    @cached_property
    def _made(self) -> dict[Hashable, Any]:
        return {}

    def memoised(self, key: Hashable, make: Callable[[], _Made]) -> _Made:
        """Return the object made from the weights under this key; call `make` the first time."""
        made = self._made.get(key, _NOT_MADE)
        if made is _NOT_MADE:
            made = self._made[key] = make()
        return cast("_Made", made)

    def has_memoised(self, key: Hashable) -> bool:
        """Whether `memoised` has made an object under this key."""
        return key in self._made

    stays = False  # whether later functions of the model will read the same matrix

    @property
    def memoised_count(self) -> int:
        """Number of objects that `memoised` has made."""
        return len(self._made)

    @property
    def memoised_families(self) -> frozenset[str]:
        """The first parts (kernel families) of the keys under which `memoised` has made objects."""
        return frozenset(str(key[0]) for key in self._made if isinstance(key, tuple))

    def replace_memoised(self, change: Callable[[Any], Any]) -> None:
        """Replace every object that `memoised` has made by `change` of it."""
        for key, value in self._made.items():
            self._made[key] = change(value)

    @cached_property
    def dense(self) -> FloatArray:
        """All weights, read-only (out_features, in_features); CompileError for a vast matrix."""
        if not isinstance(self._held, CompressedRows):
            return self._held
        if self.is_vast:
            raise CompileError(
                f"a matrix of {self.out_features} by {self.in_features} with {self.nnz} nonzeros "
                "is too large to be stored with its zeros"
            )
        dense = self._held.dense()
        dense.flags.writeable = False
        return dense

    @cached_property
    def nonzeros(self) -> CompressedRows:
        """The weights that are not zero."""
        held = self._held
        return held if isinstance(held, CompressedRows) else CompressedRows.of(held)

    @cached_property
    def is_vast(self) -> bool:
        """Whether zeros are too many to store or scan; see `compressed_rows.is_vast`."""
        return is_vast(self.size, self.nnz)

    def rows(self, first: int, end: int) -> "SparseMatrix":
        """The outputs `first` to `end` - 1, which share this matrix's memory."""
        if isinstance(self._held, CompressedRows):
            return SparseMatrix._of(self._held.some_rows(first, end))
        return SparseMatrix._of(self._held[first:end])

    def with_values(self, change: Callable[[FloatArray], FloatArray]) -> "SparseMatrix":
        """The matrix with `change` applied to its weights; zeros must stay zeros."""
        if isinstance(self._held, CompressedRows):
            return SparseMatrix._of(self._held.with_values(change(self._held.values)))
        return SparseMatrix._of(change(self._held))

    @property
    def out_features(self) -> int:
        return int(self._shape[0])

    @property
    def in_features(self) -> int:
        return int(self._shape[1])

    @property
    def size(self) -> int:
        """Number of weights, zeros among them."""
        return self.out_features * self.in_features

    @cached_property
    def nnz(self) -> int:
        """Number of weights that are not zero."""
        held = self._held
        return len(held) if isinstance(held, CompressedRows) else int(np.count_nonzero(held))

    @property
    def density(self) -> float:
        """Share of weights that are not zero, 0 to 1."""
        return self.nnz / self.size

    @cached_property
    def _blocks(self) -> dict[int, tuple[IntArray, IntArray]]:
        """The results of `blocks(rows)` so far, by `rows`."""
        return {}

    @cached_property
    def row_counts(self) -> IntArray:
        """Nonzeros of each output, shape (out_features,)."""
        held = self._held
        if isinstance(held, CompressedRows):
            return np.diff(held.starts)
        return np.count_nonzero(held, axis=1)

    def counts_by_inputs(self, inputs: int) -> npt.NDArray[np.uint16]:
        """Nonzeros of each output by groups of `inputs` inputs side by side: (outputs, groups)."""
        registers = ceil_div(self.in_features, inputs)
        if not isinstance(self._held, CompressedRows):
            if registers < _FEW:
                firsts = range(0, self.in_features, inputs)
                parts = [np.count_nonzero(self._held[:, at : at + inputs], axis=1) for at in firsts]
                return np.stack(parts, axis=1).astype(np.uint16)
            used = np.zeros((self.out_features, registers * inputs), bool)
            used[:, : self.in_features] = self._held != 0
            return used.reshape(self.out_features, registers, inputs).sum(axis=2, dtype=np.uint16)
        cells = self.nonzeros.rows * registers + self.nonzeros.columns // inputs
        counts = np.bincount(cells, minlength=self.out_features * registers)
        return counts.astype(np.uint16).reshape(self.out_features, registers)

    def count_inputs(self, firsts: IntArray) -> int:
        """Number of different inputs that a group of outputs uses, summed over all groups.

        Group i begins at output `firsts[i]` and ends at the next.
        """
        if not self.is_vast:
            return int(np.logical_or.reduceat(self.dense != 0, firsts, axis=0).sum())
        part = np.searchsorted(firsts, self.nonzeros.rows, side="right") - 1
        numbers = part * self.in_features + self.nonzeros.columns
        return count_distinct(numbers, len(firsts) * self.in_features)

    def words(self, inputs: int) -> "SparseMatrix":
        """A matrix (out, groups) that is nonzero where any of `inputs` inputs side by side is.

        Its zeros alone have a meaning, not its values.
        """
        if inputs == 1:
            return self
        columns = ceil_div(self.in_features, inputs)
        if not self.is_vast:
            firsts = np.arange(0, self.in_features, inputs)
            return SparseMatrix._of(np.logical_or.reduceat(self.dense != 0, firsts, axis=1))
        numbers = self.nonzeros.rows * columns + self.nonzeros.columns // inputs
        found, _ = distinct(numbers, self.out_features * columns)
        shape, values = (self.out_features, columns), np.ones(len(found), bool)
        return SparseMatrix._of(CompressedRows.of_numbers(shape, found, values))

    @cached_property
    def int8_steps(self) -> FloatArray:
        """The step of each row as int8, (out_features,): at least its largest magnitude / 127.

        A row of multiples of a coarser step keeps that step, as in a network that was quantised
        with one scale for all rows. The step of whole numbers is 1.
        """
        nonzeros = self.nonzeros
        largest = nonzeros.largest_by_row(np.abs(nonzeros.values))
        steps = np.maximum(largest / np.float32(LARGEST_INT8), np.float32(SMALLEST_SCALE))
        parts = np.abs(nonzeros.values - np.rint(nonzeros.values))
        is_whole = (nonzeros.largest_by_row(parts) == 0) & (largest > 0) & (largest <= LARGEST_INT8)
        steps[is_whole] = 1.0
        others = ~self._are_whole(steps) & (steps > SMALLEST_SCALE)
        for row in np.flatnonzero(others):
            weights = nonzeros.values[nonzeros.starts[row] : nonzeros.starts[row + 1]]
            coarser = _coarser_step(weights, largest[row])
            if coarser is not None:
                steps[row] = coarser
        return steps

    @cached_property
    def is_whole_steps(self) -> bool:
        """Whether int8 holds all weights exactly, up to the rounding of float32."""
        return bool(self._are_whole(self.int8_steps).all())

    def _are_whole(self, steps: FloatArray) -> npt.NDArray[np.bool_]:
        """Whether each row consists of whole numbers of its step, (out_features,)."""
        numbers = self.nonzeros.values / steps[self.nonzeros.rows]
        return self.nonzeros.largest_by_row(np.abs(numbers - np.rint(numbers))) < _OFF_STEP

    def check_fits(self, spec: MatVec) -> None:
        """Raise InvalidInput where weights are beyond the dtype of `spec`.

        With int8 and steps of x, also where the product of the scales overflows.
        """
        if spec.holds_any_weight:
            return
        largest = self.memoised("largest", self._largest)
        if largest is not None:
            weight, row, column = largest
            spec.check_largest_weight(weight, f"weights[{row}, {column}]")

    def _largest(self) -> tuple[float, int, int] | None:
        """The weight of the largest magnitude, its row and its column; None if all are zero."""
        nonzeros = self.nonzeros
        if not len(nonzeros):
            return None
        place = int(np.abs(nonzeros.values).argmax())
        where = int(nonzeros.rows[place]), int(nonzeros.columns[place])
        return float(nonzeros.values[place]), *where

    def block_mask(self, rows: int) -> npt.NDArray[np.bool_]:
        """Whether each (rows, 1) block holds a nonzero: shape (ceil(out / rows), in_features)."""
        padded = np.zeros((round_up(self.out_features, rows), self.in_features), bool)
        padded[: self.out_features] = self.dense != 0
        return np.any(padded.reshape(-1, rows, self.in_features), axis=1)

    def blocks(self, rows: int) -> tuple[IntArray, IntArray]:
        """Block row and input of each (rows, 1) block that holds a nonzero, row after row."""
        if rows not in self._blocks:
            if self.is_vast:
                nonzeros = self.nonzeros
                numbers = nonzeros.rows // rows * self.in_features + nonzeros.columns
                found, _ = distinct(numbers, self.size)
            else:
                found = np.flatnonzero(self.block_mask(rows))  # `np.nonzero` is slow in 2-d
            block_row, column = np.divmod(found, self.in_features)
            self._blocks[rows] = block_row, column
        return self._blocks[rows]

    def block_count(self, rows: int) -> int:
        """Number of (rows, 1) blocks that hold a nonzero."""
        return len(self.blocks(rows)[0])

    def block_fill(self, rows: int) -> float:
        """Share of nonzeros among the elements of (rows, 1) blocks that hold any; 1 if full."""
        blocks = self.block_count(rows)
        return self.nnz / (blocks * rows) if blocks else 1.0

    def zero_bits(self) -> bytes:
        """A bit for each weight that is zero, row after row, as `numpy.packbits` packs them."""
        return self.memoised("zero bits", self._zero_bits)

    def _zero_bits(self) -> bytes:
        if not self.is_vast:
            return np.packbits(self.dense == 0).tobytes()
        place = self.nonzeros.rows * self.in_features + self.nonzeros.columns
        bits = np.full(ceil_div(self.size, 8), 0xFF, np.uint8)
        bits[-1] = 0xFF << -self.size % 8 & 0xFF
        np.bitwise_xor.at(bits, place // 8, (0x80 >> place % 8).astype(np.uint8))
        return bits.tobytes()

    def statistics(self) -> dict[str, Any]:
        """Shape, nnz, density and block fill, for reports."""
        return {
            "out_features": self.out_features,
            "in_features": self.in_features,
            "nnz": self.nnz,
            "density": self.density,
            "fill_1x8": self.block_fill(8),
            "fill_1x16": self.block_fill(16),
        }


def _finite(weights: "npt.NDArray[Any] | CompressedRows") -> "FloatArray | CompressedRows":
    """A copy as float32. Raises InvalidInput for values that float32 cannot hold."""
    given = weights.values if isinstance(weights, CompressedRows) else weights
    with np.errstate(over="ignore"):
        values = np.array(given, np.float32, order="C")
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        place = tuple(bad[0].tolist())
        row, column = weights.place(*place) if isinstance(weights, CompressedRows) else place
        raise InvalidInput(
            f"weights[{row}, {column}] is {given[place]} (of {len(bad)} values that "
            "float32 cannot hold); remove NaN and infinite weights before compiling"
        )
    if isinstance(weights, CompressedRows):
        return weights.with_values(values)
    values.flags.writeable = False
    return values


def _coarser_step(weights: FloatArray, largest: np.float32) -> np.float32 | None:
    """The least step of which all weights are whole multiples, at most 126 of it, or None."""
    steps = largest / np.arange(LARGEST_INT8 - 1, 0, -1, dtype=np.float32)
    for part in (weights[:_SAMPLE], weights):
        numbers = part / steps[:, None]
        steps = steps[np.abs(numbers - np.rint(numbers)).max(axis=1) < _OFF_STEP]
        if not len(steps):
            return None
    return np.float32(steps[0])
