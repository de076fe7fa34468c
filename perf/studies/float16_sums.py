"""The error of sums of short products on normal data, by how they are rounded and added.

    python -m sparsejit.perf.studies.float16_sums                            (some seconds)

Prints a table, times 10^-4: the root of the mean squared error, over the root of the mean square of
the sums, by the number of products of a row, for a normal x and for its positive part. numpy
emulates each instruction; a float64 holds the product of two float16 exactly, and rounds their sum
to the same float16 except for rare ties.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sparsejit.ir.reference import round_to_bfloat16

_PRODUCTS = (8, 77, 307, 768, 3072)
_MOST_ROWS = 1_000_000  # products of all rows
_SEGMENT, _CHAINS = 30, 2  # as compressed rows at 10 % nonzeros have them

Float64 = npt.NDArray[np.float64]


def _half(values: Float64) -> Float64:
    return values.astype(np.float16).astype(np.float64)


def _pair(values: Float64) -> Float64:
    return np.asarray(round_to_bfloat16(values.astype(np.float32)), np.float64)


def _chain(w: Float64, x: Float64) -> Float64:
    """Sums of rows, each added up in float16 one product after the other."""
    sums = np.zeros(len(w))
    for place in range(w.shape[1]):
        sums = _half(w[:, place] * x[:, place] + sums)
    return sums


def _segments(w: Float64, x: Float64, wide: bool) -> Float64:
    """Sums of rows by segments, in chains; they are added in float16, or if `wide` in float32."""
    total = np.zeros(len(w))
    for first in range(0, w.shape[1], _SEGMENT):
        parts = [slice(first + chain, first + _SEGMENT, _CHAINS) for chain in range(_CHAINS)]
        found = _half(np.sum([_chain(w[:, part], x[:, part]) for part in parts], axis=0))
        total = total + found if wide else _half(total + found)
    return total


def _plain(w: Float64, x: Float64) -> Float64:
    return np.asarray((w * x).sum(axis=1))


WAYS: dict[str, Callable[[Float64, Float64], Float64]] = {
    "float16 weights, float32 sums": lambda w, x: _plain(_half(w), x),
    "bfloat16 weights, float32 sums": lambda w, x: _plain(_pair(w), x),
    "both bfloat16, float32 sums (`dense-pairs`)": lambda w, x: _plain(_pair(w), _pair(x)),
    "float16, one chain": lambda w, x: _chain(_half(w), _half(x)),
    "float16 by segments (`halves`)": lambda w, x: _segments(_half(w), _half(x), False),
    "float16 segments, float32 between them": lambda w, x: _segments(_half(w), _half(x), True),
}


def errors(products: int, positive: bool) -> list[float]:
    """Return the error of each of `WAYS` for rows of `products` products."""
    random = np.random.default_rng(products)
    shape = (min(4000, _MOST_ROWS // products), products)
    w, x = random.standard_normal(shape), random.standard_normal(shape)
    x = np.maximum(x, 0) if positive else x
    exact = _plain(w, x)
    squares = [np.mean((way(w, x) - exact) ** 2) for way in WAYS.values()]
    return [float(np.sqrt(square / np.mean(exact**2))) for square in squares]


def main() -> None:
    """Print the table."""
    columns = [(products, positive) for positive in (False, True) for products in _PRODUCTS]
    found = [errors(*column) for column in columns]
    heads = [f"{products}{', x >= 0' if positive else ''}" for products, positive in columns]
    print(f"| | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
    for number, name in enumerate(WAYS):
        cells = " | ".join(f"{1e4 * each[number]:.1f}" for each in found)
        print(f"| {name} | {cells} |")


if __name__ == "__main__":
    main()
