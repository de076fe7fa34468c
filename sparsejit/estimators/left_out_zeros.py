"""Zeros that a sparse X does not store: NaN where XGBoost itself reads the sparse X, else 0.

Trees of scikit-learn treat NaN in a sparse matrix otherwise than in a dense one: all refuse it but
an IsolationForest, which goes to the right there.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import takewhile
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.column_steps import each_step
from sparsejit.estimators.forest_probes import accepting, transformed
from sparsejit.estimators.forests import is_forest
from sparsejit.estimators.parts import Link, Stack, is_mixing
from sparsejit.estimators.traced_functions import is_function
from sparsejit.ir.values import Array

# Steps whose results differ for a sparse matrix: they multiply by the reciprocal of the scale, to
# other last bits; quantiles are of stored numbers alone.
_OTHER_NUMBERS = ("MaxAbsScaler", "QuantileTransformer", "RobustScaler", "StandardScaler")


class LeftOut(Enum):
    """The number that a graph reads for each zero that a sparse X does not store.

    With ZERO it reads 0, with MISSING NaN. With BOTH it reads X twice, (samples, 2 features): the
    first half has 0 there, the second NaN. REFUSED and ROUNDED take no sparse X: with REFUSED a
    step or estimator takes none, with ROUNDED a forest compares sums of numbers that steps round
    differently in a sparse matrix.
    """

    ZERO = "zero"
    MISSING = "missing"
    BOTH = "both"
    REFUSED = "refused"
    ROUNDED = "rounded"


def left_out_of(chains: Sequence[Sequence[Any]], features: int) -> LeftOut:
    """Return the `LeftOut` that an estimator needs for all its chains of steps.

    Each chain leads from X to an estimator that predicts. If one is REFUSED or ROUNDED, so is the
    result; chains that differ otherwise need BOTH.
    """
    kinds = {_of_chain(chain, features) for chain in chains}
    for none in (LeftOut.REFUSED, LeftOut.ROUNDED):
        if none in kinds:
            return none
    return kinds.pop() if len(kinds) == 1 else LeftOut.BOTH


def _of_chain(chain: Sequence[Any], features: int) -> LeftOut:
    links = [number for number, step in enumerate(chain) if isinstance(step, Link)]
    if links:
        return _of_link(chain[: links[0]], chain[links[0]], chain[links[0] + 1 :], features)
    *before, last = chain
    if any(map(is_function, each_step(chain))):
        return LeftOut.REFUSED
    steps = list(takewhile(lambda step: not isinstance(step, Stack), before))
    try:
        reaches = not steps or _stays_sparse(steps, features)
    except (TypeError, ValueError):  # a step that takes no sparse matrix
        return LeftOut.REFUSED
    is_last = len(steps) == len(before)
    if is_last and reaches and not _takes_sparse(last):
        return LeftOut.REFUSED
    is_extreme = type(last).__module__.startswith("xgboost")
    if is_last and reaches and is_extreme and any(map(_drops_zeros, each_step(steps))):
        return LeftOut.REFUSED
    if is_forest(last) and any(type(step).__name__ in _OTHER_NUMBERS for step in each_step(steps)):
        return LeftOut.ROUNDED if any(map(is_mixing, steps)) else LeftOut.BOTH
    if not (is_last and reaches and is_extreme):
        return LeftOut.ZERO
    return LeftOut.BOTH if steps else LeftOut.MISSING


def trees_read_sparse(chain: Sequence[Any], features: int, is_sparse: bool) -> bool:
    """Whether trees of scikit-learn at the end of a chain read a sparse matrix.

    `is_sparse`: of an X that is sparse.
    """
    from scipy.sparse import csr_matrix

    *steps, last = chain
    is_tree = is_forest(last) and type(last).__module__.startswith("sklearn")
    if not is_tree or any(isinstance(step, Stack) for step in steps):
        return False
    row = np.zeros((1, features))
    try:
        return transformed(accepting(steps), csr_matrix(row) if is_sparse else row).is_sparse
    except (TypeError, ValueError):  # a step that takes no sparse matrix
        return False


def _drops_zeros(step: Any) -> bool:
    """Whether a step leaves out the zeros that it makes of a sparse matrix's numbers."""
    return type(step).__name__ == "Binarizer"


