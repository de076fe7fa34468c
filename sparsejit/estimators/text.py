"""Texts as counts of their words or characters, as scikit-learn's vectorisers count.

    text_of      the reader of a pipeline's first step, and the pipeline behind it
    TextReader   texts -> counts or weights (texts, vocabulary)

    texts   joined by "\\0", which is in no token
    words   of ASCII texts found, coded and counted natively; else by one search of a regular
            expression, and a dict
    grams   a native walk through the trie of the vocabulary, over codes of words or characters
    counts  equal pairs of a text and a column, which lie together when they are sorted
    sums    of ASCII texts the products of counts and weights, natively in the same walk

Only counts that are not zero exist. They are weighted as by a TfidfTransformer, in its order of
operations, to the last bit. A HashingVectorizer's columns are kept by word when first computed.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.text_symbols import (
    BREAK,
    OF_BREAK,
    SPACES,
    UNKNOWN,
    collapsed,
    grams,
    numbered,
    signed_hash,
    spaced,
    take_short,
    trie_of,
    without_accents,
)
from sparsejit.estimators.words import WordColumn
from sparsejit.ir.values import Array
from sparsejit.runtime.trie_walk import TrieTable
from sparsejit.runtime.word_codes import BREAK as OF_BREAKS
from sparsejit.runtime.word_codes import (
    CODE_BITS,
    COUNT_BITS,
    MOST_TEXTS,
    NORMS,
    WordSums,
    WordTable,
)

VECTORISERS = frozenset({"CountVectorizer", "HashingVectorizer", "TfidfVectorizer"})
_OWN_CODE = ("preprocessor", "tokenizer")
ANALYSERS = ("char", "char_wb", "word")
ACCENTS = (None, "ascii", "unicode")
WEIGHT_NORMS = ("", "l1", "l2", "max")
_LETTERS = string.ascii_letters
_OF_WORDS = f"{_LETTERS}{string.digits}_"
# Patterns of words without spaces, which are the same in joined texts: their ASCII characters, and
# the fewest of them.
_JOINED = {
    r"(?u)\b\w\w+\b": (_OF_WORDS, 2),
    r"\b\w\w+\b": (_OF_WORDS, 2),
    r"(?u)\b\w+\b": (_OF_WORDS, 1),
    r"\b\w+\b": (_OF_WORDS, 1),
    r"(?u)\w+": (_OF_WORDS, 1),
    r"\w+": (_OF_WORDS, 1),
    r"[a-zA-Z]+": (_LETTERS, 1),
}
_STOP = -3  # the code of a stop word
_PART = 1 << 16  # characters whose counts are made at the same time
_MOST_HASHED = 1 << 20  # words whose hashes are kept


@dataclass(frozen=True, eq=False)
class TextCounts:
    """The weighted counts of `count` texts that are not zero, in ascending order of their places.

    `texts` and `columns` are their places, int64; `values` are float64.
    """

    count: int
    texts: Array
    columns: Array
    values: Array

    def split(self, most: int) -> Iterator[TextCounts]:
        """The counts of groups of at most `most` texts, one group after another."""
        if self.count <= most:
            yield self
            return
        firsts = range(0, self.count, most)
        edges = np.searchsorted(self.texts, [*firsts, self.count]).tolist()
        for first, begin, end in zip(firsts, edges[:-1], edges[1:], strict=True):
            own = slice(begin, end)
            count = min(most, self.count - first)
            cells = self.texts[own] - first, self.columns[own], self.values[own]
            yield TextCounts(count, *cells)

    def times(self, weights: Array) -> Array:
        """The product of the counts and weights (columns, outputs), float64 (count, outputs)."""
        result = np.zeros((self.count, weights.shape[1]))
        if not len(self.values):
            return result
        if weights.shape[1] == 1:
            terms = self.values * weights.ravel().take(self.columns)
            if self.count == 1:
                result[0, 0] = terms.sum()
            else:
                result[:, 0] = np.bincount(self.texts, terms, self.count)
            return result
        terms = self.values[:, None] * weights[self.columns]
        if self.count == 1:
            result[0] = terms.sum(axis=0)
            return result
        firsts = _firsts(self.texts)
        result[self.texts[firsts]] = np.add.reduceat(terms, firsts, axis=0)
        return result


def _firsts(ascending: Array) -> Array:
    """The first place of each number in an ascending array."""
    is_first = np.empty(len(ascending), bool)
    is_first[:1] = True
    np.not_equal(ascending[1:], ascending[:-1], out=is_first[1:])
    return is_first.nonzero()[0]


def _by_ascii(given: Sequence[str]) -> list[Array]:
    """The places of ASCII texts, and of others, if there are any."""
    is_plain = np.fromiter(map(str.isascii, given), bool, len(given))
    return [each for each in (is_plain.nonzero()[0], (~is_plain).nonzero()[0]) if len(each)]


def _norms(norm: str, rows: Array, numbers: Array, count: int) -> Array:
    """The norm of each number's text, added up from the first to the last; 1 for 0."""
    sizes = np.abs(numbers) if norm != "l2" else numbers * numbers
    if count == 1:
        total = float(sizes.max() if norm == "max" else np.add.accumulate(sizes)[-1])
        return np.array((math.sqrt(total) if norm == "l2" else total) or 1.0)
    totals: Array = np.zeros(count)
    if norm == "max":
        np.maximum.at(totals, rows, sizes)
    else:
        totals = np.bincount(rows, sizes, count)
    totals[totals == 0] = 1
    return (np.sqrt(totals) if norm == "l2" else totals)[rows]


