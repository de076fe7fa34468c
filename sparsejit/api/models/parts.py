"""Parts of a model in the order in which they run: native functions, and sessions of ONNX Runtime.

values:   [inputs of the call | constants | outputs of part 1 | outputs of part 2 | ...]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.dtypes import check_held
from sparsejit.errors import InvalidInput
from sparsejit.frontends.nesting import dtypes
from sparsejit.frontends.onnx.dividing import LeftNode
from sparsejit.frontends.onnx.sessions import (
    array_type,
    of_unknown_rank,
    open_session,
    words_of,
)
from sparsejit.ir.values import Array, Value
from sparsejit.native.copying import SharedCode
from sparsejit.runtime.array_checks import check_in_place, check_outputs, require_number
from sparsejit.runtime.filled_memory import fill, fills
from sparsejit.runtime.python_objects import ArrayType

Bound = Callable[[], None]
_FLOAT32 = np.dtype(np.float32)


class PartTypes(NamedTuple):
    """The types of the arrays that a part reads and writes in place."""

    inputs: list[ArrayType]
    outputs: list[ArrayType]


class OwnPart(SharedCode):
    """Nodes as one native function, for a batch of one size."""

    engine = "sparsejit"

    def __init__(
        self, model: CompiledModel, inputs: Sequence[str], outputs: Sequence[str], nodes: int
    ) -> None:
        self.model, self.nodes = model, nodes
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        graph = model.graph
        self._types = PartTypes([*map(_type_of, graph.inputs)], [*map(_type_of, graph.outputs)])
        # The model accepts whole numbers of any width, and the file's other floats, unconverted.
        noted = dtypes(model.parts.input_nest)
        self._wanted = [
            dtype if (dtype := np.dtype(kind.dtype)).kind == "f" and not own else None
            for kind, own in zip(self._types.inputs, noted, strict=True)
        ]

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the outputs of the nodes."""
        return self.model.run(_in_dtypes(arrays, self._wanted))

    def types(self) -> PartTypes:
        """Return the types of the arrays that `bind` takes."""
        return self._types

    def bind(self, arrays: Sequence[Array], results: Sequence[Array]) -> Bound:
        """Return a call without arguments, for arrays of `types`."""
        return self.model.bind(arrays, results)


class LeftPart(SharedCode):
    """Nodes in a session of ONNX Runtime. `onnx` has the bytes of their ONNX model."""

    engine = "onnxruntime"

    def __init__(
        self,
        onnx: bytes,
        inputs: Sequence[str],
        outputs: Sequence[str],
        left: Sequence[LeftNode],
        threads: int,
    ) -> None:
        """Open the session. Raises the errors of `open_session`."""
        self.onnx, self.left = onnx, tuple(left)
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._session = open_session(onnx, threads)
        kinds = {each.name: each for each in self._session.get_inputs()}
        self._taken = [array_type(kinds[name]) for name in self.inputs]
        self._made = [array_type(each) for each in self._session.get_outputs()]
        self._wanted = [None if kind is None else np.dtype(kind.dtype) for kind in self._taken]
        self._names = list(self.outputs)

    @property
    def nodes(self) -> int:
        """Number of nodes in the session."""
        return len(self.left)

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the outputs of the nodes. Raises InvalidInput with ONNX Runtime's own message."""
        given = dict(zip(self.inputs, _in_dtypes(arrays, self._wanted), strict=True))
        try:
            return list(self._session.run(self._names, given))
        except Exception as error:  # of many types, which are not public
            raise InvalidInput(
                f"ONNX Runtime cannot run {self.left[0].operator}, node {self.left[0].name}, or "
                f"one after it, with these inputs: {words_of(error)}"
            ) from error

    def types(self) -> PartTypes:
        """Return the types of the arrays that `bind` takes.

        Raises InvalidInput for sizes unknown before a run.
        """
        found = [*self._taken, *self._made]
        unknown = of_unknown_rank(self.onnx)
        for name, kind in zip((*self.inputs, *self.outputs), found, strict=True):
            if kind is None or None in kind.shape or name in unknown:
                raise InvalidInput(
                    f"{name} has sizes that are known only when ONNX Runtime has run, or is no "
                    "tensor of numbers; this model cannot be bound: call it"
                )
        split = len(self._taken)
        kinds = [kind for kind in found if kind is not None]
        return PartTypes(kinds[:split], kinds[split:])

    def bind(self, arrays: Sequence[Array], results: Sequence[Array]) -> Bound:
        """Return a call without arguments, for arrays of `types`."""
        binding = self._session.io_binding()
        for name, array in zip(self.inputs, arrays, strict=True):
            binding.bind_cpu_input(name, array)
        for name, array in zip(self.outputs, results, strict=True):
            place = array.ctypes.data
            binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, place)
        held = arrays, results
        run = self._session.run_with_iobinding

        def call(_: Any = held) -> None:
            run(binding)

        return call


Part = OwnPart | LeftPart


