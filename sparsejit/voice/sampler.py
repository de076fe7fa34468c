"""Runs a compiled voice: frames in, samples out, state kept between calls."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Array
from sparsejit.lowering.loop import Role
from sparsejit.runtime.call_arrays import new_workspace
from sparsejit.voice.features import FloatArray
from sparsejit.voice.loop_arrays import FrameInputs
from sparsejit.voice.sample_loop import SampleLoop


class Sampler:
    """One utterance in progress: its own state, the shared native code.

    Chunks of any number of frames give the samples that one call with all frames would give.
    `classes` of the last call, int64, none where samples have no class, and the bytes of
    `workspace` are kept for inspection. Not for two threads at once; make one Sampler per thread.
    """

    def __init__(self, loop: SampleLoop, seed: int) -> None:
        if not 0 <= seed < 2**64:
            raise InvalidInput(f"seed {seed} is not a 64-bit number; give 0 to 2**64 - 1")
        self.classes: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._loop, self._results = loop.loop, loop.results
        self._native = loop.program.memory.function(4)
        self.workspace = new_workspace(loop.workspace_bytes)
        self._seed = np.array(seed, np.uint64)
        self._inputs = _OperandTable(self._loop.inputs)
        self._outputs = _OperandTable(self._loop.outputs)
        self._states = loop.new_states()
        self._inputs.set(Role.CALL, [self._seed] * self._loop.inputs.count(Role.CALL))
        for addresses, states in zip((self._inputs, self._outputs), self._states, strict=True):
            addresses.set(Role.STATE, states)

    def generate(self, conditioning: FrameInputs) -> FloatArray:
        """The samples of the frames that come next, float32."""
        samples, *classes = self.run(conditioning)
        self.classes = classes[0] if classes else np.empty(0, np.int64)
        return samples

    def run(self, inputs: FrameInputs) -> list[Array]:
        """The loop's results for the frames that come next, a row a sample."""
        arrays = inputs.loop_arrays()
        count = arrays.frames * self._loop.hop
        results = [np.empty((count, *kind.shape), kind.element.value) for kind in self._results]
        self._inputs.set(Role.FRAME, arrays.of_frames)
        self._inputs.set(Role.SAMPLE, arrays.of_samples)
        self._outputs.set(Role.SAMPLE, results)
        self._native(self._inputs.table, self._outputs.table, self.workspace.ctypes.data, count)
        return results


class _OperandTable:
    """The table of addresses of operands with these roles; the loop changes those of states."""

    def __init__(self, roles: Sequence[Role]) -> None:
        self._roles = roles
        self._values = np.zeros(len(roles), np.uint64)
        self.table = self._values.ctypes.data

    def set(self, role: Role, arrays: Sequence[Array]) -> None:
        """All operands of a role, in order."""
        places = [number for number, each in enumerate(self._roles) if each is role]
        for place, array in zip(places, arrays, strict=True):
            self._values[place] = array.ctypes.data
