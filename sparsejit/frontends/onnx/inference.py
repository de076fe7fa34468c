"""Validity and result sizes of a node before it is mapped, by the onnx package.

Its schemas declare for every operator which operands and attributes go together.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsejit.frontends.onnx.call import ELEMENTS, Operand, operator_of
from sparsejit.frontends.onnx.reading import dtype_of, size_of
from sparsejit.frontends.writing.writer import Unmapped
from sparsejit.ir.dtypes import BFLOAT16, TEXT, Dtype
from sparsejit.ir.values import Element, Value

if TYPE_CHECKING:
    from onnx import NodeProto, TypeProto

# Most elements of a known operand that may be a shape, axes or counts; and, of floats, scales.
_MOST_SAYING, _MOST_SCALES = 1024, 8
_MOST_AXES = 64  # of numpy's arrays
Sizes = tuple[int | None, ...]
# The package does not compute earlier versions of these, which do the same for fewer dtypes.
_AS_OF = {"DequantizeLinear": 21, "QuantizeLinear": 21}
# Operators whose sizes the package infers wrongly: with ceil_mode, before opset 22, it counts a
# last window that begins in the padding; it takes an STFT, by default one-sided, for two-sided.
_SIZED_OTHERWISE = ("AveragePool", "MaxPool", "STFT")


class Inference:
    """Infers one node after the other; keeps ONNX's dtypes, of which a graph has three."""

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._dtypes: ChainMap[str, int] = ChainMap({})

    @contextmanager
    def within(self, outputs: Iterable[str], results: Iterable[str]) -> Iterator[None]:
        """Context for graphs within a node, whose names are their own.

        Afterwards the node's results have the dtypes of the graphs' outputs.
        """
        inside = self._dtypes = self._dtypes.new_child()
        yield
        self._dtypes = inside.parents
        for output, name in zip(outputs, results, strict=False):
            if output in inside:
                self._dtypes[name] = inside[output]

    def name(self, value: str, dtype: int) -> None:
        """Note the dtype of a value of the file, by ONNX's number."""
        self._dtypes[value] = dtype

    def name_as(self, value: str, dtype: Dtype) -> None:
        """Note the dtype of a value of the file."""
        self._dtypes[value] = _number_of(dtype)

    def dtype(self, value: str) -> Dtype | None:
        """The dtype of a value of the file, if it is known."""
        found = self._dtypes.get(value)
        return _dtype(found) if found else None

    def bytes_of(self, node: NodeProto, sizes: Sequence[Sizes | None]) -> int:
        """Bytes of results of these sizes, as far as they are known."""
        total = 0
        for name, each in zip(node.output, sizes, strict=False):
            dtype = self.dtype(name)
            if dtype is not None and each is not None:
                total += dtype.itemsize * prod(n or 0 for n in each)
        return total

    def copy(self, values: Iterable[Any], others: Iterable[Any]) -> None:
        """Note the dtypes of `values` for `others` too, pair by pair; each is a name or a value."""
        for value, other in zip(values, others, strict=False):
            name, new = (getattr(each, "name", each) for each in (value, other))
            if name in self._dtypes:
                self._dtypes[new] = self._dtypes[name]

    def name_unknown(self, value: str, element: Element, operands: Iterable[str]) -> None:
        """Note the dtype of a result that the package does not know: of com.microsoft's operators.

        Floats have the dtype of the first floats among the operands, whole numbers int32.
        """
        if value in self._dtypes:
            return
        if element is Element.INT64:
            self._dtypes[value] = _number_of(np.dtype(np.int32))
        elif element is Element.FLOAT32:
            dtypes = (self._dtypes.get(name, 0) for name in operands)
            found = next((each for each in dtypes if each and _dtype(each).kind == "f"), 0)
            if found:
                self._dtypes[value] = found

    def sizes(self, node: NodeProto, operands: Sequence[Operand]) -> list[Sizes | None]:
        """The sizes of each result, None where the package does not infer them.

        Raises Unmapped for operands and attributes that the operator does not take.
        """
        from onnx.checker import ValidationError
        from onnx.shape_inference import InferenceError, infer_node_outputs

        _check_axis(node)
        version = version_of(node, self._opset)
        schema = _schema(operator_of(node), version)
        given = {name: x for name, x in zip(node.input, operands, strict=True) if name}
        if schema is None or not all(map(is_plain, given.values())):
            return [None] * len(node.output)
        try:
            found = infer_node_outputs(
                schema,
                node,
                {name: self.type_of(name, x) for name, x in given.items()},
                {name: _tensor(_axes_of_pad(node, x)) for name, x in given.items() if _says(x)},
                opset_imports=_imports(version),
            )
        except (InferenceError, ValidationError, ValueError) as error:
            raise Unmapped(_reason(error)) from None
        for name, kind in found.items():
            self._dtypes[name] = kind.tensor_type.elem_type
        if node.op_type in _SIZED_OTHERWISE:
            return [None] * len(node.output)
        return [_sizes(found.get(name)) for name in node.output]

    def type_of(self, name: str, operand: Any) -> TypeProto:
        """ONNX's type of an array, or of a value of the file."""
        if isinstance(operand, np.ndarray) and self.dtype(name) != TEXT:
            return _type_proto(_number_of(operand.dtype), operand.shape)
        held = self._dtypes.get(name) or _number_of(np.dtype(operand.type.element.value))
        return _type_proto(held, operand.shape)


