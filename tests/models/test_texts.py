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
from sparsejit.estimators.text_symbols import run_of
from sparsejit.runtime import word_codes
from sparsejit.runtime.trie_walk import HashTable, Reach, Symbols

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


ANY_TEXT = st.text(st.characters())  # surrogates too
# Letters that grow in lower case or apart, that are words of their own, and spaces of all kinds.
ODD = "ab \0\n\x1c\u2028\u03a3\u00e9\u0301'\u0130\ufb01\U0001d400\u4e2d_\u0663\ufdfa"
PATTERNS = (
    *(r"(?u)\b\w\w+\b", r"\b\w+\b", r"\w{3,}", r"\S+", r"[a-z]{2,}", r"[^\W\d_]+", r"[\w ']+"),
    *(r"(\w)\w*", r"\b[a-z]+\b", r"\w\w"),
)


@settings(max_examples=100)
@given(
    kind=st.sampled_from([CountVectorizer, HashingVectorizer, TfidfVectorizer]),
    analyzer=st.sampled_from(["word", "char", "char_wb"]),
    least=st.integers(1, 3),
    more=st.integers(0, 2),
    accents=st.sampled_from([None, "ascii", "unicode"]),
    stops=st.sampled_from([None, "english", ["red", "b"]]),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    pattern=st.sampled_from(PATTERNS),
    norm=st.sampled_from([None, "l1", "l2"]),
    unseen=st.lists(ANY_TEXT | st.text(ODD), min_size=1, max_size=9),
    knows=st.booleans(),
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
    knows: bool,
) -> None:
    options: dict[str, Any] = {
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
        options |= {"norm": norm, "alternate_sign": flags[2], "n_features": [9, 1 << 18][knows]}
    elif knows:
        options |= {"max_features": 20}
    vectoriser = kind(**options)
    try:
        vectoriser.fit(TEXTS[:60] + unseen[:2])
    except ValueError:  # every word is a stop word
        return
    compiled = sparsejit.compile(vectoriser)
    for texts in (TEXTS, TEXTS[3:4], unseen, unseen[-1:]):
        try:
            vectoriser.transform(texts)
        except UnicodeEncodeError:
            with pytest.raises(InvalidInput, match=r"none in UTF-8.*leave surrogates out"):
                compiled.transform(texts)
        else:
            same(vectoriser, compiled, "transform", texts)


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


@pytest.mark.parametrize("name", ["weights", "counts", "bayes", "hashed, weights"])
def test_long_texts_and_many_texts(name: str) -> None:
    """More characters, texts and words in a text than a packed count holds."""
    texts = ["red blue " * 40_000 + "green", "", *["red the"] * 40_000, "x1", "\u0130b" * 90_000]
    estimator = PIPELINES[name].fit(TEXTS, CLASSES)
    same(estimator, sparsejit.compile(estimator), "predict_proba", texts)


@pytest.mark.parametrize("name", sorted(PIPELINES.keys() - {"perceptron"}))
def test_without_native_readers_of_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an interpreter whose objects are unknown."""
    monkeypatch.setattr(word_codes, "layout_is_known", lambda: False)
    word_codes._reader.cache_clear()
    estimator = PIPELINES[name].fit(TEXTS, CLASSES)
    method = "predict_proba" if hasattr(estimator, "predict_proba") else "predict"
    same(estimator, sparsejit.compile(estimator), method, TEXTS)
    word_codes._reader.cache_clear()


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.booleans(), st.integers(1, 1 << 31))
def test_hashes_are_murmur_hashes(token: str, is_signed: bool, columns: int) -> None:
    """Sequences of characters, and a word that is cut out of a text."""
    columns = min(columns, 1 << 22)
    points = np.array([*map(ord, f"{token}{token}")], np.uint32)
    span = np.array([[len(token), 2 * len(token)]])
    number = murmurhash3_32(token)
    wanted = abs(number) % columns << is_signed | (is_signed and number < 0)
    table = HashTable(columns, is_signed, Reach(1, 1))
    assert table.keys(Symbols(np.zeros(1, np.int64), points, span)).tolist() == [wanted]
    whole = HashTable(columns, is_signed, Reach(len(token), len(token)))
    assert whole.keys(Symbols(points[: len(token)].astype(np.int64))).tolist() == [wanted]


def test_a_refused_text_leaves_no_counts_behind() -> None:
    vectoriser = HashingVectorizer(n_features=50, ngram_range=(1, 2), token_pattern=r"\S+")
    estimator = make_pipeline(vectoriser, SGDClassifier(random_state=0)).fit(TEXTS, CLASSES)
    compiled = sparsejit.compile(estimator)
    with pytest.raises(InvalidInput, match="none in UTF-8"):
        compiled.predict(["red blue a\ud800 green"])
    same(estimator, compiled, "decision_function", TEXTS)
    same(estimator, compiled, "decision_function", ["red blue"])


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        *((r"(?u)\b\w\w+\b", 2), (r"\w+", 1), (r"\w{3,}", 3), (r"\S+", 1)),
        (r"[^\W\d_][^\W\d_]+", 2),
        *((r"\b[a-z]+\b", None), (r"\w*", None), (r"\w\w", None), (r"(\w)\w*", None)),
        *((r"\w\d+", None), (r"\w+|\d+", None), (r"(?i)[a-z]+", None), (r"\w{0,}", None)),
    ],
)
def test_patterns_that_match_runs(pattern: str, found: int | None) -> None:
    run = run_of(pattern)
    assert (None if run is None else run.least) == found


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
