"""Runs a compiled voice: frames in, samples out, state kept between calls."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Array
from sparsejit.ir.ops.sampling import PREDICTION_WINDOW
from sparsejit.lowering.loop import Role
from sparsejit.runtime.call_arrays import new_workspace
from sparsejit.voice.conditioning import Conditioning
from sparsejit.voice.features import FloatArray
from sparsejit.voice.prediction import ORDER
from sparsejit.voice.sample_loop import SampleLoop


class Sampler:
    """One utterance in progress: its own state, the shared native code.

    Chunks of any number of frames give the samples that one call with all frames would give.
    `classes` of the last call, int64, and the bytes of `workspace` are kept for inspection. Not for
    two threads at once; make one Sampler per thread.
    """

    def __init__(self, loop: SampleLoop, seed: int) -> None:
        if not 0 <= seed < 2**64:
            raise InvalidInput(f"seed {seed} is not a 64-bit number; give 0 to 2**64 - 1")
        self.classes: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._loop = loop.loop
        self._native = loop.program.memory.function(4)
        self.workspace = new_workspace(loop.workspace_bytes)
        self._seed = np.array(seed, np.uint64)
        self._inputs = _OperandTable(self._loop.inputs)
        self._outputs = _OperandTable(self._loop.outputs)
        self._states = loop.new_states()
        self._inputs.set(Role.CALL, [self._seed])
        for addresses, states in zip((self._inputs, self._outputs), self._states, strict=True):
            addresses.set(Role.STATE, states)

    def generate(self, conditioning: Conditioning) -> FloatArray:
        """The next 220 * frames samples, float32."""
        count = conditioning.frames * self._loop.hop
        samples, self.classes = np.empty(count, np.float32), np.empty(count, np.int64)
        frames = _frame_arrays(conditioning)
        self._inputs.set(Role.FRAME, frames)
        self._outputs.set(Role.SAMPLE, [samples, self.classes])
        self._native(self._inputs.table, self._outputs.table, self.workspace.ctypes.data, count)
        return samples


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


def _frame_arrays(conditioning: Conditioning) -> list[FloatArray]:
    """Conditioning in the order of `sample_graph`'s inputs, a row a frame."""
    predictors = np.zeros((conditioning.frames, PREDICTION_WINDOW), np.float32)
    predictors[:, PREDICTION_WINDOW - ORDER :] = conditioning.predictors[:, ::-1]
    arrays = (
        conditioning.gate_terms,
        conditioning.dense_biases,
        predictors,
        conditioning.residual_scales,
        conditioning.input_scales,
    )
    return [np.ascontiguousarray(array, np.float32) for array in arrays]
