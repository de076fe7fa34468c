"""A network by its graph's operators in float64, sample by sample, for classes that are given."""

from collections.abc import Iterator

import numpy as np

from sparsejit.ir.graph import Array
from sparsejit.lowering.loop import Role
from sparsejit.voice.loop_arrays import LoopArrays
from sparsejit.voice.sample_graph import SampleGraph


class ForcedTurns:
    """A `forced_graph`, from silence."""

    def __init__(self, sample: SampleGraph, arrays: LoopArrays) -> None:
        self._graph, self._loop, self._arrays = sample.graph, sample.loop, arrays
        self._states = [np.array(state) for state in sample.initial]
        self._sample = 0

    def next(self, given: int) -> Array:
        """What the last layer gives, (n,), before the class `given`."""
        values = self._graph.evaluate(list(self._operands(given)))
        self._sample += 1
        pairs = list(zip(self._loop.outputs, values, strict=True))
        self._states = [value for role, value in pairs if role is Role.STATE]
        return next(value for role, value in pairs if role is Role.SAMPLE)

    def _operands(self, given: int) -> Iterator[Array]:
        frame = self._sample // self._loop.hop
        states = iter(self._states)
        frames = iter(array[frame] for array in self._arrays.of_frames)
        samples = iter([*(a[self._sample] for a in self._arrays.of_samples), np.array(given)])
        sources = {Role.STATE: states, Role.FRAME: frames, Role.SAMPLE: samples}
        return (next(sources[role]) for role in self._loop.inputs)
