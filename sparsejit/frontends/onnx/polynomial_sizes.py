"""Whether all sizes in an ONNX model are sums and products of the sizes of its inputs.

Each value is one of three: a size, as `Shape` gives it; spread, that is, made from sizes alone,
such as the positions of words; or anything else. Sizes may be added, multiplied and concatenated,
spread values may be changed element by element, and no other operator may read either: no minimum,
no remainder, no comparison of a size, no sum over a number of ones. Sizes are not known to be
polynomial with an operator that is not in these tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sparsejit.frontends.onnx.operators import elementwise
from sparsejit.frontends.onnx.reading import read_model

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

_OF_SIZES = {"Add", "Mul", "Cast"}  # no Sub: reshaping treats differences of 0 and 1 separately
_MOVING = {"Concat", "Identity", "Unsqueeze", "Squeeze", "Transpose", "Flatten"}
# Operators that move elements of spread values to other places as a size changes.
_REORDERING = {"Concat", "Flatten", "Reshape"}
# Operators with an operand that has sizes, and the place of that operand.
_SHAPED = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}
_OVER_ROWS = {"MatMul", "Gemm", "Softmax", "LogSoftmax", "LayerNormalization", "ReduceMean"}
_WHOLE_NUMBERS = {6, 7}  # TensorProto's int32 and int64


def file_has_polynomial_sizes(source: str | Path | ModelProto) -> bool:
    """Whether all sizes are known to be polynomial. Raises the errors of `read_model`."""
    model = read_model(source)
    follower = Sizes(model)
    return all(map(follower.takes, model.graph.node))


class Sizes:
    """Names of the values of an ONNX graph that are sizes, made from sizes alone, or constant.

    `spread` has the names of arrays that are made from sizes alone, such as the positions of words.
    """

    def __init__(self, model: ModelProto) -> None:
        graph = model.graph
        # By name; None for results of constants, which are not computed.
        self.constants: dict[str, TensorProto | None] = {e.name: e for e in graph.initializer}
        self.constants |= dict.fromkeys(each.values.name for each in graph.sparse_initializer)
        self.sizes: set[str] = set()
        self.spread: set[str] = set()

    def takes(self, node: NodeProto) -> bool:
        """Whether a node uses sizes only as allowed; enters its results in the tables."""
        if node.domain not in ("", "ai.onnx"):
            return False
        kind, inputs = node.op_type, [name for name in node.input if name]
        if kind == "Constant":
            tensors = [each.t for each in node.attribute if each.name == "value"]
            self.constants[node.output[0]] = tensors[0] if tensors else None
            return True
        if inputs and all(name in self.constants for name in inputs):
            self.constants.update(dict.fromkeys(node.output))
            return not any(each.g.node or each.graphs for each in node.attribute)
        if kind in ("Shape", "Size"):
            self.sizes.update(node.output)
            return True
        if kind == "Range":
            return self._range(node)
        if kind in _SHAPED:
            return self._shaped(node, _SHAPED[kind])
        if kind == "Gather":
            return self._gathered(node)
        if any(name in self.sizes for name in inputs):
            return self._of_sizes(node)
        if kind == "Squeeze" and len(inputs) == 1 and not node.attribute:
            return False  # it removes every axis of one element
        if kind in _MOVING or kind in elementwise.OPERATORS:
            is_spread = self._is_spread(inputs)
            self.spread.update(node.output if is_spread else ())
            return not (is_spread and kind in _REORDERING)
        return kind in _OVER_ROWS and not any(name in self.spread for name in inputs)

    def _is_spread(self, names: list[str]) -> bool:
        """Whether some of these values are arrays made from sizes alone, all others constants."""
        known = all(name in self.spread or name in self.constants for name in names)
        return known and any(name in self.spread for name in names)

    def _of_sizes(self, node: NodeProto) -> bool:
        """Whether a node adds, multiplies, joins or only moves sizes and constants.

        Enters its results as sizes.
        """
        names = [name for name in node.input if name]
        if any(name not in self.sizes and name not in self.constants for name in names):
            return False
        to = [attribute.i for attribute in node.attribute if attribute.name == "to"]
        if node.op_type == "Cast" and to[0] not in _WHOLE_NUMBERS:
            return False
        if node.op_type in ("Add", "Mul"):
            least = 1 if node.op_type == "Mul" else 0
            beside = [self._numbers(name) for name in names if name in self.constants]
            if any(number < least for numbers in beside for number in numbers or [-1]):
                return False
        self.sizes.update(node.output)
        return node.op_type in _OF_SIZES or node.op_type in _MOVING

    def _range(self, node: NodeProto) -> bool:
        """Whether a Range counts from 0 on in steps of 1; enters its result as made from sizes."""
        first, _, step = node.input
        if self._numbers(first) != [0] or self._numbers(step) != [1]:
            return False
        self.spread.update(node.output)
        return True

    def _shaped(self, node: NodeProto, place: int) -> bool:
        """Whether a Reshape, an Expand or the like uses sizes only as allowed; enters its result.

        `place` is the operand with the new shape, which may be made of sizes.
        """
        others = [name for number, name in enumerate(node.input) if number != place]
        shape = node.input[place]
        if any(name in self.sizes for name in others):
            self.sizes.update(node.output)
            return node.op_type == "Reshape" and shape in self.constants
        if shape not in self.sizes and shape not in self.constants:
            return False
        is_sized = shape in self.sizes and all(name in self.constants for name in others)
        is_spread = self._is_spread(others) or is_sized
        self.spread.update(node.output if is_spread else ())
        return not (is_spread and node.op_type in _REORDERING)

    def _gathered(self, node: NodeProto) -> bool:
        """Whether a Gather uses sizes only as allowed; enters its result.

        It may take sizes at constant places, one place of an axis, or rows at computed indices.
        """
        data, places = node.input
        if places in self.sizes or data in self.spread:
            return False
        if data in self.sizes:
            self.sizes.update(node.output)
            return places in self.constants
        if self._is_spread([data, places]):
            self.spread.update(node.output)
        # Several places become indices, which are not checked against another size; one is a slice.
        numbers = self._numbers(places)
        is_one = numbers is not None and (len(numbers) == 1 or set(numbers) <= {0, -1})
        return is_one or places not in self.constants or data in self.constants

    def _numbers(self, name: str) -> list[float] | None:
        from onnx.numpy_helper import to_array

        tensor = self.constants.get(name)
        return None if tensor is None else np.asarray(to_array(tensor)).ravel().tolist()
