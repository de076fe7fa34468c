"""Runs a compiled voice: frames in, samples out, state kept between calls."""

import numpy as np
import numpy.typing as npt

from sparsejit.asm_templates.pointwise.signal import PREDICTION_WINDOW
from sparsejit.errors import InvalidInput
from sparsejit.voice.conditioning import Conditioning
from sparsejit.voice.features import HOP_LENGTH, FloatArray
from sparsejit.voice.prediction import ORDER
from sparsejit.voice.sample_loop import ARGUMENTS, SampleLoop, padded


class Sampler:
    """One utterance in progress: its own state, the shared native code.

    Chunks of any number of frames give the samples that one call with all frames would give.
    `classes` of the last call, int32, are kept for inspection. Not for two threads at once; make
    one Sampler per thread.
    """

    def __init__(self, loop: SampleLoop, seed: int) -> None:
        if not 0 <= seed < 2**64:
            raise InvalidInput(f"seed {seed} is not a 64-bit number; give 0 to 2**64 - 1")
        self.seed = seed
        self.samples_drawn = 0
        self.classes: npt.NDArray[np.int32] = np.empty(0, np.int32)
        self._loop = loop
        self._native = loop.program.memory.function(1)
        self._workspace = loop.new_workspace()

    def generate(self, conditioning: Conditioning) -> FloatArray:
        """The next 220 * frames samples, float32."""
        frames = conditioning.frames
        samples = np.empty(frames * HOP_LENGTH, np.float32)
        self.classes = np.empty(frames * HOP_LENGTH, np.int32)
        if frames == 0:
            return samples
        arrays = _frame_arrays(conditioning)
        arguments = np.zeros(1, ARGUMENTS)
        for name, array in arrays.items():
            arguments[name] = array.ctypes.data
        arguments["workspace"] = self._workspace.ctypes.data
        arguments["samples"] = samples.ctypes.data
        arguments["classes"] = self.classes.ctypes.data
        arguments["frames"] = frames
        arguments["seed"] = self.seed
        arguments["counter"] = self.samples_drawn
        self._native(arguments.ctypes.data)
        self.samples_drawn += len(samples)
        return samples


def _frame_arrays(conditioning: Conditioning) -> dict[str, FloatArray]:
    """Conditioning in the layout of ARGUMENTS."""
    frames, gates = conditioning.gate_terms.shape
    gate_terms = np.zeros((frames, padded(gates)), np.float32)
    gate_terms[:, :gates] = conditioning.gate_terms
    predictors = np.zeros((frames, PREDICTION_WINDOW), np.float32)
    predictors[:, PREDICTION_WINDOW - ORDER :] = conditioning.predictors[:, ::-1]
    scales = np.stack([conditioning.residual_scales, conditioning.input_scales], axis=1)
    return {
        "gate_terms": gate_terms,
        "dense_biases": np.ascontiguousarray(conditioning.dense_biases, np.float32),
        "predictors": predictors,
        "scales": np.ascontiguousarray(scales, np.float32),
    }