def _takes_sparse(estimator: Any) -> bool:
    """Whether an estimator takes a sparse matrix.

    A support vector machine does if it was fitted to one; a model of neighbours does unless it
    searches a tree.
    """
    if type(estimator).__module__.split(".")[0] != "sklearn":
        return True
    from sklearn.utils import get_tags

    searching = getattr(estimator, "nn_fit", None) or getattr(estimator, "nbrs_", estimator)
    has_tree = getattr(searching, "_fit_method", "") in ("ball_tree", "kd_tree")
    is_dense = has_tree or not getattr(estimator, "_sparse", True)
    return bool(get_tags(estimator).input_tags.sparse) and not is_dense


def _of_link(
    before: Sequence[Any], link: Link, behind: Sequence[Any], features: int
) -> LeftOut:
    """Return the `LeftOut` of a chain of steps with a `Link`, which joins predictions to X.

    `before` are the steps before the link, `behind` the steps and the estimator behind it. If X is
    still sparse at the link, an estimator that needs more than ZERO makes the result ROUNDED.
    """
    try:
        reaches = not before or _stays_sparse(before, features)
    except (TypeError, ValueError):
        return LeftOut.REFUSED
    if not reaches:
        return LeftOut.ZERO
    found = _of_chain(behind, link.n_features_out)
    return found if found in (LeftOut.ZERO, LeftOut.REFUSED) else LeftOut.ROUNDED


def _stays_sparse(steps: Sequence[Any], features: int) -> bool:
    """Whether steps turn a sparse matrix into a sparse matrix.

    Raises TypeError or ValueError where a step takes no sparse matrix.
    """
    from scipy.sparse import csr_matrix

    return transformed(steps, csr_matrix((1, features))).is_sparse


def dense(X: Any, name: str, reading: LeftOut) -> Array:
    """Return the array that graphs read for a sparse X; for BOTH, its first half.

    X and the array are (samples, features). Raises InvalidInput where the estimator `name` refuses
    a sparse X, and for duplicate entries.
    """
    if reading is LeftOut.REFUSED:
        raise InvalidInput(f"X is sparse, which the {name} does not take; give X.toarray()")
    if reading is LeftOut.ROUNDED:
        raise InvalidInput(
            f"X is sparse, in which steps before the {name} round numbers otherwise, and a forest "
            "compares their sums to the last bit; give X.toarray()"
        )
    _check_entries(X)
    if reading is not LeftOut.MISSING:
        return np.asarray(X.toarray())
    dtype = X.dtype if X.dtype.kind == "f" else np.float32
    return np.where(_is_stored(X), X.toarray(), np.nan).astype(dtype)


def both(X: Any, zeros: Array) -> Array:
    """Return the array for BOTH: `zeros`, and beside it X with NaN for each zero it left out."""
    missing = np.where(_is_stored(X), zeros, np.nan).astype(zeros.dtype)
    return np.concatenate([zeros, missing], axis=1)


def _is_stored(X: Any) -> Array:
    entries = X.tocoo()
    stored = np.zeros(X.shape, bool)
    stored[entries.coords if hasattr(entries, "coords") else (entries.row, entries.col)] = True
    return stored


def _check_entries(X: Any) -> None:
    if getattr(X, "has_canonical_format", True) or X.format not in ("csr", "csc"):
        return
    once = X.copy()
    once.sum_duplicates()
    if once.nnz != X.nnz:
        raise InvalidInput("X has two numbers in one place; call X.sum_duplicates() first")