def version_of(node: NodeProto, opset: int) -> int:
    """The opset by which the onnx package is asked about a node: the model's, or a later one.

    The package computes some operators only in later opsets than a model may have.
    """
    return max(opset, _AS_OF.get(node.op_type, 0))


def check_found(results: Sequence[Any], sizes: Sequence[Sizes | None]) -> None:
    """Raise Unmapped where a mapping's results have other sizes than ONNX gives the operator's."""
    for result, wanted in zip(results, sizes, strict=False):
        if wanted is None or not isinstance(result, Value | np.ndarray):
            continue
        pairs = zip(result.shape, wanted, strict=False)
        if len(result.shape) != len(wanted) or any(m not in (n, None) for n, m in pairs):
            raise Unmapped(f"would give {list(result.shape)} where ONNX gives {list(wanted)}")


@cache
def _schema(operator: str, opset: int) -> Any:
    from onnx.defs import SchemaError, get_schema

    try:
        schema = get_schema(operator, opset, "")
    except SchemaError:
        return None
    return schema if schema.has_type_and_shape_inference_function else None


@cache
def _dtype(number: int) -> Dtype:
    return dtype_of(number, "a value")


@cache
def _imports(opset: int) -> list[Any]:
    from onnx.helper import make_opsetid

    return [make_opsetid("", opset)]


@cache
def _number_of(dtype: Dtype) -> int:
    from onnx import TensorProto
    from onnx.helper import np_dtype_to_tensor_dtype

    if not isinstance(dtype, np.dtype):
        return int(TensorProto.BFLOAT16)
    return int(np_dtype_to_tensor_dtype(dtype))


@lru_cache(maxsize=1024)
def _type_proto(dtype: int, shape: Sizes) -> TypeProto:
    """A type, which callers share and must not change."""
    from onnx.helper import make_tensor_type_proto

    return make_tensor_type_proto(dtype, shape)


def _check_axis(node: NodeProto) -> None:
    """Raise Unmapped for an axis that no tensor has: the package would read out of bounds."""
    for attribute in node.attribute:
        if attribute.name == "axis" and abs(attribute.i) > _MOST_AXES:
            raise Unmapped(f"its axis is {attribute.i}")


def no_type() -> TypeProto:
    """The type of an operand that is left out."""
    from onnx import TypeProto

    return TypeProto()


def is_plain(operand: Operand) -> bool:
    """Whether an operand is a value, or an array of a dtype that graphs hold."""
    if isinstance(operand, np.ndarray):
        return operand.dtype.kind in ELEMENTS or operand.dtype.name == BFLOAT16.name
    return isinstance(operand, Value)


def _says(operand: Operand) -> bool:
    if not isinstance(operand, np.ndarray):
        return False
    return operand.size <= (_MOST_SCALES if operand.dtype.kind == "f" else _MOST_SAYING)


def _axes_of_pad(node: NodeProto, array: Any) -> Any:
    """Convert axes of int32, which Pad takes, to the int64 that the package requires."""
    is_narrow = node.op_type == "Pad" and array.dtype == np.int32
    return array.astype(np.int64) if is_narrow else array


def _tensor(array: Any) -> Any:
    from onnx.numpy_helper import from_array

    return from_array(array)


def _sizes(kind: Any) -> Sizes | None:
    if kind is None or not kind.tensor_type.HasField("shape"):
        return None
    sizes = map(size_of, kind.tensor_type.shape.dim)
    return tuple(size if isinstance(size, int) else None for size in sizes)


def _reason(error: Exception) -> str:
    """Text of an error without the package's own mark."""
    text = str(error).strip().partition("\n")[0]
    return text.removeprefix("[ShapeInferenceError]").strip()