def _kept(codes: Array, count: int) -> tuple[Array, Array]:
    """The text and the column of each word, of `count` texts with breaks between them."""
    kept = (codes >= 0).nonzero()[0]
    if count == 1:
        return np.zeros(len(kept), np.int64), codes[kept]
    return (codes == OF_BREAK).cumsum()[kept], codes[kept]


@dataclass(frozen=True, eq=False)
class TextReader:
    """The rules by which texts are counted; all are options of scikit-learn's vectorisers.

    `words` are the vocabulary, by column. `is_binary` counts a token once, `is_sublinear` replaces
    a count n by 1 + log(n). Then a count is multiplied by the frequency of its word in `weights`,
    and all of a text divided by their `norm`, "l1", "l2", "max" or "".

    Where `hashed` is not 0, it is the number of columns, and there are no words: the hash of a
    token is its column; with `alternates` a bit of the hash is its sign.
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
    hashed: int = 0
    alternates: bool = False

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.hashed or len(self.words)

    def parts(self, given: Sequence[str]) -> Iterator[TextCounts]:
        """The counts of texts, some texts after some."""
        return map(self.counts, self._parted(given))

    def _parted(self, given: Sequence[str]) -> Iterator[Sequence[str]]:
        """Texts whose counts are made at the same time."""
        if len(given) == 1:
            yield given
            return
        first, before = 0, 0
        for number, end in enumerate(accumulate(map(len, given)), 1):
            if end - before >= _PART or number == len(given):
                yield given[first:number]
                first, before = number, end

    def products(self, weights: Array) -> Callable[[Sequence[str]], Iterator[Array]]:
        """A function of texts that returns products of their counts and weights, some after some.

        Weights are (columns, outputs), products float64 (texts, outputs).
        """
        summed = self._sums(weights)

        def products_of(given: Sequence[str]) -> Array:
            if summed is None:
                return self.counts(given).times(weights)
            joined = given[0] if len(given) == 1 else BREAK.join(given)
            fits = not len(joined) >> COUNT_BITS and joined.count(BREAK) == len(given) - 1
            if fits and joined.isascii():
                return summed(joined, len(given))
            groups = _by_ascii(given)
            if len(groups) == 1:
                return self.counts(given).times(weights)
            result = np.empty((len(given), weights.shape[1]))
            for group in groups:
                result[group] = products_of([given[number] for number in group.tolist()])
            return result

        return lambda given: map(products_of, self._parted(given))

    def _sums(self, weights: Array) -> Callable[[str, int], Array] | None:
        """The native sums of ASCII texts; None where their tokens or norm are not native."""
        is_positive = min(self.weights, default=1.0) >= 0
        if not (self._packs and self._table and self.norm in NORMS and is_positive):
            return None
        values = np.arange(1 << COUNT_BITS, dtype=np.float64)
        if self.is_binary:
            values[:] = 1
        if self.is_sublinear:
            values[1:] = np.log(values[1:]) + 1
        frequencies = self._weights if self.weights else np.ones(self.width)
        return self._table.sums(WordSums(values, frequencies, weights, self.norm))

    def counts(self, given: Sequence[str]) -> TextCounts:
        """The weighted counts of some texts."""
        rows, columns, numbers = self._counted(given)
        if self.alternates:
            numbers *= 1 - 2 * (columns & 1)
            columns >>= 1
            firsts = _firsts(rows * self.width + columns)
            rows, columns = rows[firsts], columns[firsts]
            numbers = np.add.reduceat(numbers, firsts) if len(firsts) else numbers
        if self.is_binary:
            numbers[:] = 1
        if self.is_sublinear:
            numbers = np.log(numbers) + 1
        if self.weights:
            numbers *= self._weights.take(columns)
        if self.norm and len(numbers):
            numbers /= _norms(self.norm, rows, numbers, len(given))
        return TextCounts(len(given), rows, columns, numbers)

    def _counted(self, given: Sequence[str]) -> tuple[Array, Array, Array]:
        """The text, the column and the count of each token, in this order; twice the column, and 1
        for a negative one, where signs alternate.
        """
        packed = self._ascii_codes(given, True) if self._packs else None
        if packed is not None:
            packed.sort()
            codes = packed >> COUNT_BITS
            counts = packed & ((1 << COUNT_BITS) - 1)
            if len(given) == 1:
                return np.zeros(len(codes), np.int64), codes, counts.astype(np.float64)
            return codes >> CODE_BITS, codes & ((1 << CODE_BITS) - 1), counts.astype(np.float64)
        texts, places = self._found(given)
        width = self.width << self.alternates
        keys = texts * width + places
        keys.sort()
        firsts = _firsts(keys)
        ends = np.empty(len(firsts) + 1)
        ends[:-1], ends[-1] = firsts, len(keys)
        return *divmod(keys[firsts], width), ends[1:] - ends[:-1]

    @cached_property
    def _weights(self) -> Array:
        return np.array(self.weights)

    @property
    def _is_joined(self) -> bool:
        """Whether the pattern of words finds the same in joined texts."""
        return self.pattern in _JOINED

    @cached_property
    def _walks(self) -> bool:
        """Whether tokens are sequences of symbols, in a trie; else they are strings, in a dict."""
        if self.hashed:
            return False
        return self.analyser != "word" or (self.most > 1 and self._is_joined)

    def _found(self, given: Sequence[str]) -> tuple[Array, Array]:
        """The text and the column of each token; unknown ones are left out.

        Where signs alternate it is twice the column, plus 1 for a negative one.
        """
        read = self._walked if self._walks else self._read
        if self._table is None or len(given) == 1:
            return read(given)
        groups = _by_ascii(given)
        if len(groups) == 1:
            return read(given)
        found = [read([given[number] for number in group.tolist()]) for group in groups]
        texts = [group[own] for group, (own, _) in zip(groups, found, strict=True)]
        return np.concatenate(texts), np.concatenate([places for _, places in found])

    @cached_property
    def _table(self) -> WordTable | None:
        """The native table of words; None where tokens are no words of the usual patterns."""
        if self.analyser != "word" or self.hashed or not self._is_joined:
            return None
        letters, least = _JOINED[self.pattern]
        classes = np.zeros(256, np.uint8)
        classes[ord(BREAK)] = OF_BREAKS
        for letter in letters:
            classes[ord(letter)] = ord(letter.lower() if self.is_lower else letter)
        codes = {word: int(code) for word, code in self._codes.codes.items()}
        return WordTable(codes, classes, least, UNKNOWN, OF_BREAK)

    @cached_property
    def _packs(self) -> bool:
        """Whether words are columns, which native code may count."""
        return self.analyser == "word" and self.most == 1 and self._table is not None

    def _ascii_codes(self, given: Sequence[str], counts: bool = False) -> Array | None:
        """The codes of the words of ASCII texts, with breaks between; None for other texts.

        With `counts` packed counts, None where these would not fit.
        """
        if self._table is None:
            return None
        joined = given[0] if len(given) == 1 else BREAK.join(given)
        if not joined.isascii() or joined.count(BREAK) != len(given) - 1:
            return None
        if counts and (len(joined) >> COUNT_BITS or len(given) > MOST_TEXTS):
            return None
        return self._table.read(joined, counts)

    def _read(self, given: Sequence[str]) -> tuple[Array, Array]:
        """The text and the column of each token that is a string in a dict."""
        is_word = self.analyser == "word" and self.most == 1
        codes = self._ascii_codes(given) if is_word else None
        if codes is not None:
            return _kept(codes, len(given))
        plain = self._plain(given, self._is_joined and is_word)
        if len(plain) < len(given):
            return _kept(self._coded(self._find_joined(plain[0])), len(given))
        found = [[*self._tokens(text)] for text in plain]
        tokens = found[0] if len(found) == 1 else [*chain.from_iterable(found)]
        codes = self._coded(tokens)
        texts = np.repeat(np.arange(len(found)), [*map(len, found)])
        kept = (codes >= 0).nonzero()[0]
        return texts[kept], codes[kept]

    def _coded(self, tokens: list[str]) -> Array:
        """The code of each token, int64."""
        objects = np.empty(len(tokens), object)
        objects[:] = tokens
        codes = self._codes.read(objects).astype(np.int64)
        if self.hashed:
            for place in (codes == UNKNOWN).nonzero()[0].tolist():
                codes[place] = self._hash(tokens[place])
        return codes

    def _hash(self, token: str) -> float:
        """The code of a token by its hash, which is kept."""
        known = self._codes.codes
        if token not in known:
            if len(known) >= _MOST_HASHED:
                known.clear()
                known.update(self._fixed_codes)
            try:
                number = signed_hash(token)
            except UnicodeEncodeError as error:
                raise InvalidInput(
                    f"X has {token!r}, which is no text in UTF-8 ({error}); leave surrogates out"
                ) from error
            column = abs(number) % self.hashed
            known[token] = float(2 * column + (number < 0) if self.alternates else column)
        return known[token]

    @cached_property
    def _codes(self) -> WordColumn:
        """The codes of strings: of words or sequences in the vocabulary, of stop words, of breaks.

        Where words are symbols of the trie, codes are numbers of words.
        """
        known = self._symbols if self._walks else self.words
        codes = {word: float(place) for place, word in enumerate(known)}
        codes |= self._fixed_codes
        return WordColumn(0, codes, None, float(UNKNOWN), "vectoriser")

    @property
    def _fixed_codes(self) -> dict[str, float]:
        takes_words = self.analyser == "word" and (self._walks or self.most == 1)
        fixed = dict.fromkeys(self.stop_words if takes_words else (), float(_STOP))
        joins = takes_words and self._is_joined
        return fixed | ({BREAK: float(OF_BREAK)} if joins else {})

    def _plain(self, given: Sequence[str], joins: bool) -> list[str]:
        """The texts in lower case, without accents, as asked; one, if they can be joined."""
        parts = list(given)
        if joins and len(parts) > 1:
            joined = BREAK.join(parts)
            if joined.count(BREAK) == len(parts) - 1:
                parts = [joined]
        if self.is_lower:
            parts = [text.lower() for text in parts]
        return [without_accents(text, self.accents) for text in parts]

    @cached_property
    def _find(self) -> Callable[[str], list[str]]:
        return re.compile(self.pattern).findall

    @cached_property
    def _find_joined(self) -> Callable[[str], list[str]]:
        return re.compile(f"{self.pattern}|{BREAK}").findall

    @cached_property
    def _stops(self) -> frozenset[str]:
        return frozenset(self.stop_words)

    def _tokens(self, text: str) -> Iterable[str]:
        """The tokens of a text as strings."""
        if self.analyser == "word":
            words = self._find(text)
            kept = [word for word in words if word not in self._stops] if self._stops else words
            return kept if self.most == 1 else grams(kept, " ".join, self.least, self.most)
        text = SPACES.sub(" ", text)
        if self.analyser == "char":
            return grams(text, str, self.least, self.most)
        return chain.from_iterable(self._within(f" {word} ") for word in text.split())

    def _within(self, word: str) -> Iterable[str]:
        """The pieces of a word; one that is shorter than `least` counts once."""
        if len(word) < self.least:
            return [word]
        return grams(word, str, self.least, self.most)

    def _walked(self, given: Sequence[str]) -> tuple[Array, Array]:
        """The text and the column of each sequence of symbols that the vocabulary has."""
        symbols, texts = self._of_words(given) if self.analyser == "word" else self._of_chars(given)
        reach = np.minimum(np.arange(len(symbols), 0, -1), self.most)
        least = np.full(len(symbols), self.least)
        if self.analyser == "char_wb":
            take_short(symbols, least)
        found = self._trie.walk(symbols, reach, least)
        return texts[found[:, 0]], found[:, 1].copy()

    def _of_words(self, given: Sequence[str]) -> tuple[Array, Array]:
        """The numbers of words, with OF_BREAK between texts, and the text of each."""
        codes = self._ascii_codes(given)
        if codes is None:
            plain = self._plain(given, True)
            is_joined = len(plain) < len(given)
            found = (
                [self._find_joined(plain[0])]
                if is_joined
                else [[*self._find(text), BREAK] for text in plain]
            )
            codes = self._coded([*chain.from_iterable(found)])
        if self.stop_words:
            codes = codes[codes != _STOP]
        return codes, (codes == OF_BREAK).cumsum()

    def _of_chars(self, given: Sequence[str]) -> tuple[Array, Array]:
        """The numbers of characters, negative between texts and words, and the text of each."""
        plain = self._plain(given, True)
        read = spaced if self.analyser == "char_wb" else collapsed
        if len(plain) == len(given):
            each = [read(text, False) for text in plain]
            ends = np.full(1, OF_BREAK)
            symbols = np.concatenate([part for found in each for part in (found, ends)])
        else:
            symbols = read(plain[0], True)
        return symbols, (symbols == OF_BREAK).cumsum()

    @cached_property
    def _symbols(self) -> list[str]:
        """The words of the vocabulary's sequences of words; none for characters."""
        if self.analyser != "word":
            return []
        return [*dict.fromkeys(chain.from_iterable(each.split(" ") for each in self.words))]

    @cached_property
    def _trie(self) -> TrieTable:
        """The trie of the vocabulary, whose sequences are numbered by column."""
        if self.analyser == "word":
            parts = [each.split(" ") for each in self.words]
            numbers = {word: number for number, word in enumerate(self._symbols)}
            symbols = np.array([numbers[word] for part in parts for word in part], np.int64)
            lengths = [*map(len, parts)]
        else:
            symbols = numbered("".join(self.words), False)
            lengths = [*map(len, self.words)]
        return trie_of(symbols, np.array(lengths, np.int64), self.most)


