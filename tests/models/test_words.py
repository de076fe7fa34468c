"""Encoders of words, in frames and arrays of objects, against scikit-learn."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("treelite")
pandas = pytest.importorskip("pandas")

from scipy.sparse import csr_matrix  # noqa: E402
from sklearn.compose import ColumnTransformer, make_column_transformer  # noqa: E402
from sklearn.ensemble import (  # noqa: E402
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.linear_model import LogisticRegression, Ridge  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import (  # noqa: E402
    LabelBinarizer,
    LabelEncoder,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)

import sparsejit  # noqa: E402
from sparsejit.errors import InvalidInput  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = 90
Generator = np.random.Generator
# Kinds of columns, with values that a fit may see, and one that it does not see.
KINDS = {
    "words": (["red", "green", "blue", "a b", "é"], "unseen"),
    "objects": (["red", "green", None, "blue"], "unseen"),
    "flags": ([True, False], False),
    "whole": ([3, 1, 7, -2, 1000], 5),
    "floats": ([0.5, 1.25, -3.0, 0.1], 0.3),
    "codes": (["x", "y", "z"], None),
}
ENCODERS = [
    lambda g: OneHotEncoder(handle_unknown=g.choice(["ignore", "error"])),
    lambda g: OneHotEncoder(drop="first", handle_unknown="ignore", sparse_output=False),
    lambda g: OneHotEncoder(drop="if_binary", dtype=np.float32),
    lambda g: OneHotEncoder(min_frequency=20, handle_unknown="infrequent_if_exist"),
    lambda g: OneHotEncoder(max_categories=2, handle_unknown="ignore", drop="first"),
    lambda g: OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    lambda g: OrdinalEncoder(encoded_missing_value=-5),
    lambda g: OrdinalEncoder(
        max_categories=2, handle_unknown="use_encoded_value", unknown_value=50
    ),
    lambda g: TargetEncoder(smooth=float(g.choice([1.0, 10.0]))),
]


def column(generator: Generator, kind: str, missing: bool, unseen: bool) -> Any:
    """A column of a kind; some values are missing or were not seen."""
    known, other = KINDS[kind]
    values = np.array([known[n] for n in generator.integers(0, len(known), ROWS)], object)
    if unseen:
        values[generator.random(ROWS) < 0.1] = other
    if missing and kind in ("words", "objects", "floats", "codes"):
        values[generator.random(ROWS) < 0.15] = np.nan
    dtypes = {"flags": bool, "whole": np.int64, "floats": np.float64, "codes": "category"}
    dtypes["objects"] = object
    return pandas.Series(values.tolist(), dtype=dtypes.get(kind))


def frame(generator: Generator, kinds: list[str], missing: bool, unseen: bool = False) -> Any:
    numbers = {f"n{n}": generator.standard_normal(ROWS) for n in range(2)}
    words = {f"{kind}{n}": column(generator, kind, missing, unseen) for n, kind in enumerate(kinds)}
    return pandas.DataFrame({**numbers, **words})


def answer(estimator: Any, method: str, X: Any) -> Any:
    """The library's result, dense, or the error that it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = getattr(estimator, method)(X)
        except (TypeError, ValueError) as error:
            return error
    return found.toarray() if hasattr(found, "toarray") else np.asarray(found)


def same(estimator: Any, compiled: Any, method: str, X: Any) -> None:
    """The results are equal, or both refuse X."""
    wanted = answer(estimator, method, X)
    if isinstance(wanted, Exception):
        with pytest.raises(InvalidInput):
            getattr(compiled, method)(X)
        return
    found = getattr(compiled, method)(X)
    assert found.shape == wanted.shape
    if method == "predict" and hasattr(estimator, "classes_"):
        np.testing.assert_array_equal(found, wanted)
        return
    largest = max(1.0, np.nanmax(np.abs(wanted), initial=0))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6 * largest)


def tried(X: Any) -> list[Any]:
    """The same rows as a frame, few of them, one of them, and as objects."""
    return [X, X[3:8], X[5:6], X.astype(object)]


