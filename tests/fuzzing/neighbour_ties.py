"""Answers of KNeighbors* where rows of the fit are equally far, of which any may be taken.

    row 7's distances   0.5  1.0  1.0  1.0  2.0      3 neighbours
                        sure tied tied tied far      one sure, any two of three
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from math import comb
from typing import Any

import numpy as np

from sparsejit.ir.values import Array

# Squared distances this near, of the squares that a library adds and subtracts, count as equal.
_SAME = 1e-12
_MOST_CHOICES = 200_000
_CLOSE = 1e-6


def explained(model: Any, columns: Any, method: str, found: Array) -> Array:
    """Whether each row of a model's results is one that some choice among tied rows gives.

    `columns` are the model's X. Rows without ties are never explained.
    """
    known = _dense(model._fit_X)
    x = _dense(columns)
    targets = np.asarray(model._y).reshape(len(known), -1)
    return np.array(
        [
            any(_same(model, method, own, answer) for own in _chosen(row, known, targets, model))
            for row, answer in zip(x, found, strict=True)
        ]
    )


def _dense(columns: Any) -> Array:
    made = columns.toarray() if hasattr(columns, "toarray") else columns
    return np.asarray(made, np.float64)


def _chosen(row: Array, known: Array, targets: Array, model: Any) -> Iterable[Array]:
    """The targets of the neighbours, for each choice among tied rows; none without ties."""
    count = model.n_neighbors
    away = ((known - row) ** 2).sum(axis=1)
    last = np.sort(away)[count - 1]
    near = _SAME * ((row**2).sum() + (known**2).sum(axis=1).max())
    sure = targets[away < last - near]
    tied = targets[np.abs(away - last) <= near]
    left = count - len(sure)
    if len(tied) == left or comb(len(tied), left) > _MOST_CHOICES:
        return []
    choices = {tuple(sorted(each)) for each in combinations(map(tuple, tied.tolist()), left)}
    return (np.concatenate([sure, np.reshape(each, (left, -1))]) for each in choices)


def _same(model: Any, method: str, targets: Array, answer: Any) -> bool:
    """Whether these neighbours give an answer."""
    if not hasattr(model, "classes_"):
        size = max(float(np.abs(model._y).max()), 1e-3)
        return bool(np.abs(targets.mean(axis=0) - answer).max() <= _CLOSE * size)
    votes = np.bincount(targets[:, 0].astype(int), minlength=len(model.classes_))
    if method == "predict":
        return bool(model.classes_[votes.argmax()] == answer)
    with np.errstate(divide="ignore"):
        shares = votes / votes.sum()
        wanted = np.log(shares) if method == "predict_log_proba" else shares
    return bool(np.allclose(wanted, answer, rtol=0, atol=_CLOSE))