def texts_of(given: Any) -> list[str]:
    """The texts of an X. Raises InvalidInput for all other things."""
    if isinstance(given, str) or getattr(given, "ndim", 1) != 1:
        raise InvalidInput("X is no list of texts; give several, or one in a list")
    texts = given if type(given) is list else list(given)
    for text in texts:
        if not isinstance(text, str):
            raise InvalidInput(f"X has {text!r} among its texts; give strings")
    return texts


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
    is_counted = not is_weighted and getattr(first, "norm", None) is None
    if is_counted and rest and type(rest[0]).__name__ == "TfidfTransformer":
        weights, *rest = rest
    reader = _reader_of(first, weights)
    behind = rest or [FunctionTransformer().fit(np.zeros((1, reader.width)))]
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
    is_hashed = kind == "HashingVectorizer"
    if not is_hashed and not hasattr(vectoriser, "vocabulary_"):
        raise InvalidInput(f"the {kind} is not fitted; call its fit(texts) first")
    places = {} if is_hashed else vectoriser.vocabulary_
    least, most = map(int, vectoriser.ngram_range)
    frequencies = weights.idf_ if weights is not None and weights.use_idf else ()
    norm = weights.norm if weights is not None else getattr(vectoriser, "norm", None)
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
        norm or "",
        int(vectoriser.n_features) if is_hashed else 0,
        bool(is_hashed and vectoriser.alternate_sign),
    )
