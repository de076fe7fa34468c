"""What the sampler needs of each frame, computed from the mel.

A frame's values must not depend on how many frames are computed at once, or speech would change
with the cut of the stream. A matrix product does: a BLAS sums one row in another order than many.
So the factors of every product here are rounded to grids on which float64 sums are exact, and
then no order, no fused multiply-add and no BLAS changes a bit.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.frontends.arrays import to_array
from sparsejit.ir.ops.sampling import PREDICTION_WINDOW
from sparsejit.runtime.call_arrays import aligned_copy
from sparsejit.voice.features import MEL_RANGE, N_MELS, POWER_FLOOR, FloatArray
from sparsejit.voice.loop_arrays import LoopArrays
from sparsejit.voice.prediction import ORDER, RESIDUAL_SCALE, SIGNAL_SCALE, predictor_from_mel

CONTEXT_FRAMES = 2
# A float64 holds every whole number to 2**53: inputs of 23 bits times a row of weights of 29, and
# one bit for what rounding adds to the weights.
_INPUT_BITS = 23
_WEIGHT_BITS = 29

DoubleArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Conditioning:
    """What a sampler needs of each frame; all float32 and C-contiguous.

    gate_terms (F, 3H), order r-z-n: added to the input half of the gates. They include
    bias_ih, and bias_hh for r and z.
    dense_biases (F, 256): the bias of the first dense layer.
    predictors (F, 20): p = sum_k predictors[f, k] * s[t - 1 - k].
    residual_scales (F,): 16 g, so that e = DECODED[class] * residual_scales[f].
    input_scales (F,): 1 / (64 g), for the inputs quantise(s[t-1] * input_scales[f]) and
    quantise(p * input_scales[f]).
    """

    gate_terms: FloatArray
    dense_biases: FloatArray
    predictors: FloatArray
    residual_scales: FloatArray
    input_scales: FloatArray

    @property
    def frames(self) -> int:
        return len(self.gate_terms)

    def loop_arrays(self) -> LoopArrays:
        """In the order of `sample_graph`'s inputs."""
        predictors = np.zeros((self.frames, PREDICTION_WINDOW), np.float32)
        predictors[:, PREDICTION_WINDOW - ORDER :] = self.predictors[:, ::-1]
        scales = self.residual_scales, self.input_scales
        arrays = (self.gate_terms, self.dense_biases, predictors, *scales)
        return LoopArrays(self.frames, [aligned_copy(np.asarray(a, np.float32)) for a in arrays])


class ExactLinear:
    """W x + b for rows of x in float64: the same bits, whatever sums the product.

    W (M, N) and x are rounded to whole multiples of units, powers of two that leave every partial
    sum below 2**53 times their product: 2**-23 of `largest`, the greatest |x| that may come, and
    2**-29 of the greatest sum of |W| over a row. That is as precise as float32.
    """

    def __init__(self, weight: npt.ArrayLike, bias: npt.ArrayLike, largest: float = 1.0) -> None:
        wide = np.asarray(weight, np.float64)
        weight_unit = _power_from(np.abs(wide).sum(axis=1).max()) * 2.0**-_WEIGHT_BITS
        self.input_unit = _power_from(largest) * 2.0**-_INPUT_BITS
        self.output_unit = weight_unit * self.input_unit
        self.weight = np.ascontiguousarray(np.rint(wide / weight_unit).T)
        self.bias = np.asarray(bias, np.float64)

    def __call__(self, x: DoubleArray) -> DoubleArray:
        """x (F, N), no element above `largest` in size; returns (F, M)."""
        whole = np.rint(x / self.input_unit) @ self.weight
        return whole * self.output_unit + self.bias


def _power_from(value: float) -> float:
    """The least power of two that is not below `value` > 0; 1 for 0."""
    mantissa, exponent = math.frexp(value)
    return 2.0 ** (exponent - (mantissa == 0.5))


