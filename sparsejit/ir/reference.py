"""Slow, obvious numpy in float64 for every spec: the reference that kernels are checked against."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import (
    LARGEST_INT8,
    SMALLEST_SCALE,
    Activation,
    CategoricalDraw,
    DenseProduct,
    DType,
    Elementwise,
    GruUpdate,
    Layer,
    Layout,
    LstmUpdate,
    MatMul,
    MatVec,
    RnnUpdate,
)

Float64 = npt.NDArray[np.float64]


def sigmoid(x: Float64) -> Float64:
    """1 / (1 + exp(-x)) without overflow."""
    power = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, power) / (1 + power)


ACTIVATIONS: dict[Activation, Callable[[Float64], Float64]] = {
    Activation.NONE: lambda x: x,
    Activation.RELU: lambda x: np.maximum(x, 0.0),
    Activation.RELU6: lambda x: np.minimum(np.maximum(x, 0.0), 6.0),
    Activation.TANH: np.tanh,
    Activation.SIGMOID: sigmoid,
}


def stored_weights(matrix: SparseMatrix, dtype: DType) -> Float64:
    """The weights (out, in) after rounding to the stored dtype, to nearest, ties to even."""
    if dtype is DType.INT8:
        integers, scales = quantised_weights(matrix)
        return integers.astype(np.float64) * scales[:, None]
    return _as_float(matrix.dense, dtype)


def _as_float(weights: npt.NDArray[np.float32], dtype: DType) -> Float64:
    if dtype is DType.FLOAT16:
        return weights.astype(np.float16).astype(np.float64)
    if dtype is DType.BFLOAT16:
        return round_to_bfloat16(weights).astype(np.float64)
    return weights.astype(np.float64)


def _integers(
    weights: npt.NDArray[np.float32], steps: npt.NDArray[np.float32]
) -> npt.NDArray[np.int64]:
    """Weights as integers in -127 .. 127, to nearest, ties to even; `steps` broadcast to them."""
    return np.rint(weights / steps).clip(-LARGEST_INT8, LARGEST_INT8).astype(np.int64)


def round_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Round to bfloat16, the upper 16 bits of float32: to nearest, ties to even; NaN is kept."""
    bits = values.view(np.uint32)
    halfway = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + halfway) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(values), values, rounded)


