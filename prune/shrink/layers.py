"""The layers of a graph whose weights may become zeros, and graphs with other weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional

from sparsejit.api.seen_inputs import multiplied_rows, takes_steps
from sparsejit.ir.graph import Array, Graph, Node, Value
from sparsejit.ir.layer_scales import LayerKey
from sparsejit.ir.ops.convolution import Convolution
from sparsejit.passes.calibrated_layers import keyed_layers

# Fewer weights take less time than a call's rounding shows.
LEAST_WEIGHTS = 512


@dataclass(frozen=True, eq=False)
class ShrinkLayer:
    """A linear layer or convolution: y = W x + b, of rows of x.

    Attributes:
        key: its name, and that of its weights
        node: the node of the dense graph
        shape: of the weights, (out, in, *kernel)
        bias: the constant that is added and may change, None for none
    """

    key: LayerKey
    node: Node
    shape: tuple[int, ...]
    bias: Value | None

    @property
    def x(self) -> Value:
        """The value that it multiplies."""
        return self.node.inputs[0]

    @property
    def weights(self) -> Value:
        """The constant that has its weights."""
        return self.node.inputs[1]

    @property
    def y(self) -> Value:
        """Its result."""
        return self.node.outputs[0]

    @property
    def inputs(self) -> int:
        """The weights of an output."""
        return int(np.prod(self.shape[1:]))

    @property
    def channel_axis(self) -> int:
        """The axis of its outputs in y."""
        return 1 if isinstance(self.node.op, Convolution) else -1

    def product(self, x: Array, weights: Array) -> Array:
        """The products of x with weights of its shape, without a bias, as y lies."""
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

    def rows(self, x: Array, most: int, seed: int) -> Array:
        """Rows (n, in) of x that it multiplies; the same places for the same seed."""
        rng = np.random.default_rng(seed)
        return multiplied_rows(self.node.op, self.shape, x, most, rng)


def shrink_layers(graph: Graph) -> list[ShrinkLayer]:
    """The layers of a folded graph whose weights may become zeros, in order.

    Depthwise and grouped convolutions, layers that share weights, and layers with few weights are
    left alone.
    """
    keyed = keyed_layers(graph)
    uses = Counter(value for node in graph.nodes for value in node.inputs)
    return [
        ShrinkLayer(key, node, node.inputs[1].shape, _bias_of(node, uses))
        for key, node in keyed.items()
        if takes_steps(node, graph)
        and uses[node.inputs[1]] == 1
        and node.inputs[1].type.size >= LEAST_WEIGHTS
    ]


def _bias_of(node: Node, uses: Counter[Value]) -> Value | None:
    found = node.inputs[2] if len(node.inputs) > 2 else None
    return found if found is not None and uses[found] == 1 else None


def with_weights(graph: Graph, weights: Mapping[Value, Array]) -> Graph:
    """The graph with other arrays for some constants."""
    return replace(graph, constants={**graph.constants, **weights})

