"""Slow, obvious numpy for every spec, in float64: the oracle that every kernel is held to."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.matrix import SparseMatrix
from sparsejit.spec import Activation, CategoricalDraw, Elementwise, GruUpdate, MatVec

Float64 = npt.NDArray[np.float64]


def sigmoid(x: Float64) -> Float64:
    """1 / (1 + exp(-x)) without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


ACTIVATIONS: dict[Activation, Callable[[Float64], Float64]] = {
    Activation.NONE: lambda x: x,
    Activation.RELU: lambda x: np.maximum(x, 0.0),
    Activation.TANH: np.tanh,
    Activation.SIGMOID: sigmoid,
}


def matvec(spec: MatVec, matrix: SparseMatrix, x: npt.NDArray[Any]) -> Float64:
    """activation(W x + bias); x (in_features,) to (out_features,)."""
    y = matrix.dense.astype(np.float64) @ x.astype(np.float64)
    if spec.bias is not None:
        y = y + spec.bias.astype(np.float64)
    return ACTIVATIONS[spec.activation](y)


def error_scale(spec: MatVec, matrix: SparseMatrix, x: npt.NDArray[Any]) -> Float64:
    """Per output, sum |w x| + |bias|: what a float32 sum's rounding error is relative to.

    A dot product's error is bounded by n * eps * sum |w x| (Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., eq. 3.5), whatever the order of summation.
    """
    scale = np.abs(matrix.dense).astype(np.float64) @ np.abs(x).astype(np.float64)
    return scale if spec.bias is None else scale + np.abs(spec.bias.astype(np.float64))


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


def categorical_draw(spec: CategoricalDraw, logits: npt.NDArray[Any], uniform: float) -> int:
    """The class drawn from logits (classes,) by `uniform` in [0, 1)."""
    shifted = (logits.astype(np.float64) - np.max(logits)) * spec.inverse_temperature
    partial_sums = np.cumsum(np.exp(shifted))
    drawn = int(np.count_nonzero(partial_sums <= uniform * partial_sums[-1]))
    return min(drawn, spec.classes - 1)
