"""Pipelines of texts, against scikit-learn."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("treelite")

from sklearn.decomposition import TruncatedSVD
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)
from sklearn.linear_model import LogisticRegression, Ridge, SGDClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import MultinomialNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.utils import murmurhash3_32

import sparsejit
from sparsejit.errors import DamagedFile, InvalidInput
from sparsejit.estimators import compiled_estimator, text
from sparsejit.estimators.source import estimator_to_data, read_estimator_file
from sparsejit.estimators.text_symbols import signed_hash

WORDS = ["Red", "blue", "the", "a", "straße", "naïve", "x1", "don't", "GREEN", "\t", "b"]
GENERATOR = np.random.default_rng(0)
TEXTS = [
    " ".join(GENERATOR.choice(WORDS, GENERATOR.integers(0, 9))) + "." * int(GENERATOR.integers(3))
    for _ in range(80)
]
TEXTS += ["", "   ", "red  RED red blue", "unseen words here", "É é\u0301 ﬁ"]
CLASSES = np.array([("red" in text.lower()) + ("blue" in text) for text in TEXTS])


def dense(found: Any) -> Any:
    return found.toarray() if hasattr(found, "toarray") else found


def same(estimator: Any, compiled: Any, method: str, texts: Any) -> None:
    wanted = dense(getattr(estimator, method)(texts))
    most = 2e-6 * max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(getattr(compiled, method)(texts), wanted, rtol=0, atol=most)


@settings(max_examples=60)
@given(
    kind=st.sampled_from([CountVectorizer, HashingVectorizer, TfidfVectorizer]),
    analyzer=st.sampled_from(["word", "char", "char_wb"]),
    least=st.integers(1, 3),
    more=st.integers(0, 2),
    accents=st.sampled_from([None, "ascii", "unicode"]),
    stops=st.sampled_from([None, "english", ["red", "b"]]),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    pattern=st.sampled_from([r"(?u)\b\w\w+\b", r"\b\w+\b", r"\S+", r"(\w)\w*"]),
    norm=st.sampled_from([None, "l1", "l2"]),
    unseen=st.lists(st.text() | st.text("ab \0\n\u03a3\u00e9\u0301'"), min_size=1, max_size=9),
)
@pytest.mark.filterwarnings("ignore")
def test_any_options(
    kind: Any,
    analyzer: str,
    least: int,
    more: int,
    accents: Any,
    stops: Any,
    flags: tuple[bool, bool, bool],
    pattern: str,
    norm: Any,
    unseen: list[str],
) -> None:
    options = {
        "analyzer": analyzer,
        "ngram_range": (least, least + more),
        "strip_accents": accents,
        "stop_words": stops,
        "lowercase": flags[0],
        "binary": flags[1],
        "token_pattern": pattern,
    }
    if kind is TfidfVectorizer:
        options |= {"norm": norm, "sublinear_tf": flags[2], "use_idf": flags[0]}
    if kind is HashingVectorizer:
        options |= {"norm": norm, "alternate_sign": flags[2], "n_features": 9}
    vectoriser = kind(**options)
    try:
        vectoriser.fit(TEXTS[:60] + unseen[:2])
    except ValueError:  # every word is a stop word
        return
    compiled = sparsejit.compile(vectoriser)
    same(vectoriser, compiled, "transform", TEXTS)
    same(vectoriser, compiled, "transform", TEXTS[3:4])
    same(vectoriser, compiled, "transform", unseen)
    same(vectoriser, compiled, "transform", unseen[-1:])


PIPELINES = {
    "counts": make_pipeline(CountVectorizer(), LogisticRegression()),
    "weights": make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression()),
    "apart": make_pipeline(CountVectorizer(), TfidfTransformer(sublinear_tf=True), Ridge()),
    "descent": make_pipeline(TfidfVectorizer(), SGDClassifier(random_state=0)),
    "forest": make_pipeline(TfidfVectorizer(), RandomForestClassifier(9, random_state=0)),
    "decomposed": make_pipeline(TfidfVectorizer(), TruncatedSVD(4, random_state=0), Ridge()),
    "bayes": make_pipeline(CountVectorizer(analyzer="char_wb"), MultinomialNB()),
    "one each": make_pipeline(TfidfVectorizer(), OneVsRestClassifier(LogisticRegression())),
    "perceptron": make_pipeline(TfidfVectorizer(), MLPClassifier([5], random_state=0)),
    "hashed": make_pipeline(HashingVectorizer(), SGDClassifier(random_state=0)),
    "hashed, weights": make_pipeline(
        HashingVectorizer(n_features=99, norm=None), TfidfTransformer(), LogisticRegression()
    ),
    "hashed forest": make_pipeline(HashingVectorizer(n_features=99), RandomForestClassifier(5)),
}
OF_PRODUCTS = PIPELINES.keys() - {"forest", "hashed forest"}


@pytest.mark.parametrize("name", PIPELINES)
def test_before_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a file, and in several parts."""
    pandas = pytest.importorskip("pandas")
    estimator = PIPELINES[name].fit(TEXTS, CLASSES)
    compiled = sparsejit.compile(estimator, TEXTS)
    compiled.save(tmp_path / "e.sjit")
    again = sparsejit.load(tmp_path / "e.sjit")
    for texts in (TEXTS, TEXTS[:1], np.array(TEXTS, object), pandas.Series(TEXTS), TEXTS[::-1]):
        for method in set(compiled.methods) - {"predict_log_proba"}:
            same(estimator, compiled, method, texts)
            first, second = (getattr(each, method)(texts) for each in (compiled, again))
            np.testing.assert_array_equal(first, second)
    whole = compiled.predict(TEXTS)
    monkeypatch.setattr(compiled_estimator, "_COUNTS", 7 * compiled.n_features_in_)
    monkeypatch.setattr(text, "_PART", 50)
    np.testing.assert_array_equal(compiled.predict(TEXTS), whole)
    np.testing.assert_array_equal(compiled.predict(TEXTS[::-1]), whole[::-1])


