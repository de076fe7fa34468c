"""The layers of a graph whose weights may become zeros, and the forms that they may take.

    shrink_layers   the layers
    with_weights    graphs with other weights
    LayerForm       a form: a pattern of zeros, and a dtype that the layer's weights are stored in
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional

from sparsejit.api.quantising.chosen_scales import SHORT
from sparsejit.api.quantising.scales_of_inputs import Forms
from sparsejit.api.quantising.seen_inputs import multiplied_rows, takes_steps
from sparsejit.frontends.model_source import LEAST_SHRUNK
from sparsejit.ir.graph import Graph
from sparsejit.ir.layer_scales import LayerKey, LayerScales
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.ir.ops.recurrent import Recurrence, RecurrentCell
from sparsejit.ir.ops.views import Permute, Reshape
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Array, Value
from sparsejit.passes.calibrated_layers import keyed_layers, weights_of
from sparsejit.prune.patterns import PATTERNS

_WITHOUT_INT8 = tuple(dtype for dtype in SHORT if dtype is not DType.INT8)


@dataclass(frozen=True, eq=False)
class ShrinkLayer:
    """A linear layer, a convolution, or a recurrent layer's product of its state: W x + b.

    Attributes:
        key: its name, and the name of its weights
        node: the node of the dense graph
        shape: of the weights, (out, in, *kernel)
        bias: the constant that is added and may change, None for none
        gates: the number of equal parts of the rows, each of which gets the same share of zeros
        dtypes: the short dtypes that its weights may be stored in
    """

    key: LayerKey
    node: Node
    shape: tuple[int, ...]
    bias: Value | None
    gates: int = 1
    dtypes: tuple[DType, ...] = SHORT

    @property
    def is_recurrent(self) -> bool:
        """Whether it multiplies the state of a recurrent layer, step by step."""
        return isinstance(self.node.op, Recurrence)

    @property
    def reads(self) -> tuple[Value, ...]:
        """Graph values that have the rows it multiplies: x, or a recurrent layer's states.

        These are the first state, and the states of all steps.
        """
        if self.is_recurrent:
            return self.node.inputs[1], self.node.outputs[0]
        return self.node.inputs[:1]

    def multiplied(self, values: Mapping[Value, Array]) -> Array:
        """The array (..., in) or image that it multiplies, from the values that it `reads`."""
        first, *others = (values[value] for value in self.reads)
        if not others:
            return first
        assert isinstance(self.node.op, Recurrence)
        (every,) = others
        before = every[1:] if self.node.op.reverse else every[:-1]
        return np.concatenate([first[None], before])

    @property
    def weights(self) -> Value:
        """The constant that has its weights."""
        return weights_of(self.node)

    @property
    def y(self) -> Value:
        """The value of the graph that is the layer's result."""
        return self.node.outputs[0]

    @property
    def inputs(self) -> int:
        """The number of weights of each output: input channels times taps of the kernel."""
        return int(np.prod(self.shape[1:]))

    @property
    def row_count(self) -> int:
        """The number of rows that it multiplies on one element of the data."""
        return self.y.type.size // (self.shape[0] // (self.gates if self.is_recurrent else 1))

    @property
    def channel_axis(self) -> int:
        """The axis of its outputs in y."""
        return 1 if isinstance(self.node.op, Convolution) else -1

    def product(self, x: Array, weights: Array) -> Array:
        """The products of x with weights of its shape, without a bias, in the layout of y."""
        given, w = torch.from_numpy(np.ascontiguousarray(x, np.float32)), torch.tensor(weights)
        if not isinstance(self.node.op, Convolution):
            return functional.linear(given, w).numpy()
        op = self.node.op
        convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[len(op.stride) - 1]
        return convolve(given, w, None, op.stride, op.padding, op.dilation).numpy()

    def along_channels(self, array: Array) -> Array:
        """An array (out,) that broadcasts to y."""
        around = 0 if self.channel_axis < 0 else len(self.y.shape) - 2
        return array.reshape(-1, *(1,) * around)

    def stored(self, dtype: DType, calibrated: Mapping[LayerKey, Forms]) -> LayerScales | None:
        """The layer in a short dtype, by the calibrated forms; None where it cannot be."""
        if dtype not in self.dtypes:
            return None
        if self.is_recurrent:
            return LayerScales(*self.key, dtype, shape=self.shape)
        return calibrated[self.key].get(dtype)

    def rows(self, x: Array, most: int, seed: int) -> Array:
        """At most `most` of the rows (n, in) of x that it multiplies, drawn by the seed."""
        rng = np.random.default_rng(seed)
        return multiplied_rows(self.node.op, self.shape, x, most, rng)


