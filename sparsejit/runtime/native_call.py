"""Calls of native functions from Python: a kernel's and a model's.

    address_table, new_workspace   arguments of a model's function: tables of addresses, a workspace
    NativeCall                     a call with lists of arrays

The functions:

    void kernel(const float *x, float *y)
    int run(inputs, outputs, workspace, samples)

`inputs` and `outputs` are tables of pointers to row-major arrays. `samples` is the length of the
batch where that is free, else 1.
"""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.native.executable_memory import ExecutableMemory
from sparsejit.runtime.array_checks import (
    check_in_place,
    check_outputs,
    checked_array,
    free_length,
    is_free,
    require_number,
    with_rows,
)
from sparsejit.runtime.call_stub import call_stub, direct_stub
from sparsejit.runtime.filled_memory import emit_fill_arrays, fill, fills
from sparsejit.runtime.python_objects import ArrayType, bind_arguments
from sparsejit.x86.operands import rcx, rdi, rdx, rsi

WORKSPACE_ALIGNMENT = 64

Array = npt.NDArray[Any]


def address_table(arrays: Sequence[Array]) -> Any:
    """Return a C array of the arrays' addresses."""
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))


def new_workspace(size: int) -> Array:
    """Return `size` bytes or more, uninitialised, aligned to WORKSPACE_ALIGNMENT."""
    room = np.empty(max(size, 1) + WORKSPACE_ALIGNMENT, np.uint8)
    return room[-room.ctypes.data % WORKSPACE_ALIGNMENT :]


def aligned_copy(array: Array) -> Array:
    """Return a C-contiguous copy that begins at a cache line."""
    room = new_workspace(array.nbytes)[: array.nbytes]
    copy: Array = room.view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class NativeCall:
    """A native function as `call(inputs) -> outputs`, both lists of numpy arrays.

    An input that is not contiguous, aligned and in the machine's byte order is copied. A free batch
    may have any length, 0 too. Any number of threads may call at once; the interpreter lock is
    released meanwhile. Workspaces are kept for as long as the model lives: one for each of the
    calls that ever ran at the same time.

    `run(*inputs) -> outputs` is the same with less overhead. Raises InvalidInput for inputs of the
    wrong number, dtype or shape, and where the function returns not 0 but the number of a kernel
    that found an index out of range.

    `checked` runs the calls that the native stub refuses.

    Where an input has a free first length, every output has it too.
    Where `workspace_bytes` is None, the function is a kernel of one input and one output:
    `run(x) -> y`, or `run(x, y) -> y`, which raises InvalidInput as well for a y that is read-only
    or shares memory with x.

    A `block` is the only workspace, which keeps a stream's states from call to call. A second call
    at the same time raises InvalidInput.
    """

    def __init__(
        self,
        memory: ExecutableMemory,
        input_types: Sequence[ArrayType],
        output_types: Sequence[ArrayType],
        workspace_bytes: int | None,
        block: Array | None = None,
    ) -> None:
        kind = _CheckedKernel if workspace_bytes is None else _CheckedCall
        types = tuple(input_types), tuple(output_types)
        self.checked = kind(memory, *types, workspace_bytes or 0, block)

    @cached_property
    def run(self) -> Callable[..., Any]:
        """The native stub, `run(*inputs) -> outputs`, made when it is first read."""
        return self.checked.new_stub()

    def direct(self, is_single: bool, torch: Any = None) -> Callable[..., Any] | None:
        """Return a built-in `run(*inputs)` of arrays or tensors, as `direct_stub` makes it."""
        checked = self.checked
        kinds = checked.taken, checked.made
        has_block = checked.block is not None
        return direct_stub(
            checked.memory, *kinds, checked.workspaces, is_single, torch, has_block
        )

    def __call__(self, inputs: Iterable[Array]) -> list[Array]:
        results: list[Array] = self.run(*inputs)
        return results

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """Return a built-in `run()` that computes `outputs` from the current values of `inputs`.

        It holds all arrays. The `run()` of a model has one workspace, so two threads must not call
        it at once; since it keeps the interpreter lock, they cannot. It ignores the status. Raises
        InvalidInput as a call does, for arrays that would have to be copied, and for outputs that
        are read-only or share memory.
        """
        checked = self.checked
        samples = checked.check_bound(inputs, outputs)
        workspace = [] if checked.is_kernel else [checked.new_workspace()]
        arguments, held = checked.bound(inputs, outputs, workspace, samples)
        numbers = tuple(zip((rdi, rsi, rdx, rcx), arguments, strict=False))
        written = (*outputs, *(workspace if checked.block is None else ()))
        before = partial(emit_fill_arrays, arrays=written) if fills() else None
        keep = held, *inputs, *outputs, *workspace
        return bind_arguments(checked.memory, numbers, keep, before)


