"""Columns and components that nothing reads are not computed, and `explain` says so."""

from typing import Any

import numpy as np
import pytest

import sparsejit

pytest.importorskip("sklearn")
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import Lasso, LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

from sparsejit.estimators.graphs import read_estimator
from sparsejit.ir.ops.columns import DoubleProduct, ScaledColumns

RNG = np.random.default_rng(0)
X = np.column_stack([RNG.standard_normal((200, 6)), RNG.integers(0, 8, (200, 2))])
SCORE = X[:, 0] + (X[:, 6] == 3) + 0.1 * RNG.standard_normal(200)
ENCODED = ColumnTransformer(
    [("codes", OneHotEncoder(handle_unknown="ignore"), [6, 7]), ("rest", StandardScaler(), [0, 1])],
    sparse_threshold=0,
)


def _columns(pipeline: Any, kind: type[Any]) -> int:
    """The columns that the pipeline's only operator of a kind computes."""
    graph = read_estimator(pipeline).graphs(1)["predict"]
    (node,) = (node for node in graph.nodes if isinstance(node.op, kind))
    return int(node.output.shape[1])


def _check(pipeline: Any) -> str:
    compiled = sparsejit.compile(pipeline)
    wanted = pipeline.predict(X)
    assert np.abs(compiled.predict(X) - wanted).max() <= 2e-6 * max(1, np.abs(wanted).max())
    return str(compiled.explain("predict"))


def test_columns_with_weights_of_zero() -> None:
    pipeline = make_pipeline(ENCODED, Lasso(0.05)).fit(X, SCORE)
    kept = np.count_nonzero(pipeline[-1].coef_)
    assert 0 < kept < 18
    assert _columns(pipeline, ScaledColumns) == kept
    assert f"{18 - kept} of 18 columns are not computed" in _check(pipeline)


def test_a_model_without_any_weight() -> None:
    pipeline = make_pipeline(ENCODED, Lasso(1e3)).fit(X, SCORE)
    assert not pipeline[-1].coef_.any()
    _check(pipeline)


def test_all_weights_stay() -> None:
    pipeline = make_pipeline(ENCODED, Ridge()).fit(X, SCORE)
    assert _columns(pipeline, ScaledColumns) == 18
    assert "not computed" not in _check(pipeline)


def test_a_selection_goes_through_encoders_and_scalers() -> None:
    pipeline = make_pipeline(ENCODED, MinMaxScaler(clip=True), SelectKBest(k=3), Ridge())
    assert _columns(pipeline.fit(X, SCORE), ScaledColumns) == 3
    _check(pipeline)


def test_a_selection_goes_into_components() -> None:
    pipeline = make_pipeline(StandardScaler(), PCA(6, whiten=True), SelectKBest(k=2), Ridge())
    pipeline.fit(X, SCORE)
    products = [
        node.output.shape[1]
        for node in read_estimator(pipeline).graphs(1)["predict"].nodes
        if isinstance(node.op, DoubleProduct)
    ]
    assert products[0] == 2
    assert "2 of the 6 of the PCA are computed" in _check(pipeline)


def test_columns_of_a_classifier_of_several_classes() -> None:
    y = np.digitize(SCORE, [0, 1])
    lasso = LogisticRegression(C=0.02, l1_ratio=1, solver="saga", max_iter=50)
    pipeline = make_pipeline(ENCODED, lasso).fit(X, y)
    used = pipeline[-1].coef_.any(axis=0).sum()
    assert 0 < used < 18
    compiled = sparsejit.compile(pipeline)
    report = str(compiled.explain("predict_proba"))
    assert f"{18 - used} of 18 columns are not computed" in report
    found, wanted = compiled.predict_proba(X), pipeline.predict_proba(X)
    assert np.abs(found - wanted).max() <= 1e-6
