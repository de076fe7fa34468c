"""Weights as code of a model for one set of sizes prepared them, kept for code for other sizes.

Matrices keep their statistics and streams; arrays stay in the memory of the first function. So
code for another length is chosen and written without going through the weights again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from sparsejit.errors import CompileError
from sparsejit.ir.graph import Graph
from sparsejit.ir.packed_graph import packed, unpacked
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.values import Array, Value
from sparsejit.runtime.program import CommonWeights


class KeptWeights:
    """The weights of a model as its first code prepared them, for code of other sizes to read.

    It has the matrix of each constant, and the weights in memory that functions share. Raises
    CompileError as `CommonWeights` does.
    """

    def __init__(self) -> None:
        self.common = CommonWeights()
        self._matrices: dict[Value, SparseMatrix] = {}
        self._made_count = 0  # objects derived from matrices, when `_read_made` last found more

    def restart(self) -> None:
        """Forget the functions built so far: they are to be written again."""
        self.common = CommonWeights()

    @property
    def is_there(self) -> bool:
        """Whether a first function was built."""
        return self.common.is_there

    def matrix(self, value: Value, constants: Mapping[Value, Array]) -> SparseMatrix:
        """The matrix of a constant."""
        if value not in self._matrices:
            self._matrices[value] = SparseMatrix(constants[value])
            self._matrices[value].stays = True
        return self._matrices[value]

    def settle(self, graphs: Iterable[Graph]) -> list[Graph]:
        """Graphs whose constants lie in the first function's memory; call it after building that.

        Arrays made of weights move there too, and matrices are compressed.
        """
        settled = [replace(graph, constants=self._settled(graph.constants)) for graph in graphs]
        self._read_made()
        self.compress()
        return settled

    def share_new(self) -> None:
        """Let later functions read the newest function's weights that no earlier function had."""
        if self._read_made() or self.common.literals.new_routines:
            self.common.keep()

    def _read_made(self) -> bool:
        """Let arrays derived from matrices view the newest function's memory; True if any do."""
        made = sum(matrix.memoised_count for matrix in self._matrices.values())
        if made == self._made_count:
            return False
        self._made_count, found = made, False

        def there(array: Array) -> Array:
            nonlocal found
            view = self.common.view_of(array)
            found = found or view is not None
            return array if view is None else view

        for matrix in self._matrices.values():
            matrix.replace_memoised(lambda made: _with_arrays(made, there))
        return found

    def compress(self) -> None:
        """Keep weights compressed, in less memory, until they are read again."""
        for matrix in self._matrices.values():
            matrix.compress()

    def _settled(self, constants: Mapping[Value, Array]) -> Mapping[Value, Array]:
        return _ReadLater({value: self._supplier(value, constants[value]) for value in constants})

    def _supplier(self, value: Value, array: Array) -> Callable[[], Array]:
        there = self.common.view_of(array)
        if there is not None:
            return lambda: there
        matrix = self._matrices.get(value)
        if matrix is not None and _is_all_of(matrix, array):
            return lambda: np.asarray(matrix.held)
        own = packed(array)
        return lambda: unpacked(own)


def kept_weights() -> KeptWeights | None:
    """An empty `KeptWeights`; None where the system refuses the addresses for shared weights."""
    try:
        return KeptWeights()
    except CompileError:
        return None


def _is_all_of(matrix: SparseMatrix, array: Array) -> bool:
    """Whether the matrix has the array's bits."""
    held = matrix.held
    return isinstance(held, np.ndarray) and held.dtype == array.dtype == np.float32


class _ReadLater(Mapping[Value, Array]):
    """Constants, each made when it is looked up."""

    def __init__(self, suppliers: Mapping[Value, Callable[[], Array]]) -> None:
        self._suppliers = suppliers

    def __getitem__(self, value: Value) -> Array:
        return self._suppliers[value]()

    def __contains__(self, value: object) -> bool:
        return value in self._suppliers

    def __iter__(self) -> Iterator[Value]:
        return iter(self._suppliers)

    def __len__(self) -> int:
        return len(self._suppliers)


def _with_arrays(made: Any, change: Callable[[Array], Array]) -> Any:
    """A record in which `change` has replaced every array."""
    if isinstance(made, np.ndarray):
        return change(made)
    if is_dataclass(made) and not isinstance(made, type):
        own = {field.name: getattr(made, field.name) for field in fields(made)}
        new = {name: _with_arrays(each, change) for name, each in own.items()}
        changed = {name: each for name, each in new.items() if each is not own[name]}
        return replace(made, **changed) if changed else made
    return made
