"""What layers of a model multiply while it runs on data: some rows of each x, and its range."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from sparsejit.api.variant import TiledGraph, Variant, lowered_variant
from sparsejit.ir.graph import Array, Graph, Node, Value
from sparsejit.ir.layer_scales import LayerKey
from sparsejit.ir.ops.convolution import Convolution, windows
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.spec import DType
from sparsejit.lowering.context import ModelOptions
from sparsejit.passes.calibrated_layers import keyed_layers
from sparsejit.passes.default import run_passes

# Rows of x that are kept of a layer: what its error is measured on.
_MOST_ROWS = 256
_FEWEST_ROWS = 16  # of each element of the data


class SeenInput:
    """The x of one layer.

    Attributes:
        weights: float32 (out, in), an output's weights as rows of x meet them
        rows: float32 (n, in), some of those that were multiplied
        least: the least value of x, 0 included, for zeros are padded
        largest: the largest value of x, 0 included
    """

    def __init__(self, node: Node, weights: Array, seed: int) -> None:
        self._op = node.op
        self._kernel = weights.shape[2:]
        self._rng = np.random.default_rng(seed)
        self._rows: list[Array] = []
        self.weights = weights.reshape(len(weights), -1)
        self.least = self.largest = 0.0

    @property
    def rows(self) -> Array:
        return np.concatenate(self._rows)

    @property
    def has_own_rows(self) -> bool:
        """Whether a row is a sample's or a token's own, which may have a step of its own."""
        return isinstance(self._op, Linear)

    def add(self, x: Array, most: int) -> None:
        """Take in the x of one run, and keep that many of its rows."""
        self.least = min(self.least, float(x.min(initial=0.0)))
        self.largest = max(self.largest, float(x.max(initial=0.0)))
        rows = _windows_of(self._op, x, self._kernel) if isinstance(self._op, Convolution) else x
        inputs = self.weights.shape[1]
        count = rows.size // inputs
        chosen = np.sort(self._rng.permutation(count)[:most])
        if isinstance(self._op, Convolution):
            rank = len(self._kernel)
            places = np.unravel_index(chosen, (len(x), *rows.shape[2:-rank]))
            found = np.moveaxis(rows, 1, -1 - rank)[places]
        else:
            found = rows.reshape(count, inputs)[chosen]
        self._rows.append(np.array(found, np.float32).reshape(len(chosen), inputs))


def _windows_of(op: Convolution, x: Array, kernel: Sequence[int]) -> Array:
    """Views (batch, in, *positions, *kernel) of what a convolution reads."""
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in op.padding)])
    return windows(padded, tuple(kernel), op.stride, op.dilation)


def takes_steps(node: Node, graph: Graph) -> bool:
    """Whether a layer is float32 of known weights, and its x may have a step fixed."""
    op, weights = node.op, node.inputs[1]
    if not isinstance(op, Linear | Convolution) or op.dtype is not DType.FLOAT32:
        return False
    if isinstance(op, Convolution) and (op.transposed or op.groups > 1):
        return False
    known = all(value in graph.constants for value in node.inputs[1:3])
    return known and weights.type.size > 0 and op.input_shift is None


class WatchedModel:
    """A model in float32 that also gives the x of each layer that may have steps."""

    def __init__(self, graph: Graph, options: ModelOptions) -> None:
        """`graph` is folded, and its batch fixed."""
        self.graph, self._outputs = graph, len(graph.outputs)
        self.layers = {
            key: node for key, node in keyed_layers(graph).items() if takes_steps(node, graph)
        }
        own = (node.inputs[0] for node in self.layers.values())
        watched = [value for value in dict.fromkeys(own) if value not in graph.constants]
        self._places = {value: number for number, value in enumerate(watched, self._outputs)}
        self._variant = watching(graph, watched, options)

    def run(self, inputs: Sequence[Array]) -> tuple[list[Array], dict[LayerKey, Array]]:
        """The outputs, and the x of each layer."""
        results = self._variant.call.run(*inputs)
        return results[: self._outputs], dict(self._inputs_of(results))

    def _inputs_of(self, results: Sequence[Array]) -> Iterator[tuple[LayerKey, Array]]:
        for key, node in self.layers.items():
            place = self._places.get(node.inputs[0])
            if place is not None:
                yield key, results[place]


def watching(graph: Graph, watched: Sequence[Value], options: ModelOptions) -> Variant:
    """A function of a graph that gives these values too, behind the outputs."""
    extended = run_passes(replace(graph, outputs=(*graph.outputs, *watched), batch_axes=None))
    return lowered_variant([TiledGraph(extended, None)], options, "watched", is_cached=False)


def rows_each(elements: int) -> int:
    """How many rows of x to keep of each element of the data."""
    return max(_FEWEST_ROWS, _MOST_ROWS // max(elements, 1))
