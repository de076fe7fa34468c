"""ONNX models with QuantizeLinear and DequantizeLinear around layers that are stored short."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sparsejit.api.quantising.scales_of_inputs import equalised_weights, stored_matrix
from sparsejit.frontends.onnx.reading import all_graphs, all_nodes
from sparsejit.ir.graph import Graph
from sparsejit.ir.layer_scales import LayerScales
from sparsejit.ir.spec import LARGEST_INT8, DType
from sparsejit.ir.values import Array
from sparsejit.prune.shrink.layers_of_source import SourceLayer
from sparsejit.prune.shrink.sources import tensor_holders

# Opsets from which on QuantizeLinear exists, and DequantizeLinear takes a scale for each output.
_QUANTISING, _BY_AXIS = 10, 13
_MULTIPLYING = ("Conv", "Gemm", "MatMul")


def with_short_layers(
    model: Any,
    graph: Graph,
    layers: Mapping[SourceLayer, LayerScales],
    input_scales: Mapping[SourceLayer, float],
) -> Any:
    """A copy of an onnx.ModelProto whose layers round their weights, and in int8 their x.

    `graph` has the weights before they are rounded. Where the opset lacks an operator, or the
    tensor is not an operand of the layer itself, the tensor has float32 numbers that are rounded
    already. `input_scales` are the ratios of the model's x to the graph's. An x without one is not
    rounded, nor an x whose rows are measured at every call.
    """
    made = type(model)()
    made.CopyFrom(model)
    writer = _QdqWriter(made)
    for layer, scales in layers.items():
        if scales.dtype is DType.FLOAT32:
            continue
        if scales.x_steps is not None:
            times, seen = input_scales.get(layer), scales.x_steps
            steps = None if times is None else replace(seen, scale=seen.scale * times)
            scales = replace(scales, x_steps=steps)
        writer.round_layer(layer, layer.weights_in(graph), scales)
    writer.insert_nodes()
    return made


@dataclass
class _QdqWriter:
    """Adds QuantizeLinear and DequantizeLinear to an ONNX model, in place."""

    model: Any
    _new: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    _rounded: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        domains = {each.domain: each.version for each in self.model.opset_import}
        self._opset = domains.get("", domains.get("ai.onnx", 1))
        self._holders = dict(tensor_holders(self.model))
        graph = self.model.graph
        self._names = {each.name for each in (*graph.initializer, *graph.input)}
        self._names |= {name for node in all_nodes(graph) for name in node.output}

    def round_layer(self, layer: SourceLayer, weights: Array, scales: LayerScales) -> None:
        """Round one layer, whose weights in the source are (out, in, *kernel)."""
        node = self._reader_of(layer.weights.name)
        is_byte = scales.dtype is DType.INT8 and node is not None and self._opset >= _QUANTISING
        if is_byte and scales.x_steps is not None:
            self._round_x(node, layer.weights.name, scales)
        else:
            scales = replace(scales, factors=None)  # no x is divided by them
        if is_byte and self._opset >= _BY_AXIS:
            self._dequantise(node, layer, equalised_weights(scales, weights))
        else:
            from onnx.numpy_helper import to_array

            name, stored = layer.weights.name, stored_matrix(scales, weights)
            self._put(name, layer.weights.written(stored, to_array(self._holders[name])))

    def insert_nodes(self) -> None:
        """Put the new nodes before their readers."""
        for graph in reversed(list(all_graphs(self.model.graph))):  # the inner ones first
            nodes = list(graph.node)
            if not any(name in self._new for node in nodes for name in node.output[:1]):
                continue
            del graph.node[:]
            for node in nodes:
                graph.node.extend([*self._new.pop(node.output[0], ()), node])

    def _reader_of(self, name: str) -> Any:
        """The product that reads a tensor; None where another operator does, or several do."""
        readers = [node for node in all_nodes(self.model.graph) if name in node.input]
        found = len(readers) == 1 and readers[0].op_type in _MULTIPLYING
        return readers[0] if found else None

    def _round_x(self, node: Any, weights: str, scales: LayerScales) -> None:
        """Round the operand that is not the weights, once for all layers that round it alike."""
        place = 1 if node.input[0] == weights else 0
        x, factors = node.input[place], scales.factors
        divided = b"" if factors is None else factors.tobytes()
        alike = x, scales.x_steps, divided
        if alike not in self._rounded:
            self._rounded[alike] = self._rounded_value(node, x, scales)
        node.input[place] = self._rounded[alike]

    def _rounded_value(self, node: Any, x: str, scales: LayerScales) -> str:
        new = self._new[node.output[0]]
        if scales.factors is not None:
            around = len(scales.shape) - 2
            divided = (1 / scales.factors).reshape(-1, *(1,) * around).astype(np.float32)
            x = self._node(new, "Mul", x, self._tensor(f"{x}.factors", divided))
        assert scales.x_steps is not None
        steps = (
            self._tensor(f"{x}.scale", np.float32(scales.x_steps.scale)),
            self._tensor(f"{x}.zero_point", np.int8(scales.x_steps.zero_point)),
        )
        integers = self._node(new, "QuantizeLinear", x, *steps)
        return self._node(new, "DequantizeLinear", integers, *steps)

    def _dequantise(self, node: Any, layer: SourceLayer, weights: Array) -> None:
        """Store the weights as int8, with a scale for each output, behind a DequantizeLinear."""
        name, written = layer.weights.name, layer.weights.written
        rows = np.arange(len(weights)).reshape(-1, *(1,) * (weights.ndim - 1))
        places = written(np.broadcast_to(rows, weights.shape))
        varying = [n for n in range(places.ndim) if (np.diff(places, axis=n) != 0).any()]
        axis = varying[0] if varying else places.shape.index(1)
        scale = np.abs(weights).max(axis=tuple(range(1, weights.ndim))) / LARGEST_INT8
        scale = np.where(scale > 0, scale, 1.0).astype(np.float32)
        self._put(name, written(np.rint(weights / scale.reshape(rows.shape)).astype(np.int8)))
        steps = (
            self._tensor(f"{name}.scale", scale),
            self._tensor(f"{name}.zero_point", np.zeros(len(scale), np.int8)),
        )
        new = self._new[node.output[0]]
        place = list(node.input).index(name)
        node.input[place] = self._node(new, "DequantizeLinear", name, *steps, axis=axis)

    def _put(self, name: str, array: Array) -> None:
        """Give a tensor other numbers, perhaps of another dtype."""
        from onnx.numpy_helper import from_array

        holder = self._holders[name]
        holder.CopyFrom(from_array(np.ascontiguousarray(array), holder.name))
        for each in self.model.graph.input:  # old files list initialisers among inputs
            if each.name == name:
                each.type.tensor_type.elem_type = holder.data_type

    def _tensor(self, name: str, array: Any) -> str:
        """Add an initialiser, and return its name."""
        from onnx.numpy_helper import from_array

        name = self._free(name)
        self.model.graph.initializer.append(from_array(np.asarray(array), name))
        return name

    def _node(self, new: list[Any], op: str, *inputs: str, **attributes: Any) -> str:
        """Make a node, put it in the list `new`, and return the name of its result."""
        from onnx.helper import make_node

        name = self._free(f"{inputs[0]}.{op}")
        new.append(make_node(op, inputs, [name], name=name, **attributes))
        return name

    def _free(self, name: str) -> str:
        """A name that no value of the model has: `name`, or `name` with a number behind it."""
        number, wanted = 1, name
        while name in self._names:
            number += 1
            name = f"{wanted}.{number}"
        self._names.add(name)
        return name
