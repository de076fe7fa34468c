"""Texts as strings of symbols: of characters, or of words, as scikit-learn's vectorisers read them.

    numbered, collapsed, spaced   the numbers of characters
    grams                         strings of neighbours
    trie_of                       the trie of known sequences of symbols
    signed_hash                   the hash of a token
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from sparsejit.ir.values import Array
from sparsejit.runtime.trie_walk import TrieTable

SPACES = re.compile(r"\s\s+")
BREAK = "\0"  # between texts
UNKNOWN, OF_BREAK = -1, -2  # numbers of symbols that are in no sequence, and of breaks


def grams(items: Any, join: Callable[[Any], str], least: int, most: int) -> Iterable[str]:
    """The strings of neighbours, from `least` to `most` of them, shorter ones first."""
    return (
        join(items[first : first + length])
        for length in range(least, min(most, len(items)) + 1)
        for first in range(len(items) - length + 1)
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


def take_short(symbols: Array, least: Array) -> None:
    """Let words that are shorter than the least sequence be taken as a whole."""
    edges = np.flatnonzero(np.concatenate([[-1], symbols, [-1]]) < 0) - 1
    firsts, lengths = edges[:-1] + 1, np.diff(edges) - 1
    is_word = lengths > 0
    firsts, lengths = firsts[is_word], lengths[is_word]
    least[firsts] = np.minimum(least[firsts], lengths)


def trie_of(symbols: Array, lengths: Array, most: int) -> TrieTable:
    """The trie of sequences of at most `most` symbols, which lie one after the other."""
    begins = lengths.cumsum() - lengths
    state = np.zeros(len(lengths), np.int64)
    count, parts = 1, [np.zeros((3, 0), np.int64)]
    is_short = lengths <= most
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
    return TrieTable(*np.concatenate(parts, axis=1))


def without_accents(text: str, accents: str | None) -> str:
    if accents is None or text.isascii():
        return text
    apart = unicodedata.normalize("NFKD", text)
    if accents == "ascii":
        return apart.encode("ascii", "ignore").decode("ascii")
    return "".join(each for each in apart if not unicodedata.combining(each))


def signed_hash(token: str) -> int:
    """The 32 bits of MurmurHash3 of a token in UTF-8, with seed 0, as a signed number.

    Raises UnicodeEncodeError for a token that UTF-8 does not have.
    """
    data = token.encode("utf-8")
    whole = len(data) & -4
    state = 0
    for at in range(0, whole, 4):
        state ^= _mixed(int.from_bytes(data[at : at + 4], "little"))
        state = (_rotated(state, 13) * 5 + 0xE654_6B64) & _WORD
    if rest := data[whole:]:
        state ^= _mixed(int.from_bytes(rest, "little"))
    state ^= len(data)
    for shift, factor in ((16, 0x85EB_CA6B), (13, 0xC2B2_AE35), (16, 1)):
        state = ((state ^ state >> shift) * factor) & _WORD
    return state - (state >> 31 << 32)


_WORD = 0xFFFF_FFFF


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> 32 - bits) & _WORD


def _mixed(number: int) -> int:
    return _rotated(number * 0xCC9E_2D51 & _WORD, 15) * 0x1B87_3593 & _WORD
