"""Layers of a folded graph, tied to the tensors of the source that they come from.

The graph's weights may have scales of other operators in them: w = source * scale, row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparsejit.api.quantising.seen_inputs import WatchedRun
from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.recurrent import Recurrence
from sparsejit.ir.values import Array, Value
from sparsejit.lowering.context import ModelOptions
from sparsejit.passes.calibrated_layers import STORING, keyed_layers, weights_of
from sparsejit.passes.default import folded
from sparsejit.passes.quantised_layers import quantised_layers
from sparsejit.prune.shrink.layers import ShrinkLayer, biases_of, with_weights
from sparsejit.prune.shrink.sources import Source, TensorPlace

# Most operators after a layer to search for its bias; the least change of a bias beyond rounding.
_MOST_OPERATORS, _LEAST_SCALE = 4, 1e-5
_NEAR = 1e-3  # of the largest x: the largest error of a scaled x
_SAME = 1e-2  # of the largest: a bias beside larger numbers in the source is rounded with them


@dataclass(frozen=True, eq=False)
class SourceBias:
    """A bias in the source: the graph's bias changes by `scale` (out,) times its change.

    `array` is the source's bias as the model was read, float64 (out,).
    """

    place: TensorPlace
    array: Array
    scale: Array


@dataclass(frozen=True, eq=False)
class SourceLayer:
    """A layer, and the places of its weights and its bias in the source.

    The graph's rows are the source's times `scale` (out,). `bias` is None if the layer has none
    that may change.
    """

    layer: ShrinkLayer
    weights: TensorPlace
    scale: Array
    bias: SourceBias | None

    @property
    def names(self) -> list[str]:
        """The names of its tensors in the source."""
        return [self.weights.name, *([] if self.bias is None else [self.bias.place.name])]

    def weights_in(self, made: Graph) -> Array:
        """The source's weights for the weights of `made`, float32 (out, in, *kernel)."""
        rows = self.scale.reshape(-1, *(1,) * (len(self.layer.shape) - 1))
        return np.asarray(made.constants[self.layer.weights] / rows, np.float32)

    def put_tensors(self, found: dict[str, Array], dense: Graph, made: Graph) -> None:
        """Add to `found` the source's tensors of this layer, with the weights of the graph `made`.

        `found` may have the same tensors, with rows of other layers.
        """
        layer, name = self.layer, self.weights.name
        found[name] = self.weights.written(self.weights_in(made), found.get(name))
        if self.bias is not None and layer.bias is not None:
            change = made.constants[layer.bias].astype(np.float64) - dense.constants[layer.bias]
            bias = self.bias.array + change.reshape(-1) / self.bias.scale
            found[self.bias.place.name] = self.bias.place.written(bias.astype(np.float32))


def source_layers(
    raw: Graph, layers: Sequence[ShrinkLayer], dense: Graph, source: Source
) -> list[SourceLayer]:
    """The layers whose weights lie in the source as they are, except for a scale of each row.

    `raw` is the graph as it was read, `dense` the folded graph, which has the layers. A bias that
    has no tensor of its own in the source stays as it is, and so do layers that share numbers.
    """
    nodes = {key.place: node for key, node in keyed_layers(raw).items()}
    places = {
        layer: found
        for layer in layers
        if (node := nodes.get(layer.key.place)) is not None
        and (found := _weights_of(node, raw, layer, dense, source)) is not None
    }
    places = {
        layer: (place, scale)
        for layer, (place, scale) in places.items()
        if not any(x is not layer and place.overlaps(other) for x, (other, _) in places.items())
    }
    biases = _biases(raw, {layer: nodes[layer.key.place] for layer in places}, dense, source)
    made = []
    for layer, (place, scale) in places.items():
        bias = biases.get(layer)
        own = layer if bias is not None else replace(layer, bias=None)
        made.append(SourceLayer(own, place, scale, bias))
    return made


def _weights_of(
    node: Node, raw: Graph, layer: ShrinkLayer, dense: Graph, source: Source
) -> tuple[TensorPlace, Array] | None:
    weights = weights_of(node)
    own = raw.constants.get(weights)
    if own is None or own.shape != layer.shape:
        return None
    place = source.place_of(weights.origin.name, own)
    scale = _scale_of_rows(dense.constants[layer.weights], own)
    return None if place is None or scale is None else (place, scale)


def _scale_of_rows(made: Array, own: Array) -> Array | None:
    """Scale (out,) such that made = own * scale; None where there is none."""
    w, v = (x.reshape(len(x), -1).astype(np.float64) for x in (made, own))
    scale = (w * v).sum(1) / np.maximum((v * v).sum(1), 1e-300)
    scale[scale == 0] = 1.0  # a row of zeros stays one
    least = 1e-6 * float(np.abs(w).max(initial=0.0))
    return scale if np.allclose(w, v * scale[:, None], rtol=1e-4, atol=least) else None