class FrameNetwork:
    """The layers of a voice that run once a frame: log10 mel in, `Conditioning` out."""

    def __init__(self, tensors: Mapping[str, FloatArray]) -> None:
        self._mean = tensors["mel_mean"].astype(float)
        self._scale = tensors["mel_scale"].astype(float)
        limits = np.array(MEL_RANGE)[:, None]
        largest = float(np.abs((limits - self._mean) * self._scale).max())
        self._convolutions = [
            ExactLinear(taps_in_a_row(tensors["conv1.weight"]), tensors["conv1.bias"], largest),
            ExactLinear(taps_in_a_row(tensors["conv2.weight"]), tensors["conv2.bias"]),
        ]
        gate_bias = tensors["rnn.bias_hh_l0"].astype(float)
        gate_bias[len(gate_bias) // 3 * 2 :] = 0  # that of n lies within the product with r
        gate_bias += tensors["rnn.bias_ih_l0"]
        self._gates = ExactLinear(tensors["condition_gates.weight"], gate_bias)
        self._dense = ExactLinear(tensors["condition_dense.weight"], tensors["fc1.bias"])

    def __call__(self, mel: npt.ArrayLike, context: bool = False) -> Conditioning:
        """Return the arrays of each frame of log10 mel (80, F).

        With `context`, mel is (80, F + 4): two more frames on either side. Otherwise the first
        and last frame are repeated.

        Raises InvalidInput as `checked_mel` does, and where there is no frame.
        """
        around = 0 if context else CONTEXT_FRAMES
        frames = checked_mel(mel, 2 * CONTEXT_FRAMES + 1 if context else 1)
        frames = np.pad(frames, ((0, 0), (around, around)), "edge")
        summary = (frames.T - self._mean) * self._scale
        for layer in self._convolutions:
            taps = [summary[k : len(summary) - 2 + k] for k in range(3)]
            summary = np.tanh(layer(np.concatenate(taps, axis=1)))
        predictors, gains = predictor_from_mel(frames[:, CONTEXT_FRAMES:-CONTEXT_FRAMES])
        return Conditioning(
            self._gates(summary).astype(np.float32),
            self._dense(summary).astype(np.float32),
            predictors,
            np.float32(RESIDUAL_SCALE) * gains,
            np.reciprocal(np.float32(SIGNAL_SCALE) * gains),
        )


def taps_in_a_row(weight: FloatArray) -> FloatArray:
    """A convolution's weight (out, in, width) as the matrix (out, width * in) of frames joined."""
    return weight.transpose(0, 2, 1).reshape(len(weight), -1)


def checked_mel(mel: npt.ArrayLike, least_frames: int = 0) -> FloatArray:
    """Return `mel` as float32 (80, frames).

    Raises InvalidInput for another shape, for values that are not finite, and for a mel on another
    scale than log10 power: decibels, natural logarithms, power itself.
    """
    values = np.asarray(to_array(mel, "the mel"), np.float32)
    if values.ndim != 2 or values.shape[0] != N_MELS or values.shape[1] < least_frames:
        atleast = f" with {least_frames} or more frames" if least_frames else ""
        raise InvalidInput(f"the mel has shape {values.shape}; give ({N_MELS}, frames){atleast}")
    if not np.isfinite(values).all():
        raise InvalidInput("the mel contains NaN or infinity; give finite log10 power")
    if values.size:
        _check_scale(values)
    return values


def _check_scale(mel: FloatArray) -> None:
    """Refuse what cannot be log10 power of audio in [-1, 1]."""
    low, high = float(mel.min()), float(mel.max())
    found = f"the mel runs from {low:.4g} to {high:.4g}"
    wanted = "WaveRNN.features gives log10 power, from -9 to 2 for audio in [-1, 1]"
    # Not even white noise at full scale reaches power 1 in every band of a frame.
    if float(mel.min(axis=0).max()) >= 0:
        remedy = f"of power, take np.log10(np.maximum(mel, {POWER_FLOOR:g}))"
        raise InvalidInput(f"{found}, with a frame of no value below 0; {wanted}: {remedy}")
    if low < MEL_RANGE[0] or high > MEL_RANGE[1]:
        remedy = "divide decibels by 10, natural logarithms by 2.3026, and scale the audio first"
        raise InvalidInput(f"{found}; {wanted}: {remedy}")
