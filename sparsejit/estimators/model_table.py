"""The record of a model with mathematics of its own: how its methods are written."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sparsejit.estimators.double_values import single
from sparsejit.estimators.writer import EstimatorWriter, Write
from sparsejit.ir.values import Array, Value


def _none(estimator: Any) -> Mapping[str, Write]:
    return {}


def _rounded(write: Write, writer: EstimatorWriter) -> Value:
    return single(writer, write(writer))


@dataclass(frozen=True)
class Model:
    """A kind of estimator.

    `methods` gives the functions that write its methods, from the current columns; `transform` the
    function that writes its columns, so that it may stand before others, or None; `labels` the
    results of `predict` by place, where they are not `classes_`; `least` the least number that X
    may have, of models that refuse others.
    """

    methods: Callable[[Any], Mapping[str, Write]] = _none
    transform: Callable[[Any], Write | None] | None = None
    labels: Callable[[Any], Array] | None = None
    least: Callable[[Any], float] | None = None

    def all_methods(self, estimator: Any) -> dict[str, Write]:
        """Functions that write each method of an estimator, by name."""
        found = dict(self.methods(estimator))
        write = None if self.transform is None else self.transform(estimator)
        if write is not None:
            found["transform"] = partial(_rounded, write)
        return found


def places(count: int) -> Array:
    """The numbers of clusters, from 0 to `count` - 1, in scikit-learn's dtype."""
    return np.arange(count, dtype=np.int32)
