"""Calls of a model's native function, `int run(inputs, outputs, workspace, tiles)`, from Python.

`inputs` and `outputs` are tables of pointers to row-major arrays. Where the batch is free, it is
`tiles` times as many rows as the function takes in one pass, its tile; else `tiles` is 1.
"""

import ctypes
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.runtime.array_checks import (
    check_in_place,
    check_outputs,
    checked_array,
    is_free,
    require_number,
    with_rows,
)
from sparsejit.runtime.call_arrays import address_table, new_workspace
from sparsejit.runtime.call_stub import call_stub
from sparsejit.runtime.executable_memory import ExecutableMemory
from sparsejit.runtime.python_objects import ArrayType, bind_arguments
from sparsejit.x86.operands import rcx, rdi, rdx, rsi

Array = npt.NDArray[Any]


class NativeCall:
    """A native function as `call(inputs) -> outputs`, both lists of numpy arrays.

    An input that is not contiguous, aligned and in the machine's byte order is copied. The batch,
    where it is free, may be any, 0 too: rows that fill no tile are padded with copies of the last.
    Any number of threads may call at once; the interpreter lock is released meanwhile. Workspaces
    are kept for as long as the model lives, as many as there were calls at once.

    `run(*inputs) -> outputs` is the same with less overhead. Raises InvalidInput for inputs of the
    wrong number, dtype or shape, and where the function returns the number of a kernel that was
    given an index out of range, not 0.

    With a `tile` at least one input and every output has a free first length, without one none has.
    """

    def __init__(
        self,
        memory: ExecutableMemory,
        input_types: Sequence[ArrayType],
        output_types: Sequence[ArrayType],
        workspace_bytes: int,
        tile: int | None = None,
    ) -> None:
        self._checked = _CheckedCall(
            memory, tuple(input_types), tuple(output_types), workspace_bytes, tile
        )
        self.run: Callable[..., list[Array]] = call_stub(
            memory,
            input_types,
            output_types,
            tile,
            self._checked.workspaces,
            self._checked,
        )
        self._checked.stub = weakref.ref(self.run)

    def __call__(self, inputs: Iterable[Array]) -> list[Array]:
        return self.run(*inputs)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """`bind_model` for arrays that are checked first, and that no copy may replace.

        The batch must be a multiple of the tile. Raises InvalidInput as a call does, for arrays
        that would have to be copied, and for outputs that are read-only or share memory.
        """
        checked = self._checked
        tiles = checked.check_bound(inputs, outputs)
        return bind_model(checked.memory, inputs, outputs, checked.workspace_bytes, tiles)


def bind_model(
    memory: ExecutableMemory,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    workspace_bytes: int,
    tiles: int,
) -> Callable[[], None]:
    """A built-in `run()` that computes outputs from inputs, checked already and held from here on.

    It has a workspace of its own, so that it must not be called by two threads at once; it keeps
    the interpreter lock, which a thread would need to try. It does not look at the status.
    """
    sources, destinations = address_table(inputs), address_table(outputs)
    workspace = new_workspace(workspace_bytes)
    arguments = (
        (rdi, ctypes.addressof(sources)),
        (rsi, ctypes.addressof(destinations)),
        (rdx, workspace.ctypes.data),
        (rcx, tiles),
    )
    keep = (sources, destinations, workspace, tuple(inputs), tuple(outputs))
    return bind_arguments(memory, arguments, keep)


class _CheckedCall:
    """`call(*inputs)` in Python: for what the stub does not take as it is."""

    stub: Callable[[], Callable[..., list[Array]] | None]  # weak: the stub holds this

    def __init__(
        self,
        memory: ExecutableMemory,
        input_types: tuple[ArrayType, ...],
        output_types: tuple[ArrayType, ...],
        workspace_bytes: int,
        tile: int | None,
    ) -> None:
        has_tile = tile is not None
        assert any(map(is_free, input_types)) == has_tile, "a tile goes with a free batch"
        assert all(is_free(kind) == has_tile for kind in output_types)
        self.memory, self.workspace_bytes = memory, workspace_bytes
        self.input_types, self.output_types, self.tile = input_types, output_types, tile
        self.workspaces: list[Array] = []  # not in use; append and pop are atomic
        self._native = memory.function(4, with_status=True)

    def __call__(self, *inputs: Array) -> list[Array]:
        arrays, rows = self._checked(inputs)
        tile = self.tile
        if tile is not None and 0 < rows < tile:
            return self._run_padded(arrays, 0, rows)
        outputs = [
            np.empty(with_rows(kind.shape, rows), kind.dtype) for kind in self.output_types
        ]
        if tile is None:
            self._run(arrays, outputs, 1)
            return outputs
        tiles, rest = divmod(rows, tile)
        if tiles:
            self._run(arrays, outputs, tiles)
        if rest:
            last = self._run_padded(arrays, rows - rest, rows)
            for output, computed in zip(outputs, last, strict=True):
                output[rows - rest :] = computed
        return outputs

    def check_bound(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> int:
        """How many tiles there are; raises InvalidInput where arrays cannot be used in place."""
        _, rows = self._checked(inputs)
        require_number("outputs", len(outputs), self.output_types)
        check_in_place(inputs, self.input_types)
        check_outputs(outputs, self.output_types, inputs, rows)
        if self.tile is None:
            return 1
        if rows % self.tile or not rows:
            raise InvalidInput(
                f"a batch of {rows} cannot be bound; use a multiple of {self.tile}, or call"
            )
        return rows // self.tile

    def _checked(self, inputs: Sequence[Array]) -> tuple[list[Array], int]:
        """The inputs as the function can read them, and the rows of the free batch."""
        require_number("inputs", len(inputs), self.input_types)
        rows = 0
        for array, kind in zip(inputs, self.input_types, strict=True):
            if is_free(kind):
                if isinstance(array, np.ndarray) and array.ndim:
                    rows = len(array)
                break
        kinds = zip(inputs, self.input_types, strict=True)
        return [checked_array(array, kind, rows) for array, kind in kinds], rows

    def _run(self, inputs: Sequence[Array], outputs: Sequence[Array], tiles: int) -> None:
        try:
            workspace = self.workspaces.pop()
        except IndexError:
            workspace = new_workspace(self.workspace_bytes)
        try:
            tables = address_table(inputs), address_table(outputs)
            status = self._native(*tables, workspace.ctypes.data, tiles)
        finally:
            self.workspaces.append(workspace)
        if status:
            raise InvalidInput(
                f"kernel {status} of the model found an index that its table has no row for, or "
                "offsets of bags that do not ascend from 0; give indices from 0 to below the rows"
            )

    def _run_padded(self, inputs: Sequence[Array], first: int, end: int) -> list[Array]:
        """The outputs of the rows from `first` to `end`, fewer than a tile."""
        assert self.tile is not None
        padded = [
            _padded(array[first:end], self.tile) if is_free(kind) else array
            for array, kind in zip(inputs, self.input_types, strict=True)
        ]
        run = self.stub()
        assert run is not None, "the stub calls this, or the model that holds it"
        return [output[: end - first] for output in run(*padded)]


def _padded(rows: Array, tile: int) -> Array:
    whole = np.empty((tile, *rows.shape[1:]), rows.dtype)
    whole[: len(rows)] = rows
    whole[len(rows) :] = rows[-1]
    return whole
