"""Random pipelines of texts, and encoders of labels, fitted.

    of_texts, of_labels    a fitted estimator, and rows
    each, one_of           tables of makers, and a draw from one
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from sklearn import (
    decomposition,
    ensemble,
    linear_model,
    multiclass,
    naive_bayes,
    neighbors,
    neural_network,
    preprocessing,
    svm,
)
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)
from sklearn.pipeline import make_pipeline

Draw = np.random.Generator
Maker = Callable[[Draw], Any]
FEWEST = 30  # rows of a fit
COLOURS = ("red", "green", "blue", "grey", "sand")
_few = {"n_estimators": 3, "random_state": 0}
_WORDS = "The the cat a dog ran sat b2 x_1 don't GREEN Stra\u00dfe na\u00efve"
_PATTERNS = (r"(?u)\b\w\w+\b", r"\w+", r"\S+", r"[a-z]{2,}", r"(\w)\w*", r"[\w ']+")
_TEXT_WORDS = np.array([*_WORDS.split(), "\ufb01n", "e\u0301", "\u03a3\u03a3", "\u00df", "\0"])


def each(*makers: Maker) -> dict[str, Maker]:
    """Makers by the names of their classes."""
    draw = np.random.default_rng(0)
    return {f"{number} {type(make(draw)).__name__}": make for number, make in enumerate(makers)}


def one_of(draw: Draw, makers: Mapping[str, Maker]) -> Any:
    return makers[str(draw.choice([*makers]))](draw)


def _text_options(draw: Draw) -> dict[str, Any]:
    least = int(draw.integers(1, 4))
    return {
        "analyzer": str(draw.choice(["word", "word", "char", "char_wb"])),
        "ngram_range": (least, least + int(draw.integers(2))),
        "strip_accents": [None, None, "ascii", "unicode"][draw.integers(4)],
        "stop_words": [None, ["the"]][draw.integers(2)],
        "token_pattern": str(draw.choice(_PATTERNS)),
        "lowercase": bool(draw.integers(2)),
        "binary": bool(draw.integers(2)),
    }


def _text(draw: Draw) -> str:
    words = draw.choice(_TEXT_WORDS, int(draw.integers(0, 9)))
    return str(draw.choice([" ", "  ", "\t", ". "])).join(words.tolist())


def of_texts(draw: Draw) -> tuple[Any, Any] | None:
    """A fitted pipeline of texts, and texts; None where scikit-learn does not fit it."""
    texts = np.array([_text(draw) for _ in range(int(draw.integers(FEWEST, 120)))], object)
    makers = one_of(draw, TEXT_STEPS), one_of(draw, TEXT_MODELS)
    target = np.array([("dog" in text) + ("\u00df" in text) for text in texts.tolist()])
    estimator = make_pipeline(*makers)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            estimator.fit(texts, target)
        except (AttributeError, TypeError, ValueError):
            return None
    rows = [_text(draw) if draw.integers(2) else str(draw.choice(texts)) for _ in range(40)]
    return estimator, np.array(rows[: int(draw.choice([1, 7, 40]))], object)


def of_labels(draw: Draw) -> tuple[Any, Any]:
    """A fitted encoder of labels, and labels that it saw."""
    kinds = [np.array(COLOURS, object), np.array([3, 1, 7]), np.array([True, False])]
    labels = kinds[draw.integers(3)][draw.integers(0, 2, 30)]
    encoder = one_of(draw, LABEL_STEPS).fit(labels)
    return encoder, labels[: int(draw.choice([1, 7, 30]))]


TEXT_STEPS = each(
    lambda draw: CountVectorizer(**_text_options(draw)),
    lambda draw: TfidfVectorizer(sublinear_tf=bool(draw.integers(2)), **_text_options(draw)),
    lambda draw: HashingVectorizer(n_features=int(draw.choice([7, 64])), **_text_options(draw)),
    lambda draw: make_pipeline(CountVectorizer(), TfidfTransformer()),
)
LABEL_STEPS = each(
    lambda draw: preprocessing.LabelBinarizer(neg_label=int(draw.choice([0, -1]))),
    lambda draw: preprocessing.LabelEncoder(),
)
TEXT_MODELS = each(
    lambda draw: linear_model.LogisticRegression(),
    lambda draw: linear_model.SGDClassifier(random_state=0),
    lambda draw: svm.LinearSVC(),
    lambda draw: linear_model.Ridge(),
    lambda draw: naive_bayes.MultinomialNB(),
    lambda draw: naive_bayes.ComplementNB(),
    lambda draw: naive_bayes.BernoulliNB(),
    lambda draw: neural_network.MLPClassifier([6], max_iter=20, random_state=0),
    lambda draw: multiclass.OneVsRestClassifier(linear_model.LogisticRegression()),
    lambda draw: ensemble.RandomForestClassifier(**_few),
    lambda draw: ensemble.GradientBoostingClassifier(**_few),
    lambda draw: neighbors.KNeighborsClassifier(3),
    lambda draw: svm.SVC(),
    lambda draw: decomposition.TruncatedSVD(2, random_state=0),
    lambda draw: make_pipeline(
        preprocessing.MaxAbsScaler(), decomposition.TruncatedSVD(2, random_state=0), svm.LinearSVC()
    ),
)
