"""Tensors of a source model, and copies of the model with other numbers in them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparsejit.frontends.onnx import is_onnx
from sparsejit.frontends.onnx.reading import all_graphs, all_nodes
from sparsejit.frontends.torch_export import is_program
from sparsejit.ir.values import Array

# Ways from a tensor of the source to the graph's constant, and back: as it is, or transposed.
_WAYS: tuple[tuple[Callable[[Array], Array], Callable[[Array, tuple[int, ...]], Array]], ...] = (
    (lambda x: x, lambda x, shape: x.reshape(shape)),
    (lambda x: x.T, lambda x, shape: x.reshape(shape[::-1]).T),
)
# Numbers of the rows with equal hashes, by the hash and the tensor's name.
_RowIndex = dict[int, dict[str, list[int]]]


@dataclass(frozen=True, eq=False)
class TensorPlace:
    """The tensor of the source that a constant of the graph is read from, and the way back.

    Attributes:
        name: the tensor's name
        tensor: its numbers as the model was read
        write: makes the tensor, of a given shape, from a constant that is all of it
        rows: numbers of the tensor's rows in the constant, where it has some of them or another
            order, such as the gates of one direction of a recurrent layer
    """

    name: str
    tensor: Array
    write: Callable[[Array, tuple[int, ...]], Array]
    rows: Array | None = None

    def overlaps(self, other: TensorPlace) -> bool:
        """Whether both share numbers of a tensor."""
        if self.name != other.name or self.rows is None or other.rows is None:
            return self.name == other.name
        return np.intersect1d(self.rows, other.rows).size > 0

    def written(self, array: Array, others: Array | None = None) -> Array:
        """The source's whole tensor, as an array, with the numbers of a constant put in.

        If the constant has only some of its rows, the rest are taken from `others`, another whole
        tensor, by default the one that was read.
        """
        if self.rows is None:
            return np.ascontiguousarray(self.write(array, self.tensor.shape))
        made = np.array(self.tensor if others is None else others, array.dtype)
        made.reshape(-1, made.shape[-1])[self.rows] = array
        return made


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
        self._rows: dict[tuple[int, np.dtype[Any]], _RowIndex] = {}

    def place_of(self, name: str, array: Array) -> TensorPlace | None:
        """The place in the source of a constant of the graph; None where it has none.

        It is the tensor of that name, or rows of this or another tensor that make up a matrix.
        """
        if name not in self._tensors:
            return self._place_of_rows(array)
        tensor = _array(self._tensors[name])
        if tensor.dtype.kind != "f":
            return None
        for read, write in _WAYS if tensor.size == array.size else ():
            if np.array_equal(read(tensor).reshape(array.shape), array):
                return TensorPlace(name, tensor, write)
        return self._place_of_rows(array, name)

    def _place_of_rows(self, array: Array, name: str | None = None) -> TensorPlace | None:
        """The rows of the named tensor, else of the only one, that make up a matrix.

        None where a row has no match or several, such as a file's weights before slices.
        """
        if array.ndim != 2 or not array.size:
            return None
        rows = self._rows_like(array)
        matches = [rows.get(hash(row.tobytes()), {}) for row in array]
        found = []
        for each in matches[0] if name is None else [name]:
            numbers = [match.get(each, []) for match in matches]
            if any(len(some) != 1 for some in numbers):
                continue
            tensor, places = _array(self._tensors[each]), np.concatenate(numbers)
            own = tensor.reshape(-1, array.shape[1])[places]
            if tensor.size >= array.size and own.tobytes() == array.tobytes():
                found.append(TensorPlace(each, tensor, _WAYS[0][1], places))
        return found[0] if len(found) == 1 else None

    def _rows_like(self, array: Array) -> _RowIndex:
        """Rows of all tensors of the array's width and dtype: their tensors' names and numbers.

        They are found by the hash of their bytes. Tensors are read one after another.
        """
        width, dtype = array.shape[1], array.dtype
        if (width, dtype) not in self._rows:
            found: _RowIndex = {}
            for name, holder in self._tensors.items():
                if _shape(holder)[-1:] == (width,) and (tensor := _array(holder)).dtype == dtype:
                    for number, row in enumerate(tensor.reshape(-1, width)):
                        place = found.setdefault(hash(row.tobytes()), {})
                        place.setdefault(name, []).append(number)
            self._rows[width, dtype] = found
        return self._rows[width, dtype]

    def written(self, tensors: Mapping[str, Array]) -> Any:
        """A copy of the model with other numbers in these tensors, of the same shapes."""
        if is_program(self.model):  # deep copies lack fields of nodes that sparsejit reads
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

    The bodies of an ONNX model's nodes count too, except names that occur more than once.
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


def _shape(holder: Any) -> tuple[int, ...]:
    return tuple(holder.shape if hasattr(holder, "detach") else holder.dims)


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
