"""Predicted cost of a layer with other zeros, dtype, sizes or batch. No code is emitted.

Zeros that do not exist yet are drawn at random within their pattern: the cost depends on the number
of nonzeros that share a vector, a row and a window of inputs, and never on which weights they are.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import DType, Layer, Layout, MatMul, MatVec
from sparsejit.machine.target import Target
from sparsejit.planner.batch_plan import plan_batch
from sparsejit.planner.kernel_choice import Candidate, plan
from sparsejit.whole_numbers import ceil_div

Mask = npt.NDArray[np.bool_]
_WINDOW = 16  # inputs in which lane16 keeps equally many weights of a row


def _blocks(
    rows: int, inputs: int = 1
) -> Callable[[np.random.Generator, tuple[int, int], float], Mask]:
    """Return a function that draws masks of blocks, each of `inputs` inputs by `rows` outputs."""

    def draw(rng: np.random.Generator, shape: tuple[int, int], density: float) -> Mask:
        kept = _exactly(rng, (ceil_div(shape[0], rows), ceil_div(shape[1], inputs)), density)
        whole = np.repeat(np.repeat(kept, rows, axis=0), inputs, axis=1)
        return whole[: shape[0], : shape[1]]

    return draw


def _lanes(rng: np.random.Generator, shape: tuple[int, int], density: float) -> Mask:
    """Draw a mask that keeps, in each window of 16 inputs, equally many weights of 16 outputs."""
    groups, windows = ceil_div(shape[0], _WINDOW), ceil_div(shape[1], _WINDOW)
    kept = rng.binomial(_WINDOW, density, (groups, 1, windows, 1))
    order = rng.random((groups, _WINDOW, windows, _WINDOW)).argsort(axis=3)
    mask = (order < kept).reshape(groups * _WINDOW, windows * _WINDOW)
    return mask[: shape[0], : shape[1]]


def _exactly(rng: np.random.Generator, shape: tuple[int, int], density: float) -> Mask:
    size = shape[0] * shape[1]
    mask = np.zeros(size, bool)
    mask[rng.permutation(size)[: max(1, round(density * size))]] = True
    return mask.reshape(shape)


# The keys are the names that `Pruner(pattern=...)` takes.
PATTERNS: Mapping[str, Callable[[np.random.Generator, tuple[int, int], float], Mask]] = {
    "unstructured": _exactly,
    "1x8": _blocks(8),
    "1x16": _blocks(16),
    "lane16": _lanes,
    "4x1in": _blocks(1, 4),
    "4x2in": _blocks(2, 4),
}


def random_zeros(pattern: str, shape: tuple[int, int], density: float) -> SparseMatrix:
    """Return a random matrix (out, in) of about that density; the same one at every call."""
    rng = np.random.default_rng(0)
    mask = PATTERNS[pattern](rng, shape, density)
    return SparseMatrix(rng.uniform(0.5, 1, shape).astype(np.float32) * mask)


@dataclass(frozen=True)
class _Question:
    """Key of a hypothetical layer: shape, options and a summary of its zeros, without its bias."""

    shape: tuple[int, int]
    case: str
    pattern: str
    density: str


class AlternativePrices:
    """Best kernels of hypothetical layers, with predicted costs; None where no kernel fits.

    Layers that are equal, with densities to two digits, are planned once.
    """

    def __init__(self, target: Target, exact: bool) -> None:
        self._target, self._exact = target, exact
        self._known: dict[_Question, Candidate | None] = {}

    def with_zeros(self, layer: Layer, pattern: str, density: float) -> Candidate | None:
        """Best kernel of the layer with random zeros of a pattern."""
        shape = layer.out_features, layer.in_features
        return self._recalled(
            layer, pattern, density, lambda: random_zeros(pattern, shape, density)
        )

    def with_sizes(self, layer: Layer, shape: tuple[int, int], density: float) -> Candidate | None:
        """Best kernel of the layer with other numbers of outputs and inputs; unstructured zeros."""
        each = layer.each if isinstance(layer, MatMul) else layer
        resized = replace(each, out_features=shape[0], in_features=shape[1], bias=None)
        whole = replace(layer, each=resized) if isinstance(layer, MatMul) else resized
        return self.with_zeros(whole, "unstructured", density)

    def stored(self, layer: Layer, matrix: SparseMatrix, dtype: DType) -> Candidate | None:
        """Best kernel of the layer with its own zeros and weights of another dtype."""
        return self._recalled(
            stored_as(layer, dtype), _kind(matrix), matrix.density, lambda: matrix
        )

    def batched(self, layer: MatVec, matrix: SparseMatrix, batch: int) -> Candidate | None:
        """Best kernel of the layer for `batch` samples at once."""
        return self._recalled(MatMul(layer, batch), _kind(matrix), matrix.density, lambda: matrix)

    def _recalled(
        self, layer: Layer, pattern: str, density: float, matrix: Callable[[], SparseMatrix]
    ) -> Candidate | None:
        question = _Question(
            (layer.out_features, layer.in_features),
            layer.case,
            pattern,
            f"{density:.2g}",
        )
        if question not in self._known:
            self._known[question] = self._price(layer, matrix())
        return self._known[question]

    def _price(self, layer: Layer, matrix: SparseMatrix) -> Candidate | None:
        try:
            if isinstance(layer, MatMul):
                return plan_batch(
                    layer, matrix, self._target, exact=self._exact, alike=True
                ).chosen
            return plan(layer, matrix, self._target, exact=self._exact).chosen
        except InvalidInput:
            return None


def _kind(matrix: SparseMatrix) -> str:
    """Summary of a matrix's zeros: the filled share of its blocks of 8 and of 16 outputs."""
    return f"blocks {matrix.block_fill(8):.1f} {matrix.block_fill(16):.1f} full"


def stored_as(layer: Layer, dtype: DType) -> Layer:
    """Return the layer with weights in `dtype`.

    With int8, x is quantised by its own largest magnitude.
    """
    if isinstance(layer, MatMul):
        each = replace(layer.each, dtype=dtype, x_steps=None)
        stored = replace(layer, each=each)
        if dtype is not DType.INT8 or layer.layout is layer.y_layout:
            return stored
        # Only panels convert one layout to another, and they do not sum integers.
        return replace(stored, layout=Layout.BATCH_MAJOR, padded_to=None, result_layout=None)
    return replace(layer, dtype=dtype, x_steps=None)
