"""Random weights with zeros in every structure that a kernel has to handle."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sparsejit.whole_numbers import ceil_div

FloatArray = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]
Shape = tuple[int, int]
Generator = np.random.Generator


def _unstructured(random: Generator, shape: Shape, density: float) -> Mask:
    return random.random(shape) < density


def _blocks(rows: int) -> Callable[[Generator, Shape, float], Mask]:
    def mask(random: Generator, shape: Shape, density: float) -> Mask:
        kept = random.random((ceil_div(shape[0], rows), shape[1])) < density
        return np.repeat(kept, rows, axis=0)[: shape[0]]

    return mask


def _lane16(random: Generator, shape: Shape, density: float) -> Mask:
    """Within 16 rows, every row keeps the same number of weights in each window of 16 inputs."""
    groups = ceil_div(shape[1], 16)
    kept = random.binomial(16, density, (ceil_div(shape[0], 16), groups))
    places = random.random((shape[0], groups, 16)).argsort(axis=2)
    mask = places < np.repeat(kept, 16, axis=0)[: shape[0], :, None]
    return mask.reshape(shape[0], -1)[:, : shape[1]]


def _power_law_rows(random: Generator, shape: Shape, density: float) -> Mask:
    """Keep most of the weights in a few rows."""
    shares = (1 + np.arange(shape[0])) ** -1.2
    random.shuffle(shares)
    each = np.minimum(shares / shares.mean() * density, 1)
    return random.random(shape) < each[:, None]


def _empty_rows_and_columns(random: Generator, shape: Shape, density: float) -> Mask:
    rows, columns = (random.random(size) < 0.6 for size in shape)
    return _unstructured(random, shape, density) & rows[:, None] & columns


def _all_zero(random: Generator, shape: Shape, density: float) -> Mask:
    return np.zeros(shape, bool)


def _all_kept(random: Generator, shape: Shape, density: float) -> Mask:
    return np.ones(shape, bool)


def _one_weight(random: Generator, shape: Shape, density: float) -> Mask:
    mask = np.zeros(shape, bool)
    mask[random.integers(shape[0]), random.integers(shape[1])] = True
    return mask


# Structures of nonzeros by name: the share of kernels that have it, and the function of its mask.
STRUCTURES: dict[str, tuple[float, Callable[[Generator, Shape, float], Mask]]] = {
    "unstructured": (0.3, _unstructured),
    "1x8": (0.15, _blocks(8)),
    "1x16": (0.15, _blocks(16)),
    "lane16": (0.15, _lane16),
    "power-law rows": (0.08, _power_law_rows),
    "empty rows and columns": (0.08, _empty_rows_and_columns),
    "all zero": (0.02, _all_zero),
    "dense": (0.05, _all_kept),
    "one weight": (0.02, _one_weight),
}


def random_weights(
    random: Generator, structure: str, shape: Shape, density: float, scale: float
) -> FloatArray:
    """Draw float32 weights (out_features, in_features), with zeros in a structure of `STRUCTURES`.

    They are normal values times `scale`; in 15 % of the draws some are denormal, all are equal, or
    all are whole numbers times `scale`.
    """
    _, mask = STRUCTURES[structure]
    values = random.standard_normal(shape, np.float32) * np.float32(scale)
    kind = random.random()
    if kind < 0.05:
        values[random.random(shape) < 0.3] = np.float32(1e-40)
    elif kind < 0.1:
        values[:] = np.float32(scale)
    elif kind < 0.15:
        values = np.rint(8 * values / np.float32(scale)) * np.float32(scale)
    return np.where(mask(random, shape, density), values, np.float32(0))
