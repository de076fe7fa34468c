"""Texts as strings of symbols: of characters, or of words, as scikit-learn's vectorisers read them.

    run_of, classes_of            patterns that match runs of letters; characters that are in these
    collapsed, spaced             the numbers of characters
    grams                         strings of neighbours
    trie_of                       the trie of known sequences of symbols
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

from sparsejit.ir.values import Array
from sparsejit.runtime.trie_walk import GAP, OF_BREAK, Reach, TrieTable
from sparsejit.runtime.word_codes import ASCII, LETTER, POINTS, Width
from sparsejit.runtime.word_codes import BREAK as BREAKS

SPACES = re.compile(r"\s\s+")
BREAK = "\0"  # between texts
UNKNOWN = GAP
_ATOM = r"\\[dDsSwW]|\[\^?(?:\\.|[^\\\[\]])+\]"
_RUN = re.compile(rf"(?:\(\?u\))?(\\b)?({_ATOM})((?:\2)*)(?:(\+)|\{{(\d+),\}})(\\b)?", re.DOTALL)


class LetterRun(NamedTuple):
    """Longest runs of characters that a pattern of one character matches, `least` or more."""

    atom: str
    least: int


def run_of(pattern: str) -> LetterRun | None:
    r"""The runs that a pattern of words matches, such as \b\w\w+\b; None if it matches others."""
    found = _RUN.fullmatch(pattern)
    if found is None:
        return None
    before, atom, more, plus, least, behind = found.groups()
    if (before or behind) and atom != r"\w":  # a run may end within a word
        return None
    repeats = len(more) // len(atom) + (1 if plus else int(least))
    return LetterRun(atom, repeats) if repeats else None


@cache
def letters_of(atom: str) -> Array:
    """Whether each character is in runs, bool (0x110000,)."""
    every = np.arange(POINTS.kinds, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    letters = np.zeros(POINTS.kinds, bool)
    for found in re.finditer(f"(?:{atom})+", every):
        letters[found.start() : found.end()] = True
    return letters


@cache
def classes_of(atom: str, is_lower: bool, width: Width) -> Array:
    """The classes of characters in texts that are joined by breaks; capitals of ASCII are lowered.
    """
    points = np.arange(width.kinds)
    if width == ASCII and is_lower:
        points = np.array([ord(chr(point).lower()) for point in points.tolist()])
    classes = np.where(letters_of(atom)[points], points + LETTER, 0)
    classes[ord(BREAK)] = BREAKS
    return classes


def grams(words: list[str], least: int, most: int) -> Iterable[str]:
    """The strings of neighbours, from `least` to `most` of them, shorter ones first."""
    return (
        " ".join(words[first : first + length])
        for length in range(least, min(most, len(words)) + 1)
        for first in range(len(words) - length + 1)
    )


def numbered(text: str, has_breaks: bool) -> Array:
    """The numbers of a text's characters, int64; OF_BREAK for breaks."""
    found = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
    if has_breaks:
        found[found == ord(BREAK)] = OF_BREAK
    return found


def collapsed(text: str, has_breaks: bool) -> Array:
    """The numbers of characters, where one space stands for several."""
    return numbered(SPACES.sub(" ", text), has_breaks)


def spaced(text: str, has_breaks: bool) -> Array:
    """The numbers of the words' characters, with a space around each word, UNKNOWN between."""
    if has_breaks:
        text = text.replace(BREAK, f" {BREAK} ")
    words = text.split()
    if not words:
        return np.zeros(0, np.int64)
    found = numbered(f" {f' {chr(10)} '.join(words)} ", has_breaks)
    found[found == ord("\n")] = UNKNOWN
    if has_breaks:
        breaks = (found == OF_BREAK).nonzero()[0]
        found[breaks - 1] = found[breaks + 1] = UNKNOWN
    return found


def trie_of(symbols: Array, lengths: Array, reach: Reach) -> TrieTable:
    """The trie of sequences of symbols, which lie one after the other."""
    begins = lengths.cumsum() - lengths
    state = np.zeros(len(lengths), np.int64)
    count, parts = 1, [np.zeros((3, 0), np.int64)]
    is_short = lengths <= reach.most
    for depth in range(int(lengths[is_short].max(initial=0))):
        own = np.flatnonzero(is_short & (lengths > depth))
        wanted = state[own] << 32 | symbols[begins[own] + depth]
        keys, inverse = np.unique(wanted, return_inverse=True)
        state[own] = count + inverse
        ends = np.full(len(keys), UNKNOWN)
        is_end = lengths[own] == depth + 1
        ends[inverse[is_end]] = own[is_end]
        parts.append(np.stack([keys, count + np.arange(len(keys)), ends]))
        count += len(keys)
    steps, states, sequences = np.concatenate(parts, axis=1)
    return TrieTable(steps, states, sequences, reach)


def without_accents(text: str, accents: str | None) -> str:
    if accents is None or text.isascii():
        return text
    apart = unicodedata.normalize("NFKD", text)
    if accents == "ascii":
        return apart.encode("ascii", "ignore").decode("ascii")
    return "".join(each for each in apart if not unicodedata.combining(each))
