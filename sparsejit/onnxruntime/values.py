"""Values of ONNX Runtime's interface: tensors, and the inputs and outputs bound to a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.ir.values import Array

_CPU = "cpu"
_TYPE_NAMES = {"float32": "float", "float64": "double", "str": "string"}
# Numbers of ONNX by the name of a dtype.
_NUMBERS = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
}
_DTYPES = {number: name for name, number in _NUMBERS.items()}


class OrtValue:
    """A tensor on the processor, which shares the memory of the array that it is made from."""

    def __init__(self, array: Array) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(
        numpy_obj: Array, device_type: str = _CPU, device_id: int = 0
    ) -> OrtValue:
        """Return a value that shares the array's memory.

        Args:
            numpy_obj: the array
            device_type: "cpu"
            device_id: 0
        """
        _check_device(device_type)
        return OrtValue(np.ascontiguousarray(numpy_obj).reshape(np.shape(numpy_obj)))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = _CPU, device_id: int = 0
    ) -> OrtValue:
        """Return a value that is not initialised.

        Args:
            shape: its sizes
            element_type: its dtype, or ONNX's number of it
            device_type: "cpu"
            device_id: 0
        """
        _check_device(device_type)
        return OrtValue(np.empty(tuple(shape), dtype_of_element(element_type)))

    def numpy(self) -> Array:
        """Return a copy as an array."""
        return self._array.copy()

    def update_inplace(self, np_arr: Array) -> None:
        """Copy an array of the same shape into the value."""
        if np_arr.shape != self._array.shape or np_arr.dtype != self._array.dtype:
            raise ValueError(
                f"the value is {self._array.dtype} {self._array.shape}, and the array "
                f"{np_arr.dtype} {np_arr.shape}"
            )
        np.copyto(self._array, np_arr)

    def shape(self) -> list[int]:
        """Return the sizes."""
        return list(self._array.shape)

    def data_type(self) -> str:
        """Return the type as ONNX Runtime writes it."""
        return type_of_array(self._array)

    def element_type(self) -> int:
        """Return ONNX's number of the dtype."""
        return _NUMBERS.get(self._array.dtype.name, 8)

    def data_ptr(self) -> int:
        """Return the address of the first element."""
        return int(self._array.ctypes.data)

    def tensor_size_in_bytes(self) -> int:
        """Return the size in bytes."""
        return self._array.nbytes

    def device_name(self) -> str:
        """Return "cpu"."""
        return _CPU

    def has_value(self) -> bool:
        """Return True."""
        return True

    def is_tensor(self) -> bool:
        """Return True."""
        return True

    def is_sparse_tensor(self) -> bool:
        """Return False."""
        return False

    def is_tensor_sequence(self) -> bool:
        """Return False."""
        return False

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._array, dtype)


class IOBinding:
    """Inputs and outputs that are bound to a session by name, for `run_with_iobinding`."""

    def __init__(self, session: Any) -> None:
        """Take a session of `sparsejit.onnxruntime`."""
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Array | None] = {}
        self._results: list[Any] = []
        self._known = {each.name for each in session.get_inputs()}

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an array, which is read when the model runs.

        Args:
            name: the input's name
            arr_on_cpu: the array
        """
        if name not in self._known:
            raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list")
        self._inputs[name] = arr_on_cpu

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind memory by its address, which the caller keeps alive.

        Args:
            name: the input's name
            device_type: "cpu"
            device_id: 0
            element_type: its dtype, or ONNX's number of it
            shape: its sizes
            buffer_ptr: its address
        """
        _check_device(device_type)
        self.bind_cpu_input(name, _array_at(buffer_ptr, shape, element_type))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind a value.

        Args:
            name: the input's name
            ortvalue: the value
        """
        self.bind_cpu_input(name, array_of(ortvalue))

    def bind_output(
        self,
        name: str,
        device_type: str = _CPU,
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output, in the memory at an address or, without one, in memory of its own.

        Args:
            name: the output's name
            device_type: "cpu"
            device_id: 0
            element_type: its dtype, or ONNX's number of it
            shape: its sizes
            buffer_ptr: its address
        """
        _check_device(device_type)
        given = None if not buffer_ptr else _array_at(buffer_ptr, shape or (), element_type)
        self._outputs[name] = given

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Ask for an output in the memory of a value.

        Args:
            name: the output's name
            ortvalue: the value
        """
        self._outputs[name] = array_of(ortvalue)

    def clear_binding_inputs(self) -> None:
        """Forget all inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget all outputs."""
        self._outputs.clear()
        self._results = []

    def synchronize_inputs(self) -> None:
        """Do nothing: there is no device to wait for."""

    def synchronize_outputs(self) -> None:
        """Do nothing: there is no device to wait for."""

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run, in the order in which they were bound."""
        return [OrtValue(each) for each in self._results]

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Return the outputs of the last run as arrays."""
        return [np.array(each) for each in self._results]

    @property
    def feeds(self) -> Mapping[str, Any]:
        """The bound inputs by name."""
        return self._inputs

    @property
    def names(self) -> list[str]:
        """The names of the bound outputs."""
        return list(self._outputs)

    def take(self, results: Sequence[Any]) -> None:
        """Keep the outputs of a run, in the memory that was bound for them."""
        kept = []
        for (name, given), result in zip(self._outputs.items(), results, strict=True):
            if given is None:
                kept.append(result)
                continue
            if given.shape != result.shape or given.dtype != result.dtype:
                raise RuntimeError(
                    f"Error in execution: output {name} is {result.dtype} {result.shape}, and "
                    f"the bound memory {given.dtype} {given.shape}"
                )
            np.copyto(given, result)
            kept.append(given)
        self._results = kept


class _GivenMemory:
    """Memory at an address that others own, in a form that numpy makes an array of."""

    def __init__(self, address: int, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": tuple(shape),
            "typestr": dtype.str,
            "version": 3,
        }


def _array_at(address: int, shape: Sequence[int], element_type: Any) -> Array:
    return np.asarray(_GivenMemory(int(address), shape, dtype_of_element(element_type)))


def dtype_of_element(element_type: Any) -> np.dtype[Any]:
    """Return the dtype for a numpy type, or for ONNX's number of an element type."""
    kind: npt.DTypeLike = element_type
    if isinstance(element_type, int) and element_type in _DTYPES:
        kind = _DTYPES[element_type]
    return np.dtype(kind)


def array_of(value: Any) -> Any:
    """Return the array in an OrtValue, of ours or of ONNX Runtime's; other objects unchanged."""
    if isinstance(value, OrtValue):
        return value._array
    is_value = type(value).__name__ == "OrtValue" and hasattr(value, "numpy")
    return value.numpy() if is_value else value


def type_of_array(array: Array) -> str:
    """Return the type of an array as ONNX Runtime writes it."""
    name = "str" if array.dtype.kind in "USO" else array.dtype.name
    return f"tensor({_TYPE_NAMES.get(name, name)})"


def _check_device(device_type: str) -> None:
    if str(device_type).partition(":")[0].lower() not in (_CPU, "cpu_pinned"):
        raise InvalidInput(f"device {device_type!r} does not exist here; give {_CPU!r}")