@pytest.mark.parametrize("name", sorted(PIPELINES))
def test_products_of_counts_that_are_not_zero(name: str) -> None:
    """Only a model that reads counts themselves is given the ones that are zero."""
    compiled = sparsejit.compile(PIPELINES[name].fit(TEXTS, CLASSES))
    notes = str(compiled.explain())
    assert ("counts that are not zero" in notes) == (name in OF_PRODUCTS)


def test_a_vocabulary_of_any_size_costs_its_weights_alone() -> None:
    """Counts of 50 texts as float64 would take 800 MB here."""
    vectoriser = HashingVectorizer(n_features=1 << 21)
    estimator = make_pipeline(vectoriser, SGDClassifier(random_state=0))
    estimator.fit(TEXTS[:50], CLASSES[:50])
    compiled = sparsejit.compile(estimator)
    same(estimator, compiled, "decision_function", TEXTS[:50])
    tracemalloc.start()
    compiled.predict(TEXTS[:50])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1 << 20


@settings(max_examples=40)
@given(
    outputs=st.sampled_from([1, 2, 3, 4, 6, 9]),
    least=st.integers(1, 2),
    norm=st.sampled_from([None, "l1", "l2"]),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    stops=st.sampled_from([None, ["red", "unseen"]]),
    unseen=st.lists(
        st.text("abRed \0\n.\u03a3\u00e9") | st.text("abRedx_1 \n.'"), min_size=1, max_size=30
    ),
)
def test_products_of_any_counts(
    outputs: int,
    least: int,
    norm: str | None,
    flags: tuple[bool, bool, bool],
    stops: list[str] | None,
    unseen: list[str],
) -> None:
    """Texts are ASCII, others, or both among each other."""
    options = {"lowercase": flags[0], "binary": flags[1], "sublinear_tf": flags[2], "norm": norm}
    given = TEXTS[:50] + unseen[:3]
    vectoriser = TfidfVectorizer(ngram_range=(1, least), stop_words=stops, **options)
    targets = np.random.default_rng(outputs).standard_normal((len(given), outputs))
    estimator = make_pipeline(vectoriser, Ridge()).fit(given, targets)
    compiled = sparsejit.compile(estimator)
    for texts in (unseen, unseen[:1], TEXTS + unseen):
        same(estimator, compiled, "predict", texts)


def test_long_texts_and_many_texts() -> None:
    """More characters, texts and words in a text than a packed count holds."""
    texts = ["red blue " * 40_000 + "green", "", *["red the"] * 40_000, "x1"]
    for name in ("weights", "counts"):
        estimator = PIPELINES[name].fit(TEXTS, CLASSES)
        same(estimator, sparsejit.compile(estimator), "predict_proba", texts)


@given(st.text(st.characters(codec="utf-8")))
def test_hashes_are_murmur_hashes(token: str) -> None:
    assert signed_hash(token) == murmurhash3_32(token)


def test_hashes_are_kept_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_MOST_HASHED", 3)
    vectoriser = HashingVectorizer(n_features=50, stop_words=["red"])
    same(vectoriser, sparsejit.compile(vectoriser.fit(TEXTS)), "transform", TEXTS)


def test_other_things_than_texts_are_named() -> None:
    compiled = sparsejit.compile(PIPELINES["counts"].fit(TEXTS, CLASSES))
    for texts, message in (
        ("one text", "no list of texts"),
        (np.array([["a"]]), "no list of texts"),
        (["a", None], "X has None among its texts"),
        ([], "X has no samples"),
    ):
        with pytest.raises(InvalidInput, match=message):
            compiled.predict(texts)


@pytest.mark.filterwarnings("ignore")
def test_code_of_the_user_is_refused_by_name() -> None:
    for options, message in (
        ({"tokenizer": str.split}, "code of its own for tokenizer"),
        ({"preprocessor": str.lower}, "code of its own for preprocessor"),
        ({"analyzer": str.split}, "code of its own for its analyzer"),
        ({"input": "file"}, "input='file'"),
    ):
        vectoriser = CountVectorizer(**options)  # type: ignore[arg-type]
        if "input" not in options:
            vectoriser.fit(TEXTS)
        with pytest.raises(InvalidInput, match=message):
            sparsejit.compile(vectoriser)


def test_damaged_rules_of_texts_are_refused() -> None:
    compiled = sparsejit.compile(PIPELINES["counts"].fit(TEXTS, CLASSES))
    header, tensors = estimator_to_data(compiled._source)
    read_estimator_file(header, tensors)
    own = header["text"]
    older = {key: value for key, value in own.items() if key not in ("hashed", "alternates")}
    read_estimator_file({**header, "text": older}, tensors)
    for changed in (
        {"words": own["words"][1:]},
        {"analyser": "letters"},
        {"accents": "all"},
        {"pattern": "("},
        {"least": 0},
        {"stop_words": [1]},
        {"norm": "l3"},
        {"weights": [1.0]},
        {"weights": [None] * len(own["words"])},
        {"hashed": 1},
        {"hashed": -1},
        {"hashed": len(own["words"]), "words": [], "alternates": 1},
        {"alternates": True},
    ):
        with pytest.raises(DamagedFile):
            read_estimator_file({**header, "text": {**own, **changed}}, tensors)
