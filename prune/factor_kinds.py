"""Nearest products of sparse factors, each kind from its sparsest form to an exact one."""

from collections.abc import Callable, Iterator
from math import isqrt

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
# W ~ the product of the first, in order, plus the second where there is one.
Parts = tuple[list[FloatArray], FloatArray | None]

_LEAST_DENSITY, _TURNS = 1 / 1024, 32


def monarch(weights: FloatArray) -> Iterator[Parts]:
    """Yield Monarch factors (Dao et al. 2022), of rank 1 upwards: the weights' nearest product.

    Both factors are block-diagonal except for the order of rows. The numbers of blocks are the
    divisors of both sizes that are nearest to their square roots.
    """
    rows, columns = weights.shape
    blocks = _nearest_divisor(columns), _nearest_divisor(rows)
    for rank in range(1, min(rows // blocks[1], columns // blocks[0]) + 1):
        left, right = _split(weights, *blocks, rank)
        yield [left, right], None


def butterfly(weights: FloatArray) -> Iterator[Parts]:
    """Factors with two weights a row, and a last one of blocks, from 2x2 upwards.

    The factorisation is hierarchical (Zheng, Gribonval and Riccietti 2021): each half of the factor
    that a level leaves is split again.
    """
    factors, levels = [], []
    rest = [weights]
    while rest[0].shape[0] == rest[0].shape[1] > 2 and rest[0].shape[0] % 2 == 0:
        halves = [_split(block, 2, block.shape[0] // 2, 1) for block in rest]
        factors.append(_diagonal([left for left, _ in halves]))
        rest = [part for _, right in halves for part in _blocks(right, 2)]
        levels.append([*factors, _diagonal(rest)])
    for level in reversed(levels):
        yield level, None
    yield [weights], None


def block_circulant(weights: FloatArray) -> Iterator[Parts]:
    """Circulant square blocks: transform, product, transform back; the fewest weights first.

    A block is the mean along each of its diagonals; the transform is Fourier's, in real numbers.
    """
    rows, columns = weights.shape
    common = int(np.gcd(rows, columns))

    def weights_of(size: int) -> float:
        return size * (rows + columns) + 2 * weights.size / size

    for size in sorted((n for n in range(2, common + 1) if common % n == 0), key=weights_of):
        yield _circulant_factors(weights, size), None
    yield [weights], None


def low_rank_plus_sparse(weights: FloatArray) -> Iterator[Parts]:
    """A low rank plus a sparse rest, fitted in turns; rank and density double from the least.

    The low-rank factors and the rest have about the same number of weights.
    """
    rows, columns = weights.shape
    density = _LEAST_DENSITY
    while density < 0.5:
        rank = max(1, round(density * rows * columns / (rows + columns)))
        kept = max(1, round(density * weights.size))
        yield _rank_and_rest(weights, rank, kept)
        density *= 2
    yield [weights], None


KINDS: dict[str, Callable[[FloatArray], Iterator[Parts]]] = {
    "monarch": monarch,
    "butterfly": butterfly,
    "block-circulant": block_circulant,
    "low-rank-plus-sparse": low_rank_plus_sparse,
}


def _nearest_divisor(size: int) -> int:
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    return min(divisors, key=lambda n: abs(n - isqrt(size)))


def _split(
    weights: FloatArray, inputs: int, outputs: int, rank: int
) -> tuple[FloatArray, FloatArray]:
    """Block factors, left (out, middle) and right (middle, in), of the product nearest to weights.

    `inputs` and `outputs` are the numbers of blocks. Column (k, i) lies in input block k, row (l,
    j) in output block j; for each k and j the weights (l, i) become a product of that rank. The
    middle is (k, j, rank).
    """
    rows, columns = weights.shape
    apart = weights.reshape(rows // outputs, outputs, inputs, columns // inputs)
    u, s, v = np.linalg.svd(apart.transpose(2, 1, 0, 3), full_matrices=False)
    root = np.sqrt(s[..., :rank])
    left = np.zeros((rows // outputs, outputs, inputs, outputs, rank))
    right = np.zeros((inputs, outputs, rank, inputs, columns // inputs))
    every = np.arange(outputs)
    left[:, every, :, every] = (u[..., :rank] * root[..., None, :]).transpose(1, 2, 0, 3)
    every = np.arange(inputs)
    right[every, :, :, every] = v[..., :rank, :] * root[..., None]
    middle = inputs * outputs * rank
    return left.reshape(rows, middle), right.reshape(middle, columns)


def _blocks(matrix: FloatArray, count: int) -> list[FloatArray]:
    """The `count` blocks on a matrix's diagonal, all of one shape."""
    height, width = (size // count for size in matrix.shape)
    return [
        matrix[n * height : (n + 1) * height, n * width : (n + 1) * width] for n in range(count)
    ]


def _diagonal(blocks: list[FloatArray]) -> FloatArray:
    height, width = blocks[0].shape
    whole = np.zeros((len(blocks), height, len(blocks), width))
    every = np.arange(len(blocks))
    whole[every, :, every] = np.array(blocks)
    return whole.reshape(len(blocks) * height, len(blocks) * width)


def _circulant_factors(weights: FloatArray, size: int) -> list[FloatArray]:
    """Factors T^T, T C T^T and T of the nearest matrix of circulant blocks C; T is orthogonal.

    T is a Fourier transform in real numbers: a circulant block becomes 1x1 blocks for the means and
    2x2 for each frequency.
    """
    transform = _real_fourier(size)
    down, across = (n // size for n in weights.shape)
    blocks = weights.reshape(down, size, across, size)
    lag = (np.arange(size)[:, None] - np.arange(size)) % size
    first = np.zeros((down, across, size))
    for shift in range(size):
        first[..., shift] = blocks.transpose(0, 2, 1, 3)[..., lag == shift].mean(axis=-1)
    circulant = first[..., lag]
    product = transform @ circulant @ transform.T
    frequency = (np.arange(size) + 1) // 2
    product *= frequency[:, None] == frequency  # exactly zero but for rounding
    middle = product.transpose(0, 2, 1, 3).reshape(weights.shape)
    return [_diagonal([transform.T] * down), middle, _diagonal([transform] * across)]


def _real_fourier(size: int) -> FloatArray:
    """Orthogonal transform: a row for the mean, then a cosine and a sine of each frequency."""
    time = np.arange(size)
    rows = [np.ones(size)]
    for frequency in range(1, size // 2 + 1):
        angle = 2 * np.pi * frequency * time / size
        rows += [np.cos(angle), np.sin(angle)] if 2 * frequency < size else [np.cos(angle)]
    return np.array([row / np.linalg.norm(row) for row in rows])


def _rank_and_rest(weights: FloatArray, rank: int, kept: int) -> Parts:
    basis = np.random.default_rng(0).standard_normal((weights.shape[1], rank))
    rest = np.zeros_like(weights)
    for _ in range(_TURNS):
        smooth = weights - rest
        left = np.linalg.qr(smooth @ basis)[0]
        basis = smooth.T @ left
        missing = weights - left @ basis.T
        smallest = np.partition(abs(missing).ravel(), -kept)[-kept]
        rest = np.where(abs(missing) >= smallest, missing, 0)
    return [left, basis.T], rest
