"""Columns of texts in a ColumnTransformer, against scikit-learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("treelite")
pandas = pytest.importorskip("pandas")
xgboost = pytest.importorskip("xgboost")
from sklearn.compose import ColumnTransformer  # noqa: E402
from sklearn.decomposition import TruncatedSVD  # noqa: E402
from sklearn.ensemble import RandomForestClassifier  # noqa: E402
from sklearn.feature_extraction.text import (  # noqa: E402
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)
from sklearn.kernel_approximation import AdditiveChi2Sampler  # noqa: E402
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.naive_bayes import MultinomialNB  # noqa: E402
from sklearn.neighbors import KNeighborsClassifier  # noqa: E402
from sklearn.neural_network import MLPClassifier  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import (  # noqa: E402
    KBinsDiscretizer,
    MaxAbsScaler,
    OneHotEncoder,
    StandardScaler,
)

import sparsejit  # noqa: E402
from sparsejit.errors import DamagedFile, InvalidInput  # noqa: E402
from sparsejit.estimators.compiled_estimator import CompiledEstimator  # noqa: E402
from sparsejit.estimators.source import estimator_to_data, read_estimator_file  # noqa: E402

GENERATOR = np.random.default_rng(1)
ROWS = 90
WORDS = ["Red", "blue", "the", "a", "straße", "naïve", "x1", "don't", "GREEN", "b"]


def texts(count: int) -> list[str]:
    return [" ".join(GENERATOR.choice(WORDS, GENERATOR.integers(0, 9))) for _ in range(count)]


FRAME = pandas.DataFrame(
    {
        "n1": GENERATOR.standard_normal(ROWS).round(2),
        "text": texts(ROWS),
        "city": GENERATOR.choice(["Bern", "Rome", "Oslo"], ROWS),
        "title": texts(ROWS),
        "unread": ["any"] * ROWS,
        "n2": GENERATOR.integers(0, 9, ROWS),
    }
)
CLASSES = np.array(["red" in text.lower() for text in FRAME["text"]]) ^ (FRAME["n1"] > 0.5)
CLASSES = CLASSES.to_numpy().astype(int)
CODES = ("codes", OneHotEncoder(handle_unknown="ignore"), ["city"])
NUMBERS = ("numbers", StandardScaler(), ["n1", "n2"])


def columns(*texts: tuple[str, Any, Any], **more: Any) -> Any:
    return ColumnTransformer([*texts, CODES, NUMBERS], **more)


TFIDF = columns(("text", TfidfVectorizer(), "text"))
TWO = ColumnTransformer(
    [
        NUMBERS,
        ("text", TfidfVectorizer(ngram_range=(1, 2)), "text"),
        CODES,
        ("title", CountVectorizer(analyzer="char_wb", ngram_range=(2, 3)), "title"),
    ]
)
HASHED = columns(("text", HashingVectorizer(n_features=64), "text"))
PIPELINES: dict[str, Any] = {
    "weights": make_pipeline(TFIDF, LogisticRegression()),
    "sparse": make_pipeline(
        columns(("text", TfidfVectorizer(), "text"), sparse_threshold=1), LogisticRegression()
    ),
    "two": make_pipeline(TWO, LogisticRegression()),
    "scaled": make_pipeline(TWO, MaxAbsScaler(), SGDClassifier(random_state=0)),
    "shifted": make_pipeline(columns(("t", CountVectorizer(), "text")), StandardScaler(), Ridge()),
    "hashed": make_pipeline(HASHED, Ridge()),
    "perceptron": make_pipeline(TFIDF, MLPClassifier([5], max_iter=50, random_state=0)),
    "boosted": make_pipeline(TFIDF, xgboost.XGBClassifier(n_estimators=5, n_jobs=1)),
    "boosted, sparse": make_pipeline(
        columns(("text", TfidfVectorizer(), "text"), sparse_threshold=1),
        xgboost.XGBClassifier(n_estimators=5, n_jobs=1),
    ),
    "forest": make_pipeline(TFIDF, RandomForestClassifier(9, random_state=0)),
    "neighbours": make_pipeline(TFIDF, KNeighborsClassifier(3)),
    "components": make_pipeline(
        columns(("t", make_pipeline(TfidfVectorizer(), TruncatedSVD(3, random_state=0)), "text")),
        LogisticRegression(),
    ),
    "apart": make_pipeline(
        columns(("t", make_pipeline(CountVectorizer(), TfidfTransformer()), "text")), Ridge()
    ),
    "searched": GridSearchCV(make_pipeline(TFIDF, LogisticRegression()), {}, cv=2),
    "bins": make_pipeline(
        ColumnTransformer([
            ("text", TfidfVectorizer(), "text"),
            ("bins", KBinsDiscretizer(3, quantile_method="averaged_inverted_cdf"), ["n1"]),
        ]),
        LogisticRegression(),
    ),
    "bayes": make_pipeline(
        ColumnTransformer([("text", CountVectorizer(), "text"), CODES]), MultinomialNB()
    ),
    "alone": columns(("text", TfidfVectorizer(), "text")),
}
OF_COUNTS = {"boosted", "boosted, sparse", "shifted", "forest", "neighbours", "bins", "alone"}
IN_SEVERAL_DTYPES = {"scaled", "shifted", "components"}  # of a frame of float32


def same(estimator: Any, compiled: CompiledEstimator, given: Any, wanted: Any = None) -> None:
    for method in set(compiled.methods) - {"predict_log_proba"}:
        found = getattr(compiled, method)(given)
        own = getattr(estimator, method)(given if wanted is None else wanted)
        own = own.toarray() if hasattr(own, "toarray") else np.asarray(own)
        most = 2e-6 * max(1.0, float(np.abs(own).max()))
        np.testing.assert_allclose(found, own, rtol=0, atol=most)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PIPELINES)
def test_before_models(name: str, tmp_path: Path) -> None:
    """Rows of frames, in any order of columns; float32 numbers; words that nobody saw; a file."""
    estimator = PIPELINES[name].fit(FRAME, CLASSES)
    compiled = sparsejit.compile(estimator, FRAME)
    compiled.save(tmp_path / "e.sjit")
    again = sparsejit.load(tmp_path / "e.sjit")
    others = FRAME[:7].assign(text=["", "Ωμέγα red", "a\0b", "unseen", "  ", "RED red", "x" * 99])
    short = FRAME.astype({"n1": np.float32, "n2": np.float32})
    if name in IN_SEVERAL_DTYPES:
        with pytest.raises(InvalidInput, match="each part in its own dtype"):
            compiled.predict(short)
        short = FRAME
    for rows in (FRAME, FRAME[3:4], others, short, FRAME[FRAME.columns[::-1]]):
        same(estimator, compiled, rows)
        first = compiled.methods[0]
        found, loaded = (getattr(each, first)(rows) for each in (compiled, again))
        np.testing.assert_array_equal(found, loaded)
    same(estimator, compiled, FRAME.iloc[5], FRAME[5:6])
    usual = str(compiled.explain())
    assert ("counts that are not zero" in usual) == (name not in OF_COUNTS)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["two", "forest"])
def test_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than counts are kept for at the same time."""
    estimator = PIPELINES[name].fit(FRAME, CLASSES)
    whole = sparsejit.compile(estimator).predict_proba(FRAME)
    monkeypatch.setattr("sparsejit.estimators.compiled_estimator._COUNTS", 7)
    monkeypatch.setattr("sparsejit.estimators.text._PART", 50)
    compiled = sparsejit.compile(estimator)
    for rows in (FRAME, FRAME[::-1], FRAME):
        wanted = whole if rows is FRAME else whole[::-1]
        np.testing.assert_allclose(compiled.predict_proba(rows), wanted, atol=1e-7)


