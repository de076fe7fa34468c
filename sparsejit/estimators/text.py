"""Texts as counts of their words or characters, as scikit-learn's vectorisers count.

    text_of      the reader of a pipeline's first step, and the pipeline behind it
    TextReader   texts -> counts or weights (texts, vocabulary)

Tokens are found by Python's regular expressions; the count of each token of the vocabulary is one
column of X, which the compiled model reads. Counts that are not zero are weighted as by a
TfidfTransformer, in its order of operations, to the last bit.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.ir.values import Array

VECTORISERS = frozenset({"CountVectorizer", "TfidfVectorizer"})
_SPACES = re.compile(r"\s\s+")
_OWN_CODE = ("preprocessor", "tokenizer")
ANALYSERS = ("char", "char_wb", "word")
ACCENTS = (None, "ascii", "unicode")
WEIGHT_NORMS = ("", "l1", "l2", "max")


@dataclass(frozen=True, eq=False)
class TextReader:
    """The rules by which texts are counted; all are options of a CountVectorizer.

    `words` are the vocabulary, by column. `is_binary` counts a token once, `is_sublinear` replaces
    a count n by 1 + log(n). Then a count is multiplied by the frequency of its word in `weights`,
    and all of a text divided by their `norm`, "l1", "l2", "max" or "".
    """

    words: tuple[str, ...]
    analyser: str
    pattern: str
    least: int
    most: int
    stop_words: tuple[str, ...]
    accents: str | None
    is_lower: bool
    is_binary: bool
    is_sublinear: bool
    weights: tuple[float, ...]
    norm: str

    def read(self, texts: Any) -> Array:
        """The weighted counts of texts, float64. Raises InvalidInput for all other things."""
        if isinstance(texts, str) or getattr(texts, "ndim", 1) != 1:
            raise InvalidInput("X is no list of texts; give several, or one in a list")
        given = list(texts)
        counts = np.zeros((len(given), len(self.words)))
        for row, text in zip(counts, given, strict=True):
            if not isinstance(text, str):
                raise InvalidInput(f"X has {text!r} among its texts; give strings")
            self._count(row, text)
        return counts

    def _count(self, row: Array, text: str) -> None:
        if self.is_lower:
            text = text.lower()
        found = Counter(map(self._places.get, self._tokens(_without_accents(text, self.accents))))
        own = sorted(place for place in found if place is not None)
        if not own:
            return
        places = np.array(own)
        numbers = np.ones(len(places))
        if not self.is_binary:
            numbers[:] = [found[place] for place in own]
        if self.is_sublinear:
            numbers = np.log(numbers) + 1
        if self.weights:
            numbers *= self._weights[places]
        row[places] = _normed(numbers, self.norm)

    @cached_property
    def _weights(self) -> Array:
        return np.array(self.weights)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    @cached_property
    def _find(self) -> Callable[[str], list[str]]:
        return re.compile(self.pattern).findall

    @cached_property
    def _stops(self) -> frozenset[str]:
        return frozenset(self.stop_words)

    def _tokens(self, text: str) -> Iterable[str]:
        if self.analyser == "word":
            return self._word_grams(self._find(text))
        text = _SPACES.sub(" ", text)
        if self.analyser == "char":
            return self._grams(text)
        return (gram for word in text.split() for gram in self._grams_within(f" {word} "))

    def _word_grams(self, words: list[str]) -> Iterable[str]:
        kept = [word for word in words if word not in self._stops] if self._stops else words
        if self.most == 1:
            return kept
        lengths = range(self.least, min(self.most, len(kept)) + 1)
        return (
            " ".join(kept[first : first + length])
            for length in lengths
            for first in range(len(kept) - length + 1)
        )

    def _grams(self, text: str) -> Iterable[str]:
        lengths = range(self.least, min(self.most, len(text)) + 1)
        return (
            text[first : first + length]
            for length in lengths
            for first in range(len(text) - length + 1)
        )

    def _grams_within(self, word: str) -> Iterable[str]:
        """The pieces of a word; one that is shorter than a length counts once, for all lengths."""
        for length in range(self.least, self.most + 1):
            yield word[:length]
            if length >= len(word):
                return
            yield from (word[at : at + length] for at in range(1, len(word) - length + 1))


def _normed(numbers: Array, norm: str) -> Array:
    """Numbers divided by their norm, which is added up from the first to the last."""
    if not norm:
        return numbers
    if norm == "max":
        size = np.abs(numbers).max()
    elif norm == "l1":
        size = np.add.accumulate(np.abs(numbers))[-1]
    else:
        size = np.sqrt(np.add.accumulate(numbers * numbers)[-1])
    return numbers / size if size else numbers


def _without_accents(text: str, accents: str | None) -> str:
    if accents is None or text.isascii():
        return text
    apart = unicodedata.normalize("NFKD", text)
    if accents == "ascii":
        return apart.encode("ascii", "ignore").decode("ascii")
    return "".join(each for each in apart if not unicodedata.combining(each))


@dataclass(frozen=True, eq=False)
class ReadText:
    """The reader of the texts that an estimator takes, and the estimator of its counts."""

    reader: TextReader
    estimator: Any


def text_of(estimator: Any) -> ReadText | None:
    """The reader of a pipeline's first step, a vectoriser; None for all other estimators.

    Raises InvalidInput for a vectoriser with code of its own.
    """
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import FunctionTransformer

    steps = [step for _, step in getattr(estimator, "steps", [("", estimator)])]
    first, *rest = steps
    if type(first).__name__ not in VECTORISERS:
        return None
    is_weighted = type(first).__name__ == "TfidfVectorizer"
    weights = first._tfidf if is_weighted else None
    if not is_weighted and rest and type(rest[0]).__name__ == "TfidfTransformer":
        weights, *rest = rest
    reader = _reader_of(first, weights)
    behind = rest or [FunctionTransformer().fit(np.zeros((1, len(reader.words))))]
    named = [(f"step{number}", step) for number, step in enumerate(behind)]
    return ReadText(reader, Pipeline(named))


def _reader_of(vectoriser: Any, weights: Any) -> TextReader:
    """The reader of a fitted vectoriser, and of a TfidfTransformer behind it, or None."""
    kind = type(vectoriser).__name__
    own = [name for name in _OWN_CODE if getattr(vectoriser, name) is not None]
    if own or vectoriser.analyzer not in ANALYSERS or callable(vectoriser.strip_accents):
        raise InvalidInput(
            f"the {kind} runs code of its own for {', '.join(own) or 'its analyzer or accents'}; "
            "fit it with options alone"
        )
    if vectoriser.input != "content":
        raise InvalidInput(f"the {kind} has input={vectoriser.input!r}; fit it with 'content'")
    if not hasattr(vectoriser, "vocabulary_"):
        raise InvalidInput(f"the {kind} is not fitted; call its fit(texts) first")
    places = vectoriser.vocabulary_
    least, most = map(int, vectoriser.ngram_range)
    frequencies = weights.idf_ if weights is not None and weights.use_idf else ()
    return TextReader(
        tuple(sorted(places, key=lambda word: int(places[word]))),
        str(vectoriser.analyzer),
        str(vectoriser.token_pattern),
        *(least, most, tuple(sorted(vectoriser.get_stop_words() or ()))),
        vectoriser.strip_accents,
        bool(vectoriser.lowercase),
        bool(vectoriser.binary),
        bool(weights is not None and weights.sublinear_tf),
        tuple(np.asarray(frequencies, np.float64).tolist()),
        "" if weights is None else weights.norm or "",
    )