class _CheckedCall:
    """`call(*inputs)` in Python, with checks and copies: the fallback of the native stub."""

    is_kernel = False

    def __init__(
        self,
        memory: ExecutableMemory,
        input_types: tuple[ArrayType, ...],
        output_types: tuple[ArrayType, ...],
        workspace_bytes: int,
        block: Array | None = None,
    ) -> None:
        self.is_free = any(map(is_free, input_types))
        assert all(is_free(kind) == self.is_free for kind in output_types)
        self.memory, self.workspace_bytes = memory, workspace_bytes
        self.taken, self.made = input_types, output_types
        self.block = block
        # The ones not in use; append and pop are atomic.
        self.workspaces: list[Array] = [] if block is None else [block]
        self._native = memory.function(4, with_status=True)
        self._fills = fills()

    def __call__(self, *inputs: Array) -> Any:
        arrays, rows = self._checked(inputs)
        outputs = [np.empty(with_rows(kind.shape, rows), kind.dtype) for kind in self.made]
        self._run(arrays, outputs, rows if self.is_free else 1)
        return outputs

    def new_stub(self) -> Callable[..., Any]:
        """Return a native stub for plain arrays, with this object as its fallback."""
        kinds = self.taken, self.made
        return call_stub(self.memory, *kinds, self.workspaces, self, self.block is not None)

    def new_workspace(self) -> Array:
        """Return a new workspace, or the block."""
        return new_workspace(self.workspace_bytes) if self.block is None else self.block

    def take_workspace(self) -> Array:
        """Return a workspace not in use, to be appended to `workspaces` after the call.

        Raises InvalidInput where another call uses the block.
        """
        try:
            return self.workspaces.pop()
        except IndexError:
            if self.block is None:
                return new_workspace(self.workspace_bytes)
        raise InvalidInput(
            "another thread is in a call of this stream; let one thread at a time use a stream"
        )

    def bound(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        workspace: Sequence[Array],
        samples: int,
    ) -> tuple[Sequence[int], object]:
        """Return the function's arguments for these arrays, and an object to hold beside them."""
        sources, destinations = address_table(inputs), address_table(outputs)
        tables = ctypes.addressof(sources), ctypes.addressof(destinations)
        return (*tables, workspace[0].ctypes.data, samples), (sources, destinations)

    def check_bound(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> int:
        """Return the number of samples. Raises InvalidInput for arrays not usable in place."""
        _, rows = self._checked(inputs)
        require_number("outputs", len(outputs), self.made)
        check_in_place(inputs, self.taken)
        check_outputs(outputs, self.made, inputs, rows)
        return rows if self.is_free else 1

    def _checked(self, inputs: Sequence[Array]) -> tuple[list[Array], int]:
        """Return inputs that the function can read, and the rows of the free batch."""
        require_number("inputs", len(inputs), self.taken)
        rows = free_length(inputs, self.taken)
        kinds = zip(inputs, self.taken, strict=True)
        return [checked_array(array, kind, rows) for array, kind in kinds], rows

    def _run(self, inputs: Sequence[Array], outputs: Sequence[Array], samples: int) -> None:
        workspace = self.take_workspace()
        try:
            if self._fills:
                fill([*outputs, *([workspace] if self.block is None else [])])
            tables = address_table(inputs), address_table(outputs)
            status = self._native(*tables, workspace.ctypes.data, samples)
        finally:
            self.workspaces.append(workspace)
        require_success(status)


def require_success(status: int) -> None:
    """Raise InvalidInput for a status of a model's function that is not 0."""
    if status:
        raise InvalidInput(
            f"kernel {status} of the model found an index without a row in its table, "
            "offsets of bags that do not ascend from 0, or a whole number divided by 0; give "
            "indices from 0 to below the number of rows, ascending offsets, and divisors "
            "other than 0"
        )


class _CheckedKernel(_CheckedCall):
    """`call(x) -> y` or `call(x, y) -> y` of a kernel in Python, the fallback of its stub."""

    is_kernel = True

    def __init__(self, memory: ExecutableMemory, *rest: Any) -> None:
        super().__init__(memory, *rest)
        self._native = memory.function(2)

    def __call__(self, *arrays: Array) -> Array:
        x, given = arrays[:1], arrays[1:]
        (source,), _ = self._checked(x)
        results = given or [np.empty(with_rows(kind.shape, 0), kind.dtype) for kind in self.made]
        require_number("outputs", len(results), self.made)
        check_outputs(results, self.made, x)
        if self._fills:
            fill(results)
        self._native(source.ctypes.data, results[0].ctypes.data)
        return results[0]

    def new_stub(self) -> Callable[..., Any]:
        return call_stub(self.memory, self.taken, self.made, None, self)

    def bound(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        workspace: Sequence[Array],
        samples: int,
    ) -> tuple[Sequence[int], object]:
        return [array.ctypes.data for array in (*inputs, *outputs)], None
