"""Small models compiled from graphs, which takes less time than exporting torch modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from sketch import Sketch

from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.variant import make_variant
from sparsejit.api.options import ModelSettings
from sparsejit.frontends.batch_axis import batch_first
from sparsejit.frontends.nesting import TENSOR, Nest, NestKind
from sparsejit.ir.graph import BatchAxes, Graph
from sparsejit.ir.ops.convolution import Convolution, Pooling, PoolingKind
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.ops.recurrent import Recurrence, RecurrentCell
from sparsejit.ir.ops.row_chains import softmax
from sparsejit.ir.ops.selection import ArgMax, Embedding, TopK
from sparsejit.ir.ops.views import Expand, Permute, Reshape
from sparsejit.ir.spec import Activation
from sparsejit.ir.values import Array, Element

WORDS = 9


def perceptron(batch: int, features: int = 16) -> Graph:
    """x (batch, features) -> (batch, 5), of which the first layer is pruned."""
    s = Sketch()
    x = s.input(batch, features)
    weights = s.random.standard_normal((24, features)) * (s.random.random((24, features)) < 0.2)
    hidden = s(Linear(Activation.RELU), x, s.constant(weights), s.weight(24))
    return s.finish(s(Linear(), hidden, s.weight(5, 24), s.weight(5)))


def recurrent(batch: int) -> Graph:
    """x (batch, 7, 6) -> all steps (7, batch, 10) and the last state."""
    s = Sketch()
    x = s(Permute((1, 0, 2)), s.input(batch, 7, 6))
    gates = s(Linear(), x, s.weight(30, 6), s.weight(30))
    state = s(Expand((batch, 10)), s.constant(np.zeros((1, 10))))
    operands = gates, state, s.weight(30, 10), s.weight(30)
    every, last = s.all(Recurrence(RecurrentCell.GRU), *operands)
    return s.finish(every, last)


def images(batch: int) -> Graph:
    """x (batch, 3, 9, 8) -> probabilities (batch, 4)."""
    s = Sketch()
    convolution = Convolution((2, 1), (1, 1), (1, 1), activation=Activation.RELU)
    y = s(convolution, s.input(batch, 3, 9, 8), s.weight(5, 3, 3, 3), s.weight(5))
    pooling = Pooling(PoolingKind.MAX, (2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1))
    flat = s(Reshape((batch, 40)), s(pooling, y))
    scores = s(Linear(), flat, s.weight(4, 40), s.weight(4))
    return s.finish(s(softmax((batch, 4)), scores))


def words(batch: int) -> Graph:
    """indices int64 (batch, 3) and a mask, bool -> tanh of rows, the largest's place, the mask."""
    s = Sketch()
    indices, mask = s.input(batch, 3, element=Element.INT64), s.input(batch, element=Element.BOOL)
    rows = s("tanh", s(Embedding(), indices, s.weight(WORDS, 8)))
    values, _ = s.all(TopK(2), rows)
    return s.finish(values, s(ArgMax(), rows), s("logical_not", mask))


def time_first(batch: int) -> Graph:
    """x (7, batch, 6), state (1, batch, 10), scale (10) -> steps (7, batch, 10), (1, batch, 10)."""
    s = Sketch()
    x, state, scale = s.input(7, batch, 6), s.input(1, batch, 10), s.input(10)
    gates = s(Linear(), x, s.weight(30, 6), s.weight(30))
    first = s(Reshape((batch, 10)), state)
    operands = gates, first, s.weight(30, 10), s.weight(30)
    every, last = s.all(Recurrence(RecurrentCell.GRU), *operands)
    graph = s.finish(s("mul", every, scale), s(Reshape((1, batch, 10)), last))
    return batch_first(graph, BatchAxes((1, 1, None), (1, 1)))


class Case(NamedTuple):
    """A graph, and the samples of a pass where the batch is free."""

    graph: Callable[[int], Graph]
    tile: int | None
    dtype: str = "float32"
    settings: Mapping[str, Any] = MappingProxyType({})

    def compiled(self) -> CompiledModel:
        return compiled(self.graph(self.tile or 2), self.tile, self.dtype, **self.settings)


CASES = {
    "perceptron": Case(perceptron, 1),
    "perceptron-int8": Case(perceptron, 4, "int8", {"target": "avx2"}),
    "perceptron-bfloat16": Case(perceptron, None, "bfloat16", {"tune": True, "exact": True}),
    "recurrent": Case(recurrent, None),
    "images": Case(images, 3),
    "words": Case(words, 2),
    "time-first": Case(time_first, 4),
}


def compiled(graph: Graph, tile: int | None, dtype: str = "float32", **given: Any) -> CompiledModel:
    """The model of a graph, called with its inputs one after the other; it returns a list."""
    usual = {"target": "native", "threads": 1, "tune": False, "exact": False}
    settings = ModelSettings(**{**usual, **given})
    variant = make_variant(graph, settings.resolved(), dtype, tile, "Small")
    results = Nest(NestKind.LIST, (TENSOR,) * len(graph.outputs))
    return CompiledModel((variant,), call_of(len(graph.inputs)), results, settings)


def call_of(tensors: int) -> Nest:
    """The form of a call's arguments."""
    return Nest(NestKind.TUPLE, (Nest(NestKind.TUPLE, (TENSOR,) * tensors), Nest(NestKind.DICT)))


def inputs_of(model: CompiledModel, samples: int = 1) -> list[Array]:
    """Random inputs, of that many samples where the batch is free, as a call gives them."""
    arrays = native_inputs(model, samples)
    return arrays if model.batch_axes is None else as_called(arrays, model.batch_axes.inputs)


def as_called(arrays: Sequence[Array], axes: Sequence[int | None]) -> list[Array]:
    """Arrays of native code as a call has them."""
    pairs = zip(arrays, axes, strict=True)
    return [np.ascontiguousarray(np.moveaxis(x, 0, axis)) if axis else x for x, axis in pairs]


def as_native(arrays: Sequence[Array], axes: Sequence[int | None]) -> list[Array]:
    """Arrays of a call as native code has them."""
    pairs = zip(arrays, axes, strict=True)
    return [np.ascontiguousarray(np.moveaxis(x, axis, 0)) if axis else x for x, axis in pairs]


def native_inputs(model: CompiledModel, samples: int = 1) -> list[Array]:
    """The same as native code takes them, samples first."""
    random = np.random.default_rng(1)
    arrays = []
    graph = model.parts.variants[0].graph
    for number, value in enumerate(graph.inputs):
        is_free = model.tile is not None and not graph.is_shared(number)
        shape = (samples, *value.shape[1:]) if is_free else value.shape
        if value.type.element is Element.INT64:
            arrays.append(random.integers(0, WORDS, shape))
        else:
            numbers = random.standard_normal(shape).astype(np.float32)
            arrays.append(numbers if value.type.element is Element.FLOAT32 else numbers > 0)
    return arrays