def _biases(
    raw: Graph, nodes: Mapping[ShrinkLayer, Node], dense: Graph, source: Source
) -> dict[ShrinkLayer, SourceBias]:
    """The biases that are tensors of the source, with the scales that folding gives them.

    Each candidate is raised by 1 to see whether the folded bias changes: first the layer's own
    bias, then constants that later operators add, one after another.
    """
    readers = raw.consumers()
    left = {
        layer: list(_added(node, raw, readers, layer.shape[0]))
        for layer, node in nodes.items()
        if layer.bias is not None
    }
    biases: dict[ShrinkLayer, SourceBias] = {}
    while left := {x: some for x, some in left.items() if some and x not in biases}:
        # Folding may add the bias of a state's product to the bias of the input's product.
        turn = {x for x in left if not x.is_recurrent} or left
        tried = {layer: left[layer].pop(0) for layer in turn}
        raised = {value: raw.constants[value] + np.float32(1) for value in tried.values()}
        after = folded(quantised_layers(with_weights(raw, raised)))
        now = {key.place: node for key, node in keyed_layers(after).items()}
        for layer, value in tried.items():
            place = source.place_of(value.origin.name, raw.constants[value])
            scale = _scale_of_bias(now.get(layer.key.place), after, layer, dense)
            if place is not None and scale is not None:
                array = raw.constants[value].astype(np.float64).reshape(-1)
                biases[layer] = SourceBias(place, array, scale)
    return biases


def _added(
    node: Node, raw: Graph, readers: Mapping[Value, list[Node]], outputs: int
) -> Iterator[Value]:
    """Constants with a number for each output, read by a layer or operators right behind it.

    One of them may be the layer's bias in the source.
    """
    yield from (v for v in biases_of(node) if v in raw.constants and v.type.size == outputs)
    if isinstance(node.op, Recurrence):
        return
    for _ in range(_MOST_OPERATORS):
        following = readers[node.outputs[0]]
        if len(following) != 1 or isinstance(following[0].op, STORING):
            return
        (node,) = following
        yield from (v for v in node.inputs if v in raw.constants and v.type.size == outputs)


def _scale_of_bias(
    node: Node | None, after: Graph, layer: ShrinkLayer, dense: Graph
) -> Array | None:
    """Change (out,) of a layer's bias from graph `dense` to graph `after`; None without one.

    `node` is the layer in `after`. None also where some of it did not change.
    """
    bias = next(iter(biases_of(node)), None) if node is not None else None
    if bias is None or bias not in after.constants or layer.bias is None:
        return None
    before = dense.constants[layer.bias].astype(np.float64).reshape(-1)
    scale = after.constants[bias].reshape(-1) - before
    return np.asarray(scale) if (np.abs(scale) > _LEAST_SCALE).all() else None


def tensors_of(
    layers: Sequence[SourceLayer], dense: Graph, made: Graph
) -> dict[str, Array]:
    """The source's tensors with the weights of the graph `made`."""
    found: dict[str, Array] = {}
    for layer in layers:
        layer.put_tensors(found, dense, made)
    return found


def input_scales(
    layers: Sequence[SourceLayer],
    raw: Graph,
    dense: Graph,
    inputs: Sequence[Array],
    options: ModelOptions,
) -> dict[SourceLayer, float]:
    """Ratio of the source's x to the graph's, for layers where it is one positive number.

    A factor that the source multiplies x by may be in the graph's weights. `raw` is the graph as it
    was read, `inputs` are one element of the data.
    """
    nodes = {key.place: node for key, node in keyed_layers(raw).items()}
    values = {
        each: nodes[each.layer.key.place].inputs[0]
        for each in layers
        if not each.layer.is_recurrent
    }
    _, theirs = WatchedRun(raw, values.values(), options)(inputs)
    own = {each: each.layer.node.inputs[0] for each in values}
    _, ours = WatchedRun(dense, own.values(), options)(inputs)
    found = {}
    for each, value in values.items():
        x, y = (some.astype(np.float64) for some in (ours[own[each]], theirs[value]))
        if x.shape != y.shape:
            continue
        scale = float((x * y).sum() / max(float((x * x).sum()), 1e-300))
        largest = float(np.abs(y).max(initial=0.0))
        if scale > 0 and np.allclose(x * scale, y, rtol=_NEAR, atol=_NEAR * largest):
            found[each] = scale
    return found


def with_weights_of(layers: Sequence[SourceLayer], again: Graph, made: Graph) -> Graph:
    """The graph `made`, with its layers' weights and biases replaced by the graph `again`'s.

    `again` is the source's graph, read again.
    """
    nodes = {key.place: node for key, node in keyed_layers(again).items()}
    found = {}
    for each in layers:
        layer = each.layer
        values = _constants_of(nodes[layer.key.place])
        for value, own in zip(values, (layer.weights, layer.bias), strict=False):
            if own is not None:
                found[own] = again.constants[value]
    return with_weights(made, found)


def check_same(layers: Sequence[SourceLayer], again: Graph, made: Graph) -> None:
    """Raise InvalidInput unless the source, read again, has the weights of the graph `made`."""
    nodes = {key.place: node for key, node in keyed_layers(again).items()}
    for each in layers:
        node, layer = nodes.get(each.layer.key.place), each.layer
        own = () if node is None else _constants_of(node)
        same = [
            _is_near(again.constants[value], made.constants[wanted])
            for value, wanted in zip(own, (layer.weights, layer.bias), strict=False)
            if wanted is not None
        ]
        if not same or not all(same):
            raise InvalidInput(
                f"{layer.key.layer} has other weights when the shrunk model is read again; "
                "its operators are not known well enough, please report it"
            )


def _constants_of(node: Node) -> tuple[Value, ...]:
    """The weights of a layer, and its bias where it has one."""
    return weights_of(node), *biases_of(node)[:1]


def _is_near(array: Array, wanted: Array) -> bool:
    largest = float(np.abs(wanted).max(initial=0.0))
    return np.allclose(array, wanted, rtol=_SAME, atol=_SAME * largest)
