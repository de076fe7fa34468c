"""Polynomials of the functions of a chain, constant terms first.

EXP, LOG and ERF have the least relative error (`git show 740c1e5:perf/fit_functions.py`), at most
4e-9, 1e-8 and 6e-8 in exact arithmetic; in float32 erf errs by up to 3.5e-7, and in pieces by 1e-7.
SIN and COS are from Cephes' sinf.c and cosf.c.
"""

from functools import cache
from math import erf

import numpy as np
import numpy.typing as npt

# exp x = 1 + x + x^2 P(x) on [-ln 2 / 2, ln 2 / 2].
EXP = (0.49999994, 0.16666521, 0.04166839, 0.00836871, 0.0013814614)
# log(1 + x) = x - x^2 / 2 + x^3 P(x) on [-1/4, 1/2].
LOG = (
    *(0.3333345, -0.25000095, 0.19990861, -0.16647312),
    *(0.14478394, -0.13161194, 0.10463026, -0.045074835),
)
# erf x = x P(x^2) / Q(x^2) on [-4, 4].
ERF_NUMERATOR = (1.1283791, 0.19354483, 0.053101663, 0.003883317, 0.00028456261, 1.9867516e-06)
ERF_DENOMINATOR = (1.0, 0.5048572, 0.11534986, 0.015207202, 0.0011855594, 3.741968e-05)
ERF_LIMIT = 4.0
# AVX-512: length of the intervals of |x| that erf is cut into, and degree of their polynomials.
ERF_STEP, ERF_DEGREE = 0.262, 5
# sin x = x P(x^2) and cos x = P(x^2) on [-pi / 4, pi / 4].
SIN = (1.0, -1.6666654611e-1, 8.3321608736e-3, -1.9515295891e-4)
COS = (1.0, -0.5, 4.166664568298827e-02, -1.388731625493765e-03, 2.443315711809948e-05)
# Largest |x| for which pi / 2 as a sum of three float32 is accurate enough.
SINE_NEAR = 1e6
# The fraction bits of 1 / (2 pi), and the biased exponent of a float32 whose product with them
# begins 32 bits before the point: with exponent 150 a mantissa is the whole number it stands for.
_TURN = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E0 >> 2
_TURN_WORDS = 10
TURN_BITS = 150 - 32

LOG2_E = float(np.log2(np.e))
# Below -104 exp rounds to zero, from 88.8 on to infinity.
EXP_LOWEST, EXP_HIGHEST = -176.0, 89.0
EXP_LEAST_POWER = -254  # of 2, rounded from e^-176; below e^-104 exp is 0 in float32
EXP2_LOWEST, EXP2_HIGHEST = -254.0, 128.5  # the same bounds for 2^x
EXPM1_LOWEST = -18.0  # exp(-18) - 1 rounds to -1


@cache
def erf_pieces(count: int) -> npt.NDArray[np.float32]:
    """Return the polynomials of erf by pieces: coefficients (degree + 1, count).

    Piece n is around |x| = n ERF_STEP, its variable is |x| / ERF_STEP - n. Polynomials equal erf at
    the Chebyshev nodes of their piece. The first is odd, the last is 1.
    """
    nodes = np.cos(np.pi * (np.arange(ERF_DEGREE + 1) + 0.5) / (ERF_DEGREE + 1)) / 2
    pieces = np.zeros((ERF_DEGREE + 1, count))
    for number in range(count - 1):
        values = [erf(ERF_STEP * (number + node)) for node in nodes]
        pieces[:, number] = np.polynomial.polynomial.polyfit(nodes, values, ERF_DEGREE)
    pieces[::2, 0] = 0
    pieces[0, -1] = 1
    return pieces.astype(np.float32)


def turn_words(lanes: int) -> list[npt.NDArray[np.int32]]:
    """Return the bits of 1 / (2 pi) as three tables of 32-bit words: word n, n + 1 and n + 2.

    Word 0 is 0, word 1 has the first bits behind the point. A table has 8 words, repeated to fill
    `lanes`.
    """
    words = [_TURN >> 32 * (_TURN_WORDS - n) & 0xFFFFFFFF for n in range(_TURN_WORDS + 1)]
    table = np.array(words, np.uint32).view(np.int32)
    return [np.tile(table[first : first + 8], lanes // 8) for first in range(3)]


def split(value: float, count: int) -> tuple[float, ...]:
    """Return `count` float32 numbers that sum to `value`, each the nearest to the remainder."""
    parts = []
    for _ in range(count):
        parts.append(float(np.float32(value)))
        value -= parts[-1]
    return tuple(parts)


LN2 = split(float(np.log(2.0)), 2)
HALF_PI = split(float(np.pi / 2), 3)
# 16 bits and the rest, both positive: an exponent times the first is exact.
LN2_SHORT = 0.693145751953125
LN2_REST = float(np.log(2.0)) - LN2_SHORT