def quantised_weights(
    matrix: SparseMatrix,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Weights (out, in) as integers in -127 .. 127, and each row's scale, float32 (out,).

    All in float32: step = max(largest magnitude / 127, 2^-100), integer = weight / step to
    nearest, ties to even. Rows of a coarser step keep it, see `SparseMatrix.int8_steps`.
    """
    scales = matrix.int8_steps
    return _integers(matrix.dense, scales[:, None]), scales


def _product(matrix: SparseMatrix, dtype: DType, x: Float64) -> Float64:
    """W x for x (in_features,); a vast matrix is multiplied by its nonzeros alone."""
    if not matrix.is_vast:
        return stored_weights(matrix, dtype) @ x
    nonzeros = matrix.nonzeros
    if dtype is DType.INT8:
        steps = matrix.int8_steps[nonzeros.rows]
        weights = _integers(nonzeros.values, steps).astype(np.float64) * steps
    else:
        weights = _as_float(nonzeros.values, dtype)
    return nonzeros.sums_by_row(weights * x[nonzeros.columns])


def quantised_input(
    spec: MatVec, x: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.int64], np.float32]:
    """x (in_features,) as integers in -127 .. 127, and their step; x must be finite.

    All in float32: integer = x * reciprocal to nearest, ties to even. Fixed step: reciprocal =
    1 / the scale. Dynamic: m = max(largest magnitude of x, 2^-100), reciprocal = 127 / m, and
    the step is m * (1 / 127). The zero point is added to the integers.
    """
    if spec.x_steps is not None:
        scale = np.float32(spec.x_steps.scale)
        reciprocal = np.float32(1) / scale
    else:
        largest = np.maximum(np.abs(x).max(), np.float32(SMALLEST_SCALE))
        reciprocal = np.float32(LARGEST_INT8) / largest
        scale = largest * np.float32(1 / LARGEST_INT8)
    with np.errstate(over="ignore"):
        integers = np.rint(x * reciprocal) + spec.zero_point
    return np.clip(integers, spec.least_integer, LARGEST_INT8).astype(np.int64), scale


def on_steps(x: Float64, scale: float, shift: int) -> Float64:
    """Quantise x to integers -128 .. 127 with a scale and a zero point, and dequantise it again."""
    integers = np.rint(x / np.float64(np.float32(scale))) + shift
    return (integers.clip(-LARGEST_INT8 - 1, LARGEST_INT8) - shift) * np.float64(np.float32(scale))


def on_own_steps(x: Float64) -> Float64:
    """Quantise each row (..., n) in 255 steps over its range, 0 included, and dequantise it again.

    scale = (max(x, 0) - min(x, 0)) / 255, at least 2^-100, and zero = round(-min(x, 0) / scale);
    q = clip(round(x / scale) + zero, 0, 255) becomes (q - zero) * scale.
    """
    low, high = x.min(axis=-1, initial=0, keepdims=True), x.max(axis=-1, initial=0, keepdims=True)
    scale = np.maximum((high - low) / 255, SMALLEST_SCALE)
    zero = np.minimum(np.rint(-low / scale), 255)
    return (np.rint(x / scale).clip(-zero, 255 - zero)) * scale


def matvec(spec: MatVec, matrix: SparseMatrix, x: npt.NDArray[Any]) -> Float64:
    """activation(W x + bias); x (in_features,) to (out_features,)."""
    values = x.astype(np.float64)
    if spec.dtype is DType.INT8:
        integers, scale = quantised_input(spec, x.astype(np.float32))
        values = integers * np.float64(scale)
    y = _product(matrix, spec.dtype, values)
    if spec.bias is not None:
        y = y + spec.bias.astype(np.float64)
    return ACTIVATIONS[spec.activation](y)


def matmul(
    spec: MatMul,
    matrix: SparseMatrix,
    x: npt.NDArray[Any],
    added: npt.NDArray[Any] | None = None,
) -> Float64:
    """`matvec` for every column of the batch; x and the result in the layout of the spec.

    Padding columns of x are ignored; padding columns of the result are NaN. `added` (out_features,
    `added_pitch`), where the spec has one, is added before the activation.
    """
    if added is None:
        return _for_each(matvec, spec, matrix, x)
    plain = replace(spec, each=replace(spec.each, activation=Activation.NONE))
    y = _for_each(matvec, plain, matrix, x)
    y[:, : spec.batch] += added[:, : spec.batch].astype(np.float64)
    return ACTIVATIONS[spec.each.activation](y)


def product(spec: Layer, matrix: SparseMatrix, x: npt.NDArray[Any]) -> Float64:
    """The product with weights in float64: `matmul` for a batch, `matvec` for one x."""
    return matmul(spec, matrix, x) if isinstance(spec, MatMul) else matvec(spec, matrix, x)


def _for_each(
    function: Callable[[MatVec, SparseMatrix, npt.NDArray[Any]], Float64],
    spec: MatMul,
    matrix: SparseMatrix,
    x: npt.NDArray[Any],
) -> Float64:
    batch = x.T[: spec.batch] if spec.layout is Layout.FEATURE_MAJOR else x
    y = np.stack([function(spec.each, matrix, one) for one in batch])
    if spec.y_layout is Layout.BATCH_MAJOR:
        return y
    padded = np.full(spec.y_shape, np.nan)
    padded[:, : spec.batch] = y.T
    return padded


def batch_error_scale(spec: MatMul, matrix: SparseMatrix, x: npt.NDArray[Any]) -> Float64:
    """`error_scale` for every column of the batch."""
    return _for_each(error_scale, spec, matrix, x)


def error_scale(spec: MatVec, matrix: SparseMatrix, x: npt.NDArray[Any]) -> Float64:
    """sum |w x| + |bias| of each output: the scale of a float32 sum's rounding error.

    A dot product's error is bounded by n * eps * sum |w x| (Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., eq. 3.5), whatever the order of summation.
    """
    scale = _product(matrix.with_values(np.abs), DType.FLOAT32, np.abs(x).astype(np.float64))
    return scale if spec.bias is None else scale + np.abs(spec.bias.astype(np.float64))


def dense_product(
    spec: DenseProduct,
    a: npt.NDArray[Any],
    b: npt.NDArray[Any],
    bias: npt.NDArray[Any] | None = None,
) -> Float64:
    """activation(scale * A B + bias): a and b as stored, with a bias for each element of C."""
    left, right = a.T if spec.a_transposed else a, b.T if spec.transposed else b
    product = spec.scale * (left.astype(np.float64) @ right.astype(np.float64))
    return ACTIVATIONS[spec.activation](product if bias is None else product + bias)


def elementwise(spec: Elementwise, x: npt.NDArray[Any]) -> Float64:
    """activation(x), x (length,)."""
    return ACTIVATIONS[spec.activation](x.astype(np.float64))


def gru_update(
    spec: GruUpdate,
    input_gates: npt.NDArray[Any],
    recurrent_gates: npt.NDArray[Any],
    state: npt.NDArray[Any],
) -> Float64:
    """New state (hidden,) from two (3 * hidden,) products in gate order r-z-n."""
    from_input = input_gates.astype(np.float64).reshape(3, spec.hidden)
    from_state = recurrent_gates.astype(np.float64).reshape(3, spec.hidden)
    reset, update = sigmoid(from_input[:2] + from_state[:2])
    candidate = np.tanh(from_input[2] + reset * from_state[2])
    return candidate + update * (state.astype(np.float64) - candidate)


def lstm_update(
    spec: LstmUpdate,
    input_gates: npt.NDArray[Any],
    recurrent_gates: npt.NDArray[Any],
    cell: npt.NDArray[Any],
) -> tuple[Float64, Float64]:
    """New h and c (hidden,) from two (4 * hidden,) products in gate order i-f-g-o."""
    gates = input_gates.astype(np.float64) + recurrent_gates.astype(np.float64)
    keep_in, forget, new, out = gates.reshape(4, spec.hidden)
    state = sigmoid(forget) * cell.astype(np.float64) + sigmoid(keep_in) * np.tanh(new)
    return sigmoid(out) * np.tanh(state), state


def rnn_update(
    spec: RnnUpdate, input_gates: npt.NDArray[Any], recurrent_gates: npt.NDArray[Any]
) -> Float64:
    """New state (hidden,) from two products (hidden,)."""
    gates = input_gates.astype(np.float64) + recurrent_gates.astype(np.float64)
    return ACTIVATIONS[spec.activation](gates)


def categorical_draw(spec: CategoricalDraw, logits: npt.NDArray[Any], uniform: float) -> int:
    """The class drawn from logits (classes,) by `uniform` in [0, 1)."""
    shifted = (logits.astype(np.float64) - np.max(logits)) * spec.inverse_temperature
    partial_sums = np.cumsum(np.exp(shifted))
    drawn = int(np.count_nonzero(partial_sums <= uniform * partial_sums[-1]))
    return min(drawn, spec.classes - 1)


def categorical_margin(spec: CategoricalDraw, logits: npt.NDArray[Any], uniform: float) -> float:
    """Distance of uniform * total from the nearest partial sum, relative to the total.

    Two implementations whose partial sums are off by less may draw different classes: such a
    difference is a rounding tie, not an error.
    """
    shifted = (logits.astype(np.float64) - np.max(logits)) * spec.inverse_temperature
    partial_sums = np.cumsum(np.exp(shifted))
    return float(np.min(np.abs(partial_sums / partial_sums[-1] - uniform)))


# SplitMix64: Steele, Lea and Flood, Fast splittable pseudorandom number generators, OOPSLA 2014.
SPLITMIX_INCREMENT = 0x9E3779B97F4A7C15
SPLITMIX_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SPLITMIX_SHIFTS = (30, 27, 31)


def splitmix(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """SplitMix64's finaliser: a bijection of 64-bit words that looks random."""
    mixed = words
    for shift, multiplier in zip(SPLITMIX_SHIFTS, (*SPLITMIX_MULTIPLIERS, 1), strict=True):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(multiplier)
    return mixed


def random_uniform(seed: int, counter: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """Samples of the stream of `seed`, one for each `counter` (any shape), float32 in [0, 1).

    Sample n is the upper 24 bits of splitmix(splitmix(seed) + (n + 1) * increment), times 2^-24,
    seed and n in 0 .. 2^64 - 1. It depends on them alone, so chunks of any size give the same
    stream; the inner mixing keeps the streams of near seeds apart.
    """
    steps = np.atleast_1d(np.asarray(counter, np.uint64)) + np.uint64(1)
    key = splitmix(np.array([seed], np.uint64))
    words = splitmix(key + steps * np.uint64(SPLITMIX_INCREMENT))
    uniform = (words >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return uniform.reshape(np.shape(counter))
