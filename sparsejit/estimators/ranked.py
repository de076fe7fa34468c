"""A step from ranks to numbers that rise with them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sparsejit.ir.values import Array


class Ranked:
    """A step whose column j has tables[j][x] for x = 0, 1, ...; NaN stays NaN.

    Tables are ascending, so that no column ever decreases; numbers between ranks are rounded down.
    """

    def __init__(self, tables: Sequence[Array]) -> None:
        self.tables = tuple(tables)
        self.n_features_in_ = len(self.tables)

    def transform(self, x: Array) -> Array:
        """The numbers for ranks x (rows, columns), float64."""
        found = np.full(x.shape, np.nan)
        for number, table in enumerate(self.tables):
            column = np.asarray(x[:, number], np.float64)
            there = ~np.isnan(column)
            places = np.clip(np.floor(column[there]), 0, len(table) - 1).astype(np.int64)
            found[there, number] = table[places]
        return found
