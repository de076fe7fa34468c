"""Several graphs in one file: {"graph": ..., "tensors": {name: number, ...}}, equal tensors once.

The tensor `name` of a graph (`graph_file`) is the file's tensor of that number.
"""

from collections.abc import Mapping
from typing import Any

from sparsejit.artefact.graph_file import graph_from_data, graph_to_data
from sparsejit.artefact.sealed import Tensors
from sparsejit.errors import DamagedFile
from sparsejit.ir.graph import Array, Graph


class PooledWriter:
    """Collects the `tensors` of graphs."""

    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self._numbers: dict[tuple[str, tuple[int, ...], bytes], int] = {}

    def add(self, graph: Graph) -> dict[str, Any]:
        """What describes a graph. Raises InvalidInput for one that cannot be saved."""
        described, arrays = graph_to_data(graph)
        return {
            "graph": described,
            "tensors": {name: self._number(array) for name, array in arrays.items()},
        }

    def _number(self, array: Array) -> int:
        key = array.dtype.name, array.shape, array.tobytes()
        number = self._numbers.setdefault(key, len(self._numbers))
        self.tensors.setdefault(str(number), array)
        return number


class PooledReader:
    """Graphs that a `PooledWriter` described."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self._tensors = tensors
        self._used: set[str] = set()

    def read(self, described: Any, numbers: Mapping[str, Any]) -> Graph:
        """The graph, all of it checked. Raises DamagedFile, without the file's name."""
        own = {name: str(number) for name, number in numbers.items()}
        missing = set(own.values()) - self._tensors.keys()
        if missing:
            raise DamagedFile(f"has a graph that lacks tensors {sorted(missing)}")
        self._used.update(own.values())
        return graph_from_data(
            described, {name: self._tensors[number] for name, number in own.items()}
        )

    def finish(self) -> None:
        """Raises DamagedFile for tensors that no graph has."""
        if self._used != self._tensors.keys():
            unread = sorted(self._tensors.keys() - self._used)
            raise DamagedFile(f"has tensors that nothing reads: {unread}")
