"""Which block rows and inputs share a vector of two strips, each of four outputs.

    lanes      0  1  2  3 |  4  5  6  7
    outputs   20 21 22 23 | 84 85 86 87      any two block rows
    inputs     c  c  c  c |  d  d  d  d      one of each, in every step

A vector of inputs takes two loads and a blend, so what counts is how many steps it serves: those of
one vector of outputs or, better, of several of a tile. Where c is d, one load makes it.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

_Numbers = npt.NDArray[np.integer]
_Flags = npt.NDArray[np.bool_]
_Pairs = list[tuple[int, int]]


def paired_block_rows(blocks: _Flags) -> _Numbers:
    """The block rows of both strips of each vector, fullest first: (vectors, 2).

    `blocks`: which blocks hold a nonzero, (block rows, inputs). A partner has about as many blocks,
    of the same inputs as far as can be; where their number is odd, one has none: `len(blocks)`.
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
    """The vector and the lower and upper input of each step: (3, steps), in order of inputs.

    `used`: which inputs each strip needs, (vectors, 2, inputs). What one strip has more than the
    other is the same for both: it multiplies zeros there, and an input that is not finite spoils
    no output that it would not spoil in the dense product. What is not shared is paired, as far as
    can be, with one of the same `reach` inputs, where that makes shorter code.
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
    """Two inputs that several vectors have in their lower and upper strip, and those vectors.

    Both arrays hold, for each input, a bit for each vector, and lose those that are found. First
    comes what both strips of a vector have, then what most vectors share.
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
    """Pairs of inputs that one base register reaches, and what is left of each."""
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
