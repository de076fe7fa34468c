"""Pairing of block rows, and of inputs, in vectors of two strips of four outputs each.

    lanes      0  1  2  3 |  4  5  6  7
    outputs   20 21 22 23 | 84 85 86 87      any two block rows
    inputs     c  c  c  c |  d  d  d  d      one of each, in every step

A vector of inputs takes two loads and a blend, so it should serve many steps: of one vector of
outputs or, better, of several vectors of a tile. If c is d, one load is enough.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

_Numbers = npt.NDArray[np.integer]
_Flags = npt.NDArray[np.bool_]
_Pairs = list[tuple[int, int]]


def paired_block_rows(blocks: _Flags) -> _Numbers:
    """Return the block rows of both strips of each vector, fullest first: (vectors, 2).

    `blocks`: which blocks hold a nonzero, (block rows, inputs). A partner has a similar number of
    blocks, of the same inputs as far as can be. If the number of block rows is odd, the partner of
    one is `len(blocks)`, which means none.
    """
    padded = np.pad(blocks, ((0, len(blocks) % 2), (0, 0))).astype(np.float32)
    number = padded.sum(axis=1)
    worth = padded @ padded.T - np.abs(number - number[:, None])
    np.fill_diagonal(worth, -np.inf)
    pairs, taken = [], np.zeros(len(padded), bool)
    for one in np.argsort(-number, kind="stable").tolist():
        if not taken[one]:
            other = int(worth[one].argmax())
            pairs.append((one, other))
            taken[[one, other]] = True
            worth[:, [one, other]] = -np.inf
    return np.array(pairs)


def strip_steps(used: _Flags, reach: int) -> _Numbers:
    """Return the vector and the lower and upper input of each step: (3, steps), by inputs.

    `used`: which inputs each strip needs, (vectors, 2, inputs). Surplus inputs of one strip are
    used in both strips: the other multiplies them by zeros, and an input that is not finite spoils
    no output that it would not spoil in the dense product. Inputs that are not shared are paired,
    as far as can be, with an input in the same `reach` inputs, where that makes shorter code.
    """
    steps = np.array(list(_steps(used, reach)), int).reshape(-1, 3)
    ordered: _Numbers = steps[np.lexsort(steps.T[[0, 2, 1]])].T
    return ordered


def _steps(used: _Flags, reach: int) -> Iterator[tuple[int, int, int]]:
    vectors = np.arange(len(used))
    lower, upper = np.einsum("vsi,v->si", used, 1 << vectors)
    for one, other, common in _shared(lower, upper, len(vectors)):
        for vector in np.flatnonzero(common >> vectors & 1).tolist():
            yield vector, one, other
    for vector in vectors.tolist():
        ones, others = (np.flatnonzero(masks >> vector & 1).tolist() for masks in (lower, upper))
        pairs, ones, others = _reached(ones, others, reach)
        far = min(len(ones), len(others))
        pairs += zip(ones[:far], others[:far], strict=True)
        pairs += ((each, each) for each in ones[far:] + others[far:])
        yield from ((vector, one, other) for one, other in pairs)


def _shared(lower: _Numbers, upper: _Numbers, vectors: int) -> Iterator[tuple[int, int, int]]:
    """Yield pairs of inputs that several vectors can use together: lower, upper, bits of vectors.

    Both arrays hold, for each input, a bit for each vector whose strip needs it; bits that are
    found are cleared. Inputs that both strips of a vector need come first, then inputs that most
    vectors share.
    """
    both = lower & upper
    lower ^= both
    upper ^= both
    yield from ((each, each, int(both[each])) for each in np.flatnonzero(both).tolist())
    bits = np.array([number.bit_count() for number in range(1 << vectors)], np.int8)
    for least in range(int(bits[lower].max()), 1, -1):
        for one in np.flatnonzero(bits[lower] >= least).tolist():
            while bits[lower[one]] >= least:
                shared = bits[lower[one] & upper]
                other = int(shared.argmax())
                if shared[other] < least:
                    break
                common = int(lower[one] & upper[other])
                lower[one] ^= common
                upper[other] ^= common
                yield one, other, common


def _reached(
    ones: list[int], others: list[int], reach: int
) -> tuple[_Pairs, list[int], list[int]]:
    """Return pairs of inputs that one base register reaches, and the inputs left of each strip."""
    pairs: _Pairs = []
    ones_left: list[int] = []
    others_left: list[int] = []
    for window in sorted({number // reach for number in ones + others}):
        own, own_others = ([n for n in part if n // reach == window] for part in (ones, others))
        both = min(len(own), len(own_others))
        pairs += zip(own[:both], own_others[:both], strict=True)
        ones_left += own[both:]
        others_left += own_others[both:]
    return pairs, ones_left, others_left