def test_arrays_of_objects() -> None:
    X = FRAME[["n1", "text", "n2"]].to_numpy(object)
    parts = [("text", TfidfVectorizer(), 1), ("numbers", StandardScaler(), [0, 2])]
    estimator = make_pipeline(ColumnTransformer(parts), LogisticRegression()).fit(X, CLASSES)
    compiled = sparsejit.compile(estimator)
    same(estimator, compiled, X)
    same(estimator, compiled, X[:1])


@pytest.mark.parametrize("missing", [None, np.nan, 3])
def test_other_things_than_texts_are_named(missing: Any) -> None:
    compiled = sparsejit.compile(PIPELINES["weights"].fit(FRAME, CLASSES))
    rows = FRAME.astype({"text": object})[:3]
    rows.loc[1, "text"] = missing
    with pytest.raises(InvalidInput, match="among its texts; give strings"):
        compiled.predict(rows)
    with pytest.raises(InvalidInput, match="add text"):
        compiled.predict(FRAME.drop(columns="text"))
    with pytest.raises(InvalidInput, match="no samples"):
        compiled.predict(FRAME[:0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("reader", "model", "message"),
    [
        (CountVectorizer(tokenizer=str.split), Ridge(), "code of its own for tokenizer"),
        (HashingVectorizer(n_features=9), AdditiveChi2Sampler(), "refuses some counts"),
        (HashingVectorizer(n_features=9), xgboost.XGBRegressor(n_estimators=2), "signs cancel"),
        (make_pipeline(make_pipeline(TfidfVectorizer())), Ridge(), "inside of a pipeline"),
    ],
)
def test_columns_that_are_refused(reader: Any, model: Any, message: str) -> None:
    estimator = make_pipeline(ColumnTransformer([("text", reader, "text")]), model)
    positive = FRAME.assign(text=["green"] * ROWS)  # whose hash is not negative
    estimator.fit(positive if isinstance(model, AdditiveChi2Sampler) else FRAME, CLASSES)
    with pytest.raises(InvalidInput, match=message):
        sparsejit.compile(estimator)


def test_damaged_columns_of_texts_are_refused() -> None:
    compiled = sparsejit.compile(PIPELINES["weights"].fit(FRAME, CLASSES))
    header, tensors = estimator_to_data(compiled._source)
    read_estimator_file(header, tensors)
    ((feature, reader),) = header["texts"]
    for changed in (
        [[99, reader]],
        [[feature, {**reader, "words": reader["words"][1:], "weights": reader["weights"][1:]}]],
        [[feature, {**reader, "pattern": "("}]],
        [[feature, None]],
        [feature],
        "text",
    ):
        with pytest.raises(DamagedFile):
            read_estimator_file({**header, "texts": changed}, tensors)
