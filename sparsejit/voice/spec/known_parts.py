"""Features of a sample as a sum of parts, so that products cost as little as possible.

Parts that change only with the frame are multiplied once a frame; a scalar multiplies one column.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from sparsejit.ir.values import Value

DoubleArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Features:
    """constant + sum of column * scalar + rows of tables + W c of conditioning + computed.

    constant and columns are (n,), tables (rows, n), W (n, size of c); `computed` is (n,), with
    magnitudes up to `largest`, where that is known.
    """

    constant: DoubleArray
    scaled: tuple[tuple[Value, DoubleArray], ...] = ()
    rows: tuple[tuple[Value, DoubleArray], ...] = ()
    conditioning: Mapping[str, DoubleArray] = field(default_factory=dict)
    computed: Value | None = None
    largest: float | None = None

    @classmethod
    def of_computed(cls, value: Value, largest: float | None = None) -> Features:
        """Features that a layer computed."""
        return cls(np.zeros(value.shape[0]), computed=value, largest=largest)

    @classmethod
    def of_conditioning(cls, name: str, size: int) -> Features:
        return cls(np.zeros(size), conditioning={name: np.eye(size)})

    @property
    def size(self) -> int:
        return len(self.constant)

    @property
    def known(self) -> Features:
        """The features without the computed part."""
        return replace(self, computed=None, largest=None)

    @property
    def is_zero(self) -> bool:
        """Whether there are no parts, and the constant is zero."""
        some = self.scaled or self.rows or self.conditioning or self.computed
        return not some and not self.constant.any()

    def product(self, matrix: DoubleArray) -> Features:
        """matrix (m, n) times all parts but the computed one."""
        return Features(
            matrix @ self.constant,
            tuple((scalar, matrix @ column) for scalar, column in self.scaled),
            tuple((index, table @ matrix.T) for index, table in self.rows),
            {name: matrix @ weights for name, weights in self.conditioning.items()},
        )

    def picked(self, order: npt.NDArray[np.intp]) -> Features:
        """The features in another order; they must have no computed part."""
        return Features(
            self.constant[order],
            tuple((scalar, column[order]) for scalar, column in self.scaled),
            tuple((index, table[:, order]) for index, table in self.rows),
            {name: weights[order] for name, weights in self.conditioning.items()},
        )

    def plus(self, other: Features) -> Features:
        """The sum of both, of which at most one has a computed part."""
        both = dict(self.conditioning)
        for name, weights in other.conditioning.items():
            both[name] = both[name] + weights if name in both else weights
        return Features(
            self.constant + other.constant,
            _summed(self.scaled + other.scaled),
            _summed(self.rows + other.rows),
            both,
            self.computed or other.computed,
            other.largest if self.computed is None else self.largest,
        )


def _summed(
    parts: tuple[tuple[Value, DoubleArray], ...],
) -> tuple[tuple[Value, DoubleArray], ...]:
    """The parts with one array for each value: arrays of the same value are added."""
    sums: dict[Value, DoubleArray] = {}
    for value, array in parts:
        sums[value] = sums[value] + array if value in sums else array
    return tuple(sums.items())


def columns_of(
    matrix: DoubleArray, parts: Sequence[Features]
) -> Iterator[tuple[Features, DoubleArray]]:
    """Each part of a concatenation with the matrix's columns for it."""
    ends = np.cumsum([part.size for part in parts])
    yield from zip(parts, np.split(matrix, ends[:-1], axis=1), strict=True)
