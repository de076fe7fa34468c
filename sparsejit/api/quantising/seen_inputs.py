"""Records of the x of each layer while a model runs on data: some of its rows, and its range.

    SeenValues, SeenInput   the records
    WatchedModel            a model that also returns the values to record
    calls_of                calls of a model, from the data of `quantise` and `accuracy`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sparsejit.api.models.variant import TiledGraph, lowered_variant
from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node, Operator
from sparsejit.ir.ops.convolution import Convolution, windows
from sparsejit.ir.ops.pointwise import Chain, Pointwise
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Array, Value
from sparsejit.lowering.context import ModelOptions
from sparsejit.passes.calibrated_layers import keyed_layers, sums_of_images
from sparsejit.passes.default import run_passes

# Rows of x that are kept for each layer; its error is measured on them.
_MOST_ROWS = 256
_FEWEST_ROWS = 16  # for each element of the data
# Operators whose output can be scaled by channel: in their weights, or by a step of a chain.
_TAKES_FACTORS = Linear | Convolution | Pointwise | Chain
_MOST_FACTOR = 64.0  # largest factor of a channel, relative to the geometric mean
_FEWEST_VALUES = 256  # values of a channel from which its range is known
_ELEMENTS_A_ROW = 16  # elements kept in place of a row, of a value that no layer multiplies


class SeenValues:
    """Some of a value's elements, one a row, and its range.

    Attributes:
        rows: float32 (n, 1)
        least: the least value, at most 0, because padding is 0
        largest: the largest value, at least 0
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._rows: list[Array] = []
        self.least = self.largest = 0.0

    @property
    def rows(self) -> Array:
        return np.concatenate(self._rows)

    def add(self, x: Array, most: int) -> None:
        """Add the value of one run, and keep at most `most` of its rows."""
        self.least = min(self.least, float(x.min(initial=0.0)))
        self.largest = max(self.largest, float(x.max(initial=0.0)))
        self._rows.append(self._some_rows(x, most))

    def _some_rows(self, x: Array, most: int) -> Array:
        chosen = self._rng.integers(0, x.size, _ELEMENTS_A_ROW * most)
        return np.array(x.reshape(-1)[chosen], np.float32)[:, None]


class SeenInput(SeenValues):
    """The x of one layer, of which whole rows are kept.

    Attributes:
        weights: float32 (out, in), the weights of each output in the order of a row of x
        rows: float32 (n, in), some of the rows of x that the layer multiplied
    """

    def __init__(self, node: Node, weights: Array, seed: int) -> None:
        super().__init__(seed)
        self._op = node.op
        self._shape = weights.shape
        self._axis = 1 if isinstance(node.op, Convolution) else -1
        self._ranges = np.zeros((2, weights.shape[1]), np.float32)  # least, largest by channel
        self._values = 0  # number of values seen of each channel
        self.weights = weights.reshape(len(weights), -1)

    def add(self, x: Array, most: int) -> None:
        super().add(x, most)
        others = tuple(np.delete(np.arange(x.ndim), self._axis))
        self._values += x.size // x.shape[self._axis]
        least, largest = x.min(others, initial=0.0), x.max(others, initial=0.0)
        self._ranges[0] = np.minimum(self._ranges[0], least)
        self._ranges[1] = np.maximum(self._ranges[1], largest)

    @property
    def knows_channels(self) -> bool:
        """Whether enough values of each channel were seen to know its range."""
        return self._values >= _FEWEST_VALUES

    @property
    def factors(self) -> Array:
        """Divisors of the channels of x that balance the ranges of x and of its weights."""
        weights = np.abs(self.weights.reshape(self._shape))
        of_weights = weights.max(axis=tuple(np.delete(np.arange(weights.ndim), 1)))
        of_x = np.abs(self._ranges).max(axis=0)
        used = (of_weights > 0) & (of_x > 0)
        ratios = np.sqrt(np.divide(of_x, of_weights, where=used, out=np.ones_like(of_x)))
        middle = np.exp(np.log(ratios[used]).mean()) if used.any() else 1.0
        factors = np.where(used, ratios / middle, 1.0)
        return np.asarray(factors.clip(1 / _MOST_FACTOR, _MOST_FACTOR), np.float32)

    def equalised(self) -> SeenInput:
        """Return a copy with x divided, and weights multiplied, by `factors`."""
        factors = self.factors
        twin = copy(self)
        twin._ranges = (self._ranges / factors).astype(np.float32)
        each = np.repeat(factors, self.weights.shape[1] // len(factors))
        twin.weights = self.weights * each
        twin._rows = [rows / each for rows in self._rows]
        twin.least, twin.largest = float(twin._ranges[0].min()), float(twin._ranges[1].max())
        return twin

    @property
    def has_own_rows(self) -> bool:
        """Whether a row of x belongs to one sample or token, and so may have its own step."""
        return isinstance(self._op, Linear)

    def _some_rows(self, x: Array, most: int) -> Array:
        return multiplied_rows(self._op, self._shape, x, most, self._rng)


def multiplied_rows(
    op: Operator, shape: Sequence[int], x: Array, most: int, rng: np.random.Generator
) -> Array:
    """Choose at most `most` rows (n, in) of x that a layer with weights of this shape multiplies.

    A generator in the same state chooses the same positions in another x.
    """
    kernel, inputs = tuple(shape[2:]), int(np.prod(shape[1:]))
    rows = _windows_of(op, x, kernel) if isinstance(op, Convolution) else x
    count = rows.size // inputs
    chosen = np.sort(rng.permutation(count)[:most])
    if isinstance(op, Convolution):
        places = np.unravel_index(chosen, (len(x), *rows.shape[2 : -len(kernel)]))
        found = np.moveaxis(rows, 1, -1 - len(kernel))[places]
    else:
        found = rows.reshape(count, inputs)[chosen]
    return np.array(found, np.float32).reshape(len(chosen), inputs)


def _windows_of(op: Convolution, x: Array, kernel: Sequence[int]) -> Array:
    """Return a view (batch, in, *positions, *kernel) of the windows that a convolution reads."""
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in op.padding)])
    return windows(padded, tuple(kernel), op.stride, op.dilation)