class PartChain(SharedCode):
    """All parts of a model, for inputs of certain shapes.

    inputs, outputs: types of the model's inputs, names of its outputs. constants: arrays of outputs
    that are the same in every call, by name.
    """

    def __init__(
        self,
        inputs: Sequence[ArrayType],
        outputs: Sequence[str],
        constants: Mapping[str, Array],
        parts: Sequence[Part],
    ) -> None:
        self.inputs, self.outputs, self.parts = tuple(inputs), tuple(outputs), tuple(parts)
        self.constants = dict(constants)
        names = [each.name for each in self.inputs] + list(self.constants)
        for part in self.parts:
            names += part.outputs
        slots = {name: slot for slot, name in enumerate(names)}
        self._reads = [[slots[name] for name in part.inputs] for part in self.parts]
        self._turns = [*zip(self.parts, self._reads, strict=True)]
        self._given = [(np.dtype(each.dtype), each.shape, each) for each in self.inputs]
        given = len(self.inputs) + len(self.constants)
        self._results = [slots[name] for name in self.outputs]
        # Inputs, constants, and an array that is another output already are returned as copies.
        self._copied = [
            slot < given or slot in self._results[:number]
            for number, slot in enumerate(self._results)
        ]

    def run(self, arrays: Sequence[Array]) -> list[Any]:
        """Return the outputs. Raises InvalidInput for arrays that do not fit `inputs`."""
        values = self.values(arrays)
        return [
            values[slot].copy() if copied else values[slot]
            for slot, copied in zip(self._results, self._copied, strict=True)
        ]

    def values(self, arrays: Sequence[Array]) -> list[Any]:
        """Return all values: inputs, constants, and the outputs of each part."""
        if len(arrays) != len(self._given):
            require_number("inputs", len(arrays), self.inputs)
        values: list[Any] = [
            x if x.dtype is dtype and x.shape == shape else _given(x, kind)
            for x, (dtype, shape, kind) in zip(arrays, self._given, strict=True)
        ]
        values += self.constants.values()
        for part, reads in self._turns:
            values += part.run([values[slot] for slot in reads])
        return values

    def operands(self, values: Sequence[Any], part: int) -> list[Any]:
        """Return the values that a part reads."""
        return [values[slot] for slot in self._reads[part]]

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Bound:
        """Return a call without arguments. Raises InvalidInput for arrays not usable in place."""
        require_number("inputs", len(inputs), self.inputs)
        if len(outputs) != len(self.outputs):
            raise InvalidInput(f"{len(outputs)} outputs given; the model has {len(self.outputs)}")
        steps: list[Bound] = []
        buffers: list[Array] = [*inputs, *self.constants.values()]
        for array, kind in zip(inputs, self.inputs, strict=True):
            _given(array, kind)
            check_in_place([array], [kind])
        left = dict(zip(self._results, outputs, strict=True))
        for part, reads in zip(self.parts, self._reads, strict=True):
            types = part.types()
            sources = [
                _copied(buffers[slot], kind, steps)
                for slot, kind in zip(reads, types.inputs, strict=True)
            ]
            results = []
            for slot, kind in enumerate(types.outputs, len(buffers)):
                own = left.get(slot)
                fits = own is not None and (own.dtype, own.shape) == (kind.dtype, kind.shape)
                results.append(left.pop(slot) if fits else _empty(kind))
            steps.append(part.bind(sources, results))
            buffers += results
        kinds = [
            ArrayType(array.dtype.name, buffers[slot].shape, name)
            for array, slot, name in zip(outputs, self._results, self.outputs, strict=True)
        ]
        check_outputs(outputs, kinds, inputs)
        for array, slot in zip(outputs, self._results, strict=True):
            if buffers[slot] is not array:
                steps.append(partial(np.copyto, array, buffers[slot], casting="unsafe"))

        def run() -> None:
            for step in steps:
                step()

        return run


def _type_of(value: Value) -> ArrayType:
    return ArrayType(value.type.element.value, value.shape, value.origin.name)


def _in_dtypes(arrays: Sequence[Any], wanted: Sequence[np.dtype[Any] | None]) -> list[Any]:
    """Convert arrays to the dtypes of a part; arrays that have them already are not copied."""
    return [
        x if dtype is None or x.dtype is dtype else x.astype(dtype, copy=False)
        for x, dtype in zip(arrays, wanted, strict=True)
    ]


def _given(array: Array, kind: ArrayType) -> Array:
    """Convert an input of a call to the dtype that the file declares.

    Wider whole numbers are accepted if their values fit, and float32 for all floats.
    """
    dtype = np.dtype(kind.dtype)
    if array.shape != kind.shape:
        raise InvalidInput(f"{kind.name} has shape {array.shape}; give {kind.shape}")
    if array.dtype == dtype:
        return array
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        check_held(array, kind.name, dtype)
    elif not np.can_cast(array.dtype, dtype) and (array.dtype, dtype.kind) != (_FLOAT32, "f"):
        raise InvalidInput(f"{kind.name} has dtype {array.dtype}; give {dtype}")
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def _empty(kind: ArrayType) -> Array:
    array = np.empty(tuple(size or 0 for size in kind.shape), kind.dtype)
    if fills():
        fill([array])
    return array


def _copied(array: Array, kind: ArrayType, steps: list[Bound]) -> Array:
    """Return the array, or a new one of `kind` into which a step, added to `steps`, converts it."""
    if array.dtype == kind.dtype:
        return array
    other = _empty(kind)
    steps.append(partial(np.copyto, other, array, casting="unsafe"))
    return other
