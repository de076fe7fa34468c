"""Results of nodes with known operands, by the onnx package's reference where that is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.frontends.onnx.call import Operand, operator_of
from sparsejit.frontends.onnx.inference import version_of
from sparsejit.frontends.writing.views import backward_places
from sparsejit.frontends.writing.writer import Unmapped
from sparsejit.ir.values import Array

if TYPE_CHECKING:
    from onnx import NodeProto


def _gather_elements(x: Array, places: Array, axis: int = 0) -> Array:
    """GatherElements along an axis; `places` may be shorter than x along other axes."""
    axis %= x.ndim
    cut = tuple(slice(None if n == axis else size) for n, size in enumerate(places.shape))
    return np.take_along_axis(x[cut], places.astype(np.int64), axis)


def _slice(
    x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None
) -> Array:
    """Slice; backward slices are as in graphs, forward slices as in Python."""
    count = np.size(starts)
    given = (
        *(starts, ends),
        np.arange(count) if axes is None else axes,
        np.ones(count, np.int64) if steps is None else steps,
    )
    for start, end, axis, step in zip(*(np.ravel(each).tolist() for each in given), strict=True):
        part = slice(start, end, step)
        cut = part if step > 0 else backward_places(x.shape[axis], part)
        x = x[(slice(None),) * (axis % x.ndim) + (cut,)]
    return x


# Operators that the package's reference computes wrongly: with padding, positions, channels at the
# ends, magnitudes, numbers whose exponentials are beyond the dtype, and recurrent layers with
# lengths, clipped gates or other activations. Graphs compute them correctly.
_WRONG = (
    *("AveragePool", "ConvTranspose", "GlobalLpPool", "GlobalMaxPool", "LRN", "LogSoftmax"),
    *("LpNormalization", "LpPool", "MaxPool", "Resize", "GRU", "LSTM", "RNN", "Softplus"),
)
# The reference has only the Softmax of this opset.
_SOFTMAX_SINCE = 13
# Operators on shapes that the reference computes wrongly or refuses.
_OWN: Mapping[str, Callable[..., Array]] = {"GatherElements": _gather_elements, "Slice": _slice}


def computed(
    node: NodeProto, operands: Sequence[Operand], attributes: Mapping[str, Any], opset: int
) -> list[Operand]:
    """Compute a node's results. Raises Unmapped where that fails."""
    from onnx.reference import ReferenceEvaluator

    if node.op_type == "Constant" and "sparse_value" in attributes:
        return [attributes["sparse_value"]]
    if node.op_type in _WRONG or (node.op_type == "Softmax" and opset < _SOFTMAX_SINCE):
        raise Unmapped("is not folded")
    own = _OWN.get(operator_of(node))
    given = {name: x for name, x in zip(node.input, operands, strict=True) if name}
    try:
        if own is not None:
            return [own(*operands, **attributes)]
        found: Any = ReferenceEvaluator(node, opsets={"": version_of(node, opset)}).run(None, given)
        return [np.asarray(x) if isinstance(x, np.generic) else x for x in found]
    except Exception as error:  # of whatever type its operator raises
        raise Unmapped(str(error).partition("\n")[0]) from None
