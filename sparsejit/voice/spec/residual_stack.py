"""The conditioning of fatchord's WaveRNN: a residual stack of convolutions, and smoothed repeats.

Source: github.com/fatchord/WaveRNN, models/fatchord_version.py (MIT licence), `UpsampleNetwork`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.voice.features import FloatArray
from sparsejit.voice.spec.known_parts import DoubleArray
from sparsejit.voice.spec.network_graph import RowwiseLinear

BATCH_NORM_EPSILON = 1e-5


@dataclass(frozen=True, eq=False)
class BatchNorm:
    """(x - mean) / sqrt(variance + 1e-5) * weight + bias, each (n,)."""

    weight: FloatArray
    bias: FloatArray
    mean: FloatArray
    variance: FloatArray

    def folded(self, weight: FloatArray, bias: FloatArray | float = 0.0) -> RowwiseLinear:
        """The product with weight (n, m) and bias (n,) followed by this norm, as one product."""
        variance = self.variance.astype(np.float64) + BATCH_NORM_EPSILON
        scale = self.weight / np.sqrt(variance)
        return RowwiseLinear(weight * scale[:, None], self.bias + (bias - self.mean) * scale)


@dataclass(frozen=True, eq=False)
class ResidualBlock:
    """x + second(relu(first(x)))."""

    first: RowwiseLinear
    second: RowwiseLinear

    def __call__(self, x: DoubleArray) -> DoubleArray:
        return x + self.second(np.maximum(self.first(x), 0))


@dataclass(frozen=True, eq=False)
class ResidualStack:
    """Features of each frame from the mel of `width` frames around it."""

    width: int
    entry: RowwiseLinear
    blocks: Sequence[ResidualBlock]
    exit: RowwiseLinear

    def __call__(self, mel: DoubleArray) -> DoubleArray:
        """mel (frames + width - 1, bands); returns (frames, features)."""
        frames = len(mel) - self.width + 1
        around = [mel[k : k + frames] for k in range(self.width)]
        x = np.maximum(self.entry(np.concatenate(around, axis=1)), 0)
        for block in self.blocks:
            x = block(x)
        return self.exit(x)


def interpolation_kernel(kernels: Sequence[FloatArray], taps: int) -> FloatArray:
    """Combine repeating by (len(k) - 1) / 2 and smoothing with k, for each k in turn, into one.

    Returns float32 (hop, taps): the weights of the frames around each sample of a frame. Raises
    InvalidInput where samples depend on more frames.
    """
    frames = 3 * taps
    impulse = np.zeros(frames)
    impulse[frames // 2] = 1
    hop = 1
    for kernel in kernels:
        scale = (len(kernel) - 1) // 2
        # torch's convolution does not reverse the kernel; numpy's does.
        impulse = np.convolve(np.repeat(impulse, scale), kernel[::-1].astype(np.float64), "same")
        hop *= scale
    # Frame f's weight in a sample of the middle frame is the middle's weight in f's mirror frame.
    rows = impulse.reshape(frames, hop)[::-1]
    first = frames // 2 - taps // 2
    if rows[:first].any() or rows[first + taps :].any():
        scales = [(len(kernel) - 1) // 2 for kernel in kernels]
        raise InvalidInput(
            f"upsampling by {scales} with smoothing reads more than the {taps} frames that the "
            "residual stack reads; describe the network by a VoiceSpec"
        )
    return rows[first : first + taps].T.astype(np.float32)