def takes_steps(node: Node, graph: Graph) -> bool:
    """Whether a layer is float32, its weights constant, and x may get a fixed scale for int8."""
    op, weights = node.op, node.inputs[1]
    if not isinstance(op, Linear | Convolution) or op.dtype is not DType.FLOAT32:
        return False
    if isinstance(op, Convolution) and (op.transposed or op.groups > 1):
        return False
    known = all(value in graph.constants for value in node.inputs[1:3])
    return known and weights.type.size > 0 and (op.x_steps is None or op.x_steps.symmetric)


class WatchedModel:
    """A model in float32 that also returns values to quantise: x of layers, operands of sums.

    Attributes:
        graph: the graph that runs
        layers: the layers whose x may have a fixed scale and zero point
        sums: the nodes that add two images elementwise, by their results' names
        run: a function that returns the outputs, and the values that layers and sums read
        alone: layers that alone read their x, where a product or an elementwise function makes it:
            to scale its channels costs nothing, or a step of a chain
    """

    def __init__(self, graph: Graph, options: ModelOptions) -> None:
        """Take a folded graph with a fixed batch."""
        self.graph = graph
        self.layers = {
            key: node for key, node in keyed_layers(graph).items() if takes_steps(node, graph)
        }
        self.sums = sums_of_images(graph)
        own = [node.inputs[0] for node in self.layers.values()]
        own += [value for node in self.sums.values() for value in node.inputs]
        self.run = WatchedRun(graph, own, options)
        readers, producers = graph.consumers(), graph.producers()
        self.alone = {
            key
            for key, node in self.layers.items()
            if len(readers[node.inputs[0]]) == 1
            and node.inputs[0] not in graph.outputs
            and isinstance(_op_of(producers.get(node.inputs[0])), _TAKES_FACTORS)
        }


def _op_of(node: Node | None) -> Operator | None:
    return None if node is None else node.op


class WatchedRun:
    """The compiled function of a graph with a fixed batch, which also returns inner values."""

    def __init__(self, graph: Graph, values: Iterable[Value], options: ModelOptions) -> None:
        self._outputs = len(graph.outputs)
        watched = [value for value in dict.fromkeys(values) if value not in graph.constants]
        self._places = {value: number for number, value in enumerate(watched, self._outputs)}
        outputs = (*graph.outputs, *watched)
        extended = run_passes(replace(graph, outputs=outputs, batch_axes=None))
        tiled = [TiledGraph(extended, None)]
        self._call = lowered_variant(tiled, options, "watched", is_cached=False).call

    def __call__(self, inputs: Sequence[Array]) -> tuple[list[Array], dict[Value, Array]]:
        """Return the outputs for inputs in order, and the inner values."""
        results = self._call.run(*inputs)
        found = {value: results[place] for value, place in self._places.items()}
        return results[: self._outputs], found


def rows_each(elements: int) -> int:
    """Number of rows of x to keep for each element of the data."""
    return max(_FEWEST_ROWS, _MOST_ROWS // max(elements, 1))


class ExampleCall(NamedTuple):
    """Arguments of a model by position and by name."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def calls_of(data: Iterable[Any]) -> list[ExampleCall]:
    """Return the elements of data as calls.

    Raises InvalidInput for empty data, for a single tensor, and for an input without elements.
    """
    if hasattr(data, "shape") or isinstance(data, str | Mapping) or not _is_iterable(data):
        raise InvalidInput(
            f"data is a {type(data).__name__}; give a list of example inputs, such as [x], with a "
            "tuple for several arguments or a dict for those by name"
        )
    calls = [_call(each) for each in data]
    for number, call in enumerate(calls):
        for leaf in (*call.args, *call.kwargs.values()):
            if 0 in getattr(leaf, "shape", ()):
                raise InvalidInput(
                    f"data[{number}] has an input of shape {tuple(leaf.shape)}, without elements; "
                    "give examples with at least one row"
                )
    if not calls:
        raise InvalidInput("data is empty; give at least one example of the model's inputs")
    return calls


def _is_iterable(data: Any) -> bool:
    return hasattr(data, "__iter__")


def _call(element: Any) -> ExampleCall:
    if isinstance(element, tuple | list):
        return ExampleCall(tuple(element), {})
    if isinstance(element, Mapping):
        return ExampleCall((), dict(element))
    return ExampleCall((element,), {})
