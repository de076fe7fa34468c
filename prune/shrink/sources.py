"""Tensors of a source model, and copies of the model with other numbers in them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsejit.frontends.onnx import is_onnx
from sparsejit.frontends.onnx.checking import all_graphs, all_nodes
from sparsejit.frontends.torch_export import is_program
from sparsejit.ir.graph import Array

# A tensor of the source as the graph's constant lies on it, and back.
_WAYS: tuple[tuple[Callable[[Array], Array], Callable[[Array, tuple[int, ...]], Array]], ...] = (
    (lambda x: x, lambda x, shape: x.reshape(shape)),
    (lambda x: x.T, lambda x, shape: x.reshape(shape[::-1]).T),
)


@dataclass(frozen=True, eq=False)
class TensorPlace:
    """The tensor of the source that a constant of the graph is read from, and the way back."""

    name: str
    shape: tuple[int, ...]
    write: Callable[[Array, tuple[int, ...]], Array]

    def written(self, array: Array) -> Array:
        """The tensor for a constant."""
        return np.ascontiguousarray(self.write(array, self.shape))


def suffix_of(model: Any) -> str:
    """The suffix of the file that a shrunk model is written to; `model` may be a reference."""
    if is_onnx(model):
        return ".onnx"
    is_file = isinstance(model, str) and model.endswith(".pt2")
    return ".pt2" if is_file or is_program(model) else ".safetensors"


class Source:
    """A torch module, an ExportedProgram or an ONNX model.

    Attributes:
        model: the model, read where it was a file
    """

    def __init__(self, model: Any) -> None:
        self.model = _loaded(model)
        self._tensors = dict(tensor_holders(self.model))

    def place_of(self, name: str, array: Array) -> TensorPlace | None:
        """The tensor of that name; None where there is none, or it has other numbers."""
        if name not in self._tensors:
            return None
        tensor = _array(self._tensors[name])
        if tensor.dtype.kind != "f" or tensor.size != array.size:
            return None
        for read, write in _WAYS:
            if np.array_equal(read(tensor).reshape(array.shape), array):
                return TensorPlace(name, tensor.shape, write)
        return None

    def written(self, tensors: Mapping[str, Array]) -> Any:
        """A copy of the model with other numbers in these tensors, of the same shapes."""
        if is_program(self.model):  # whose deep copies lack what sparsejit reads of its nodes
            made = copy.copy(self.model)
            made._state_dict = copy.deepcopy(self.model.state_dict)
        else:
            made = copy.deepcopy(self.model)
        for name, holder in tensor_holders(made):
            if name in tensors:
                _put(holder, tensors[name])
        return made


def _loaded(model: Any) -> Any:
    if is_onnx(model) and not hasattr(model, "graph"):
        import onnx

        return onnx.load(str(model))
    return model


def tensor_holders(model: Any) -> list[tuple[str, Any]]:
    """Names and tensors: parameters and buffers, or initialisers and constant nodes.

    The bodies of an ONNX model's nodes count too, but for names that several of them have.
    """
    if not is_onnx(model):
        state = model.state_dict
        return list((state() if callable(state) else state).items())
    found = [(each.name, each) for graph in all_graphs(model.graph) for each in graph.initializer]
    for node in all_nodes(model.graph):
        if node.op_type == "Constant":
            found += [(node.output[0], a.t) for a in node.attribute if a.name == "value"]
    uses = Counter(name for name, _ in found)
    return [(name, holder) for name, holder in found if uses[name] == 1]


def _array(holder: Any) -> Array:
    if hasattr(holder, "detach"):
        return np.asarray(holder.detach().cpu().float().numpy())
    from onnx.numpy_helper import to_array

    return np.asarray(to_array(holder))


def _put(holder: Any, array: Array) -> None:
    if hasattr(holder, "detach"):
        import torch

        with torch.no_grad():
            holder.copy_(torch.from_numpy(array))
        return
    from onnx.helper import tensor_dtype_to_np_dtype
    from onnx.numpy_helper import from_array

    dtype = tensor_dtype_to_np_dtype(holder.data_type)
    holder.CopyFrom(from_array(array.astype(dtype), holder.name))
