"""Texts as counts of their words or characters, as scikit-learn's vectorisers count.

    text_of      the reader of a pipeline's first step, and the pipeline behind it
    TextReader   texts -> counts or weights (texts, vocabulary)

    texts   joined by "\\0", which is in no token
    words   runs of letters, found and coded natively; of other patterns by a regular expression,
            and a dict
    grams   a native walk through the trie of the vocabulary, or by hashes, over codes of words or
            characters
    counts  of each code of a text, natively in the same walks
    sums    the products of counts and weights, also there

Only counts that are not zero exist. They are weighted as by a TfidfTransformer, in its order of
operations, to the last bit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.text_symbols import (
    BREAK,
    UNKNOWN,
    LetterRun,
    classes_of,
    collapsed,
    grams,
    letters_of,
    numbered,
    run_of,
    spaced,
    trie_of,
    without_accents,
)
from sparsejit.estimators.words import WordColumn
from sparsejit.ir.values import Array
from sparsejit.runtime.token_counts import (
    BIAS,
    CODE_BITS,
    COUNT_BITS,
    KEY_BITS,
    MOST_TEXTS,
    NORMS,
    TokenSums,
)
from sparsejit.runtime.trie_walk import OF_BREAK, GramTable, HashTable, Reach, Symbols
from sparsejit.runtime.word_codes import ASCII, POINTS, Width, WordTable

VECTORISERS = frozenset({"CountVectorizer", "HashingVectorizer", "TfidfVectorizer"})
_OWN_CODE = ("preprocessor", "tokenizer")
ANALYSERS = ("char", "char_wb", "word")
ACCENTS = (None, "ascii", "unicode")
WEIGHT_NORMS = ("", "l1", "l2", "max")
_STOP = -3  # the code of a stop word
_PART = 1 << 16  # characters whose counts are made at the same time


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


def _fits(width: Width, text: str | bytes) -> bool:
    """Whether no text has more words than a packed count holds."""
    return len(text) < width.bytes << COUNT_BITS


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

    @property
    def may_be_below_0(self) -> bool:
        """Whether a weighted count may be below 0."""
        is_signed = self.alternates and not self.is_binary
        return is_signed or self.is_sublinear or min(self.weights, default=1.0) < 0

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
            found = summed(given)
            return self.counts(given).times(weights) if found is None else found

        return lambda given: map(products_of, self._parted(given))

    def _sums(self, weights: Array) -> Callable[[Sequence[str]], Array | None]:
        """The native sums of texts; None where their tokens or norm are not native."""
        if self.norm not in NORMS or not (self._packs or self._is_symbols):
            return lambda given: None
        values = np.arange(1 << COUNT_BITS, dtype=np.float64)
        if self.alternates:
            values -= BIAS
        if self.is_binary:
            values[:] = 1
        if self.is_sublinear:
            with np.errstate(all="ignore"):
                values = np.log(values) + 1
        frequencies = self._weights if self.weights else np.ones(self.width)
        terms = TokenSums(values, frequencies, weights, self.norm)
        if not self._packs:
            of_symbols = self._grams.sums(terms)
            return lambda given: self._found(given, of_symbols)
        made: dict[Width, Any] = {}

        def of_words(given: Sequence[str]) -> Array | None:
            native = self._native(given)
            if native is None or not _fits(*native):
                return None
            width, text = native
            if width not in made:
                made[width] = self._table(width).sums(terms)
            return None if made[width] is None else made[width](text, len(given))

        return of_words

    def counts(self, given: Sequence[str]) -> TextCounts:
        """The weighted counts of some texts."""
        rows, columns, numbers = self._counted(given)
        if self.is_binary:
            numbers[:] = 1
        if self.is_sublinear:
            with np.errstate(all="ignore"):  # hashes may have counts below 0
                numbers = np.log(numbers) + 1
        if self.weights:
            numbers *= self._weights.take(columns)
        if self.norm and len(numbers):
            numbers /= _norms(self.norm, rows, numbers, len(given))
        return TextCounts(len(given), rows, columns, numbers)

    def _counted(self, given: Sequence[str]) -> tuple[Array, Array, Array]:
        """The text, the column and the count of each token, in this order."""
        packed = self._packed(given) if len(given) <= MOST_TEXTS else None
        if packed is not None:
            packed.sort()
            codes = packed >> COUNT_BITS
            counts = (packed & ((1 << COUNT_BITS) - 1)).astype(np.float64)
            if self.alternates:
                counts -= BIAS
            if len(given) == 1:
                return np.zeros(len(codes), np.int64), codes, counts
            return codes >> CODE_BITS, codes & ((1 << CODE_BITS) - 1), counts
        keys, signs = self._keys(given), None
        keys.sort()
        if self.alternates:
            keys, signs = keys >> 32 << 32 | (keys & (1 << 32) - 1) >> 1, 1.0 - 2 * (keys & 1)
        firsts = _firsts(keys)
        own = keys[firsts]
        counts = np.diff(firsts, append=len(keys)).astype(np.float64)
        if signs is not None and len(firsts):
            counts = np.add.reduceat(signs, firsts)
        return own >> KEY_BITS, own & (1 << KEY_BITS) - 1, counts

    def _packed(self, given: Sequence[str]) -> Array | None:
        """Counts that native code has packed; None where it has none, or they would not fit."""
        if self._packs:
            native = self._native(given)
            if native is None or not _fits(*native):
                return None
            return self._table(native[0]).counts(native[1])
        return self._found(given, self._grams.counts) if self._is_symbols else None

    def _keys(self, given: Sequence[str]) -> Array:
        """The key of each token, text << KEY_BITS | code, where codes may be of any number."""
        if self._is_symbols:
            return self._taken(self._symbols_of(given), self._grams.keys)
        found = [[*self._tokens(text)] for text in map(self._plain, given)]
        codes = self._coded([*chain.from_iterable(found)])
        texts = np.repeat(np.arange(len(found)), [*map(len, found)])
        return (texts << KEY_BITS | codes)[codes >= 0]

    def _found(self, given: Sequence[str], count: Callable[[Symbols], Array]) -> Array | None:
        """The result of a native count of symbols; None where counts would not fit."""
        symbols = self._symbols_of(given)
        size, lengths = len(symbols.numbers), self.most - self.least + 1
        most = BIAS if self.alternates else 1 << COUNT_BITS
        if size * lengths >= most:
            breaks = (symbols.numbers == OF_BREAK).nonzero()[0]
            size = int(np.diff(breaks, prepend=-1, append=size).max())
        return self._taken(symbols, count) if size * lengths < most else None

    def _taken(self, symbols: Symbols, count: Callable[[Symbols], Array]) -> Array:
        try:
            return count(symbols)
        except UnicodeError as error:
            raise InvalidInput(
                f"X has a text that is none in UTF-8 ({error}); leave surrogates out"
            ) from error

    @cached_property
    def _weights(self) -> Array:
        return np.array(self.weights)

    @cached_property
    def _run(self) -> LetterRun | None:
        """The runs of letters that are words; None where a regular expression finds others."""
        return run_of(self.pattern) if self.analyser == "word" else None

    @property
    def _packs(self) -> bool:
        """Whether words are columns, which native code may count."""
        return self._run is not None and self.most == 1 and not self.hashed

    @cached_property
    def _is_symbols(self) -> bool:
        """Whether tokens are sequences of symbols; else they are strings, in a dict.

        A sequence of words is a string with spaces, which says its words if these have none.
        """
        if self.hashed or self.analyser != "word":
            return True
        return self.most > 1 and self._run is not None and not letters_of(self._run.atom)[ord(" ")]

    @cached_property
    def _grams(self) -> GramTable:
        """The known sequences of symbols, or hashes of all."""
        reach = Reach(self.least, self.most, self.analyser == "char_wb")
        if self.hashed:
            return HashTable(self.hashed, self.alternates, reach)
        if self.analyser == "word":
            parts = [each.split(" ") for each in self.words]
            numbers = {word: number for number, word in enumerate(self._symbols)}
            symbols = np.array([numbers[word] for part in parts for word in part], np.int64)
            lengths = [*map(len, parts)]
        else:
            symbols = numbered("".join(self.words), False)
            lengths = [*map(len, self.words)]
        return trie_of(symbols, np.array(lengths, np.int64), reach)

    @cached_property
    def _symbols(self) -> list[str]:
        """The words of the vocabulary's sequences of words; none for characters and hashes."""
        if self.hashed or self.analyser != "word":
            return []
        return [*dict.fromkeys(chain.from_iterable(each.split(" ") for each in self.words))]

    @cached_property
    def _codes(self) -> dict[str, int]:
        """The codes of strings: of words or sequences in the vocabulary, and of stop words.

        Where words are symbols, codes are their numbers.
        """
        known = self._symbols if self._is_symbols else self.words
        codes = {word: place for place, word in enumerate(known)}
        if self._is_symbols or self.most == 1:
            codes |= dict.fromkeys(self.stop_words, _STOP)
        return codes

    @property
    def _unknown(self) -> int:
        """The code of other words: all are symbols where they are hashed."""
        return 0 if self.hashed else UNKNOWN

    @cached_property
    def _column(self) -> WordColumn:
        codes = {word: float(code) for word, code in self._codes.items()}
        return WordColumn(0, codes, None, float(self._unknown), "vectoriser")

    def _coded(self, tokens: list[str]) -> Array:
        """The code of each token, int64."""
        objects = np.empty(len(tokens), object)
        objects[:] = tokens
        return self._column.read(objects).astype(np.int64)

    @cached_property
    def _tables(self) -> dict[Width, WordTable]:
        return {}

    def _table(self, width: Width) -> WordTable:
        """The native table of words."""
        if width not in self._tables:
            assert self._run is not None
            classes = classes_of(self._run.atom, self.is_lower, width)
            codes = self._unknown, OF_BREAK
            self._tables[width] = WordTable(self._codes, classes, self._run.least, *codes, width)
        return self._tables[width]

    def _native(self, given: Sequence[str]) -> tuple[Width, str | bytes] | None:
        """The texts as native code reads their words, with breaks between; None where it cannot."""
        if self._run is None:
            return None
        joined = given[0] if len(given) == 1 else BREAK.join(given)
        if joined.count(BREAK) != len(given) - 1:
            letters = letters_of(self._run.atom)
            if letters[ord(BREAK)] or letters[ord(" ")]:
                return None
            joined = BREAK.join(each.replace(BREAK, " ") for each in given)
        if joined.isascii() and not self.hashed:
            return ASCII, joined
        return POINTS, self._plain(joined).encode("utf-32-le", "surrogatepass")

    def _plain(self, text: str) -> str:
        """A text in lower case, without accents, as asked."""
        return without_accents(text.lower() if self.is_lower else text, self.accents)

    @cached_property
    def _find(self) -> Callable[[str], list[str]]:
        return re.compile(self.pattern).findall

    @cached_property
    def _stops(self) -> frozenset[str]:
        return frozenset(self.stop_words)

    def _tokens(self, text: str) -> Iterable[str]:
        """The words of a text, or sequences of them, as strings."""
        words = [word for word in self._find(text) if word not in self._stops]
        return words if self.most == 1 else grams(words, self.least, self.most)

    def _symbols_of(self, given: Sequence[str]) -> Symbols:
        """The words or characters of texts, with OF_BREAK between texts."""
        if self.analyser != "word":
            return Symbols(self._of_chars(given))
        native = self._native(given)
        found = None if native is None else self._table(native[0]).read(native[1])
        if native is None or found is None:
            return self._of_strings([self._find(self._plain(text)) for text in given])
        codes, spans = found
        if self.stop_words:
            kept = codes != _STOP
            codes, spans = codes[kept], spans[kept]
        points = np.frombuffer(native[1], np.uint32) if isinstance(native[1], bytes) else None
        return Symbols(codes, points, spans) if self.hashed else Symbols(codes)

    def _of_strings(self, words: Sequence[list[str]]) -> Symbols:
        """The words of texts as symbols."""
        every = [*chain.from_iterable(words)]
        codes, lengths = self._coded(every), np.array([*map(len, every)], np.int64)
        breaks = np.cumsum([*map(len, words)])[:-1]
        ends = lengths.cumsum()
        spans = np.stack([ends - lengths, ends], axis=1)
        kept = np.insert(codes != _STOP, breaks, True)
        codes, spans = np.insert(codes, breaks, OF_BREAK), np.insert(spans, breaks, 0, axis=0)
        points = np.frombuffer("".join(every).encode("utf-32-le", "surrogatepass"), np.uint32)
        spans = np.ascontiguousarray(spans[kept])
        return Symbols(codes[kept], points, spans) if self.hashed else Symbols(codes[kept])

    def _of_chars(self, given: Sequence[str]) -> Array:
        """The numbers of characters, negative between texts and words."""
        read = spaced if self.analyser == "char_wb" else collapsed
        joined = given[0] if len(given) == 1 else BREAK.join(given)
        if len(given) > 1 and joined.count(BREAK) == len(given) - 1:
            return read(self._plain(joined), True)
        ends = np.full(1, OF_BREAK)
        each = [part for text in given for part in (read(self._plain(text), False), ends)]
        return np.concatenate(each[:-1])


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
class TextColumn:
    """A feature of X that holds texts, and their reader."""

    feature: int
    reader: TextReader


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