def shrink_layers(graph: Graph, has_int8_gates: bool = True) -> list[ShrinkLayer]:
    """The layers of a folded graph whose weights may become zeros, in order.

    Products of a state take no int8, and products of a recurrent layer's x take it only where the
    source `has_int8_gates`: an ONNX file has no place where their x is rounded.

    Depthwise and grouped convolutions, layers that share weights, and layers with few weights are
    left alone, and so are recurrent layers of samples of unlike lengths, and GRUs that reset the
    state before its product.
    """
    readers = graph.consumers()
    found = []
    for key, node in keyed_layers(graph).items():
        takes = _is_plain_recurrence(node, graph) or takes_steps(node, graph)
        weights = weights_of(node)
        if takes and len(readers[weights]) == 1 and weights.type.size >= LEAST_SHRUNK:
            own = [v for v in biases_of(node)[:1] if v in graph.constants and len(readers[v]) == 1]
            around = (node, *_readers_of_elements(node.outputs[0], readers))
            cells = {each.op.gates for each in around if isinstance(each.op, Recurrence)}
            is_state = isinstance(node.op, Recurrence)
            takes_int8 = not cells or (has_int8_gates and not is_state)
            found.append(
                ShrinkLayer(
                    key,
                    node,
                    weights.shape,
                    bias=own[0] if own else None,
                    gates=max(cells) if len(cells) == 1 else 1,
                    dtypes=SHORT if takes_int8 else _WITHOUT_INT8,
                )
            )
    return found


def _readers_of_elements(value: Value, readers: Mapping[Value, list[Node]]) -> Iterator[Node]:
    """The nodes that read a value's elements, perhaps behind reshapes and permuted axes."""
    for node in readers[value]:
        if isinstance(node.op, Reshape | Permute):
            yield from _readers_of_elements(node.outputs[0], readers)
        else:
            yield node


def biases_of(node: Node) -> tuple[Value, ...]:
    """The operands that a layer adds to its products."""
    return node.inputs[-1:] if isinstance(node.op, Recurrence) else node.inputs[2:]


def _is_plain_recurrence(node: Node, graph: Graph) -> bool:
    op = node.op
    if not isinstance(op, Recurrence) or op.dtype is not DType.FLOAT32:
        return False
    is_plain = not op.with_lengths and not op.rounds_state
    known = all(value in graph.constants for value in node.inputs[-2:])
    return is_plain and known and op.cell is not RecurrentCell.GRU_RESET_FIRST


def with_weights(graph: Graph, weights: Mapping[Value, Array]) -> Graph:
    """The graph with other arrays for some constants."""
    return replace(graph, constants={**graph.constants, **weights})


# Dtypes by rising error.
_BY_ERROR = (DType.FLOAT32, DType.FLOAT16, DType.BFLOAT16, DType.INT8)


@dataclass(frozen=True)
class LayerForm:
    """A pattern of zeros by its name, and a dtype of the weights."""

    pattern: str
    dtype: DType

    def is_finer(self, other: LayerForm) -> bool:
        """Whether zeros may lie at least as freely as in `other`, in a dtype that errs no more."""
        if _BY_ERROR.index(self.dtype) > _BY_ERROR.index(other.dtype):
            return False
        names = _PATTERNS[other.dtype]
        own = names.index(self.pattern) if self.pattern in names else len(names)
        return own <= names.index(other.pattern)


FINEST = "unstructured"
# Patterns that some kernel needs, the finest first: 16 outputs fill a vector, and an int8 product
# takes four inputs.
_PATTERNS = {
    DType.FLOAT32: (FINEST, "1x16"),
    DType.FLOAT16: (FINEST,),
    DType.BFLOAT16: (FINEST,),
    DType.INT8: (FINEST, "4x1in", "4x2in"),
}
FORMS = tuple(LayerForm(name, dtype) for dtype in _BY_ERROR for name in _PATTERNS[dtype])
DENSE = FORMS[0]

assert all(form.pattern in PATTERNS for form in FORMS)
