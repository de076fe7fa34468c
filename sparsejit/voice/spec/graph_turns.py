"""A sample graph run by its operators' float64 references, to check the compiled loop."""

from dataclasses import replace

import numpy as np

from sparsejit.ir import reference
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.sampling import Draw
from sparsejit.ir.ops.tree_draw import TreeDraw
from sparsejit.ir.values import Array
from sparsejit.lowering.loop import Role
from sparsejit.voice.spec.loop_arrays import LoopArrays
from sparsejit.voice.spec.sample_graph import SampleGraph


class GraphTurns:
    """Runs a sample graph by `Graph.evaluate`, sample after sample."""

    def __init__(self, sample: SampleGraph, arrays: LoopArrays, seed: int) -> None:
        self._loop, self._arrays, self._seed = sample.loop, arrays, seed
        self._states = [np.array(state) for state in sample.initial]
        names = [value.origin.name for value in sample.graph.inputs]
        self._state_names = [
            n for n, role in zip(names, sample.loop.inputs, strict=True) if role is Role.STATE
        ]
        deciding = [value for node in _decisions(sample.graph) for value in node.inputs]
        self._results = len(sample.graph.outputs)
        self._graph = replace(sample.graph, outputs=(*sample.graph.outputs, *deciding))
        self._sample = 0

    def next(self) -> tuple[list[Array], float]:
        """Results of the next sample, and the least margin of its draws; 0 is a rounding tie."""
        frame = self._sample // self._loop.hop
        given = {
            Role.CALL: iter([np.array(self._seed, np.uint64).view(np.int64)]),
            Role.FRAME: iter([array[frame] for array in self._arrays.of_frames]),
            Role.SAMPLE: iter([array[self._sample] for array in self._arrays.of_samples]),
            Role.STATE: iter(self._states),
        }
        values = self._graph.evaluate([next(given[role]) for role in self._loop.inputs])
        outputs, deciding = values[: self._results], values[self._results :]
        roles = list(zip(self._loop.outputs, outputs, strict=True))
        self._states = [value for role, value in roles if role is Role.STATE]
        self._sample += 1
        nodes = _decisions(self._graph)
        pairs = zip(nodes, deciding[::2], deciding[1::2], strict=True)
        margin = min((_margin(*pair) for pair in pairs), default=1.0)
        return [value for role, value in roles if role is Role.SAMPLE], margin

    def follow(self, name: str, value: float) -> None:
        """Continue from another value of a state, such as the compiled loop's."""
        if name in self._state_names:
            state = self._state_names.index(name)
            self._states[state] = np.asarray(value, self._states[state].dtype)


def _decisions(graph: Graph) -> list[Node]:
    """The nodes that draw a class."""
    return [node for node in graph.nodes if isinstance(node.op, Draw | TreeDraw)]


def _margin(node: Node, first: Array, second: Array) -> float:
    if isinstance(node.op, TreeDraw):
        read = node.op.path(first, second)[:-1]
        return float(np.abs(first[read] - second).min())
    assert isinstance(node.op, Draw)
    spec = node.op.spec(len(first))
    return float(reference.categorical_margin(spec, first, float(second)))
