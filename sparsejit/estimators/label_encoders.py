"""Encoders of labels: y, which is one column of words or numbers, becomes codes or flags.

    column_of_labels   an encoder behind an OrdinalEncoder of its classes, whose codes it reads

A label that the fit did not see is refused, as by a LabelEncoder. A LabelBinarizer makes zeros of
it, in a number of columns that depends on the other labels of the call.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.model_table import Model
from sparsejit.estimators.writer import EstimatorWriter, Write
from sparsejit.frontends.writing.arranging import reshaped
from sparsejit.ir.values import Array, Element, Value

_EXACT = 2**53  # float64 holds the whole numbers below


def column_of_labels(estimator: Any) -> Any:
    """The pipeline of an encoder of labels, whose X is y (samples, 1); other estimators unchanged.

    Raises InvalidInput for labels without codes.
    """
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OrdinalEncoder

    if type(estimator).__name__ not in LABEL_ENCODERS:
        return estimator
    classes = _classes(estimator)
    codes = OrdinalEncoder(categories=[classes]).fit(classes[:, None])
    counting = copy.copy(estimator)
    counting.n_features_in_ = 1
    return Pipeline([("codes", codes), ("labels", counting)])


def _classes(estimator: Any) -> Array:
    kind = type(estimator).__name__
    if not hasattr(estimator, "classes_"):
        raise InvalidInput(f"the {kind} is not fitted; call its fit(y) first")
    classes = np.asarray(estimator.classes_)
    if str(getattr(estimator, "y_type_", "")).startswith("multilabel"):
        raise InvalidInput(f"the {kind} was fitted to several labels each; fit it to one column")
    if any(each is None or each != each for each in classes.tolist()):
        raise InvalidInput(f"the {kind} has a missing value among its classes; fit it without")
    if classes.dtype.kind in "iu" and max(map(abs, classes.tolist()), default=0) >= _EXACT:
        raise InvalidInput(
            f"the {kind} has classes from {_EXACT} on, which float64 does not tell apart; fit it "
            "to strings"
        )
    if kind == "LabelBinarizer" and len(classes) < 2:
        raise InvalidInput(f"the {kind} has {len(classes)} classes; fit it to two or more")
    return classes


def _codes(estimator: Any) -> dict[str, Write]:
    """The places of labels in the classes."""

    def transform(writer: EstimatorWriter) -> Value:
        return writer.cast(reshaped(writer, writer.columns(), (writer.batch,)), Element.INT64)

    return {"transform": transform}


def _flags(estimator: Any) -> dict[str, Write]:
    """1 in the column of each label's class, or in the only column for the second of two."""
    count = len(estimator.classes_)
    own = np.arange(count, dtype=np.float64)[None] if count > 2 else np.ones((1, 1))

    def transform(writer: EstimatorWriter) -> Value:
        numbers = writer.constant(own, "classes")
        f = writer.at("flags").formula("flags")
        is_own = f("equal", writer.columns(), numbers)
        made = f.finish(f("where", is_own, 1.0, 0.0), shape=(writer.batch, own.shape[1]))
        return writer.cast(made, Element.INT64)

    return {"transform": transform}


LABEL_ENCODERS = {
    "LabelBinarizer": Model(
        _flags, labels=lambda each: np.array([each.neg_label, each.pos_label], np.int64)
    ),
    "LabelEncoder": Model(_codes, labels=lambda each: np.arange(len(each.classes_))),
}