@settings(max_examples=60)
@given(
    kinds=st.lists(st.sampled_from([*KINDS]), min_size=1, max_size=4),
    encoder=st.sampled_from(range(len(ENCODERS))),
    fill=st.sampled_from(["", "most_frequent", "constant"]),
    missing=st.booleans(),
    alone=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_encoder_of_any_columns(
    kinds: list[str], encoder: int, fill: str, missing: bool, alone: bool, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    X = frame(generator, kinds, missing)
    y = generator.integers(0, 3, ROWS) if seed % 2 else generator.standard_normal(ROWS)
    steps = [ENCODERS[encoder](generator)]
    if fill:
        value = {"fill_value": "red"} if fill == "constant" else {}
        steps.insert(0, SimpleImputer(strategy=fill, **value))
    part = make_pipeline(*steps)
    names = [*X.columns[2:]]
    parts = [("words", part, names), ("numbers", StandardScaler(), ["n0", "n1"])]
    estimator = part if alone else ColumnTransformer(parts)
    given = X[names] if alone else X
    try:
        estimator.fit(given, y)
    except (TypeError, ValueError):
        return  # the library does not take these columns together
    compiled = sparsejit.compile(estimator, target="avx2" if seed % 3 == 0 else "native")
    other = frame(generator, kinds, missing, unseen=True)
    for rows in (*tried(given), *tried(other[names] if alone else other)):
        same(estimator, compiled, "transform", rows)


MODELS = [
    LogisticRegression(),
    Ridge(),
    RandomForestClassifier(8, max_depth=5, random_state=0),
    HistGradientBoostingRegressor(max_iter=4, min_samples_leaf=3),
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
@pytest.mark.parametrize("encoder", range(len(ENCODERS)))
def test_before_models(model: Any, encoder: int, tmp_path: Path) -> None:
    """Also after it was saved and loaded."""
    generator = np.random.default_rng(encoder)
    X = frame(generator, ["words", "codes", "whole", "floats"], missing=True)
    y = (generator.random(ROWS) + (X.words0 == "red") > 1).astype(int)
    encoded = make_pipeline(ENCODERS[encoder](generator))
    filled = make_pipeline(SimpleImputer(strategy="most_frequent"), ENCODERS[encoder](generator))
    before = make_column_transformer(
        (encoded, ["whole2"]),
        (filled, ["words0", "codes1", "floats3"]),
        (StandardScaler(), ["n1", "n0"]),
        sparse_threshold=0 if "Hist" in type(model).__name__ else 0.3,
    )
    estimator = make_pipeline(before, model).fit(X, y)
    compiled = sparsejit.compile(estimator, X)
    compiled.save(tmp_path / "e.sjit")
    again = sparsejit.load(tmp_path / "e.sjit")
    again.save(tmp_path / "again.sjit")
    assert (tmp_path / "again.sjit").read_bytes() == (tmp_path / "e.sjit").read_bytes()
    unseen = frame(generator, ["words", "codes", "whole", "floats"], True, unseen=True)
    for rows in (*tried(X), *tried(unseen)):
        for method in compiled.methods:
            same(estimator, compiled, method, rows)
            if not isinstance(answer(estimator, method, rows), Exception):
                first, second = getattr(compiled, method)(rows), getattr(again, method)(rows)
                np.testing.assert_array_equal(first, second)


def test_votes_of_pipelines_with_encoders() -> None:
    generator = np.random.default_rng(0)
    X, y = frame(generator, ["words", "words"], False), generator.integers(0, 2, ROWS)
    names = ["words0", "words1"]
    first = make_column_transformer((OneHotEncoder(), names), (StandardScaler(), ["n0"]))
    second = make_column_transformer((OrdinalEncoder(), names), ("passthrough", ["n0", "n1"]))
    votes = VotingClassifier(
        [
            ("linear", make_pipeline(first, LogisticRegression())),
            ("forest", make_pipeline(second, RandomForestClassifier(5, random_state=0))),
        ],
        voting="soft",
    ).fit(X, y)
    compiled = sparsejit.compile(votes)
    for rows in tried(X):
        same(votes, compiled, "predict_proba", rows)


def test_frames_are_returned_where_set_output_asks_for_them(tmp_path: Path) -> None:
    generator = np.random.default_rng(6)
    X = frame(generator, ["words", "whole"], False).set_index(np.arange(ROWS) * 3)
    encoder = OneHotEncoder(sparse_output=False)
    before = make_column_transformer((encoder, ["words0"]), (StandardScaler(), ["n0", "whole1"]))
    before.set_output(transform="pandas").fit(X)
    compiled = sparsejit.compile(before)
    compiled.save(tmp_path / "e.sjit")
    for each in (compiled, sparsejit.load(tmp_path / "e.sjit")):
        for rows in (X, X[4:5], X.iloc[3]):
            found = each.transform(rows)
            wanted = before.transform(rows if rows.ndim == 2 else rows.to_frame().T)
            pandas.testing.assert_frame_equal(found, wanted, check_dtype=False, atol=1e-6)
    with pytest.raises(InvalidInput, match="frames of polars"):
        sparsejit.compile(StandardScaler().set_output(transform="polars").fit(np.eye(3)))


def test_columns_that_no_step_reads_may_hold_anything() -> None:
    generator = np.random.default_rng(1)
    X, y = frame(generator, ["words", "words"], False), generator.integers(0, 2, ROWS)
    before = make_column_transformer((OneHotEncoder(), ["words1"]), (StandardScaler(), ["n0"]))
    estimator = make_pipeline(before, LogisticRegression()).fit(X, y)
    compiled = sparsejit.compile(estimator)
    for rows in tried(X.assign(words0="something new", n1=[[]] * ROWS)):
        same(estimator, compiled, "predict_proba", rows)


def test_arrays_of_objects_and_lists() -> None:
    generator = np.random.default_rng(2)
    X = frame(generator, ["words", "objects"], False).to_numpy(object)
    y = generator.standard_normal(ROWS)
    before = make_column_transformer((OneHotEncoder(), [2, 3]), (StandardScaler(), [0, 1]))
    estimator = make_pipeline(before, Ridge()).fit(X, y)
    compiled = sparsejit.compile(estimator)
    for rows in (X, X[:1], X.tolist(), X[:, ::-1][:, ::-1]):
        same(estimator, compiled, "predict", rows)
    whole = OneHotEncoder().fit(X[:, 2:3].astype(str))
    same(whole, sparsejit.compile(whole), "transform", X[:, 2:3].astype(str))


def test_words_that_cannot_be_read_are_named() -> None:
    generator = np.random.default_rng(3)
    X, y = frame(generator, ["words"], False), generator.standard_normal(ROWS)
    before = make_column_transformer((OneHotEncoder(), ["words0"]), (StandardScaler(), ["n0"]))
    compiled = sparsejit.compile(make_pipeline(before, Ridge()).fit(X, y))
    with pytest.raises(InvalidInput, match="column 2 of X has 'purple', which the OneHotEncoder"):
        compiled.predict(X.assign(words0="purple"))
    with pytest.raises(InvalidInput, match="column 0 of X is no column of numbers"):
        compiled.predict(X.assign(n0="purple"))
    for odd in (np.datetime64("2020-01-01", "ns"), 1j):
        with pytest.raises(InvalidInput, match=r"column 0 of X (has dtype|is no column)"):
            compiled.predict(X.assign(n0=odd)[:3])
        with pytest.raises(InvalidInput, match="column 0 of X has dtype"):
            compiled.predict(X.assign(n0=odd))
    with pytest.raises(InvalidInput, match=r"column 2 of X has \[1\]; give strings"):
        compiled.predict(X.assign(words0=[[1]] * ROWS)[:3])
    with pytest.raises(InvalidInput, match=r"X has shape \(1, 2\)"):
        compiled.predict([["red", 1.0]])
    places = make_column_transformer((OneHotEncoder(), [2]), (StandardScaler(), [0]))
    numbers = make_pipeline(SimpleImputer(strategy="most_frequent"), places, Ridge())
    with pytest.raises(InvalidInput, match="put it into the ColumnTransformer's parts"):
        sparsejit.compile(numbers.fit(X, y))
    odd = make_pipeline(OneHotEncoder(), Ridge()).fit(np.array([[b"a"], [b"b"]], object), [0, 1])
    with pytest.raises(InvalidInput, match="cannot be saved"):
        sparsejit.compile(odd).save("never.sjit")


def test_a_damaged_table_of_words_is_refused(tmp_path: Path) -> None:
    from sparsejit.errors import DamagedFile
    from sparsejit.estimators.source import estimator_to_data, read_estimator_file

    generator = np.random.default_rng(4)
    X, y = frame(generator, ["words"], False), generator.standard_normal(ROWS)
    before = make_column_transformer((OneHotEncoder(), ["words0"]), (StandardScaler(), ["n0"]))
    compiled = sparsejit.compile(make_pipeline(before, Ridge()).fit(X, y))
    header, tensors = estimator_to_data(compiled._source)
    read_estimator_file(header, tensors)
    (own,) = header["words"]["columns"]
    for changed in (
        {"feature": 9},
        {"codes": [None] * len(own["codes"])},
        {"codes": own["codes"][1:]},
        {"words": [[1]] * len(own["words"])},
        {"nan": "none"},
    ):
        words = {**header["words"], "columns": [{**own, **changed}]}
        with pytest.raises(DamagedFile):
            read_estimator_file({**header, "words": words}, tensors)
    with pytest.raises(DamagedFile):
        read_estimator_file({**header, "words": {"read": [True], "columns": []}}, tensors)


LABELS: dict[str, list[Any]] = {
    "words": ["red", "blue", "red", "green", "blue"],
    "two words": ["no", "yes", "yes", "no", "no"],
    "numbers": [7, -1, 7, 2**40, 2**40],
    "two numbers": [3, 5, 5, 3, 3],
    "flags": [True, False, True, True, False],
    "objects": [*np.array(["b", "a", "c", "a", "b"], object)],
}


@pytest.mark.parametrize("encoder", [LabelEncoder(), LabelBinarizer(neg_label=-1, pos_label=4)])
@pytest.mark.parametrize("name", LABELS)
def test_labels(encoder: Any, name: str, tmp_path: Path) -> None:
    """In lists, arrays and series, one or many, and of a loaded file."""
    y = LABELS[name]
    encoder.fit(y)
    compiled = sparsejit.compile(encoder, y)
    compiled.save(tmp_path / "e.sjit")
    loaded = sparsejit.load(tmp_path / "e.sjit")
    for labels in (y, np.array(y), np.array(y, object), pandas.Series(y), y * 9, y[1:4]):
        wanted = encoder.transform(np.array(list(labels)))
        for each in (compiled, loaded):
            np.testing.assert_array_equal(each.transform(labels), wanted, strict=True)
    column = np.array(y)[:, None]
    np.testing.assert_array_equal(compiled.transform(column), encoder.transform(column.ravel()))


def test_labels_without_codes_are_refused() -> None:
    several = np.array([[1, 0], [0, 1]])
    for encoder, y, message in (
        (LabelBinarizer(), several, "several labels each"),
        (LabelBinarizer(), ["a", "a"], "has 1 classes"),
        (LabelEncoder(), [1.0, np.nan], "a missing value among its classes"),
        (LabelEncoder(), [1, 2**53], "float64 does not tell apart"),
    ):
        with pytest.raises(InvalidInput, match=message):
            sparsejit.compile(encoder.fit(y))
    for encoder, unseen in ((LabelEncoder(), "c"), (LabelBinarizer(), "c"), (LabelEncoder(), 3)):
        known = ["a", "b"] if unseen == "c" else [1, 2]
        compiled = sparsejit.compile(encoder.fit(known))
        with pytest.raises(InvalidInput, match="not see"):
            compiled.transform([*known, unseen])
    with pytest.raises(InvalidInput, match="is sparse"):
        compiled.transform(csr_matrix([[1.0]]))
