"""Speech synthesis measured: the compiled sampler and its layers, beside torch run eagerly."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sparsejit.perf.peers import single_threaded
from sparsejit.perf.problems import GivenMatrix
from sparsejit.perf.voice_steps import VoiceStep
from sparsejit.runtime import native_timing
from sparsejit.runtime.native_timing import pinned
from sparsejit.voice.loop_arrays import FrameInputs
from sparsejit.voice.sampler import Sampler
from sparsejit.voice.wavernn import WaveRNN
from sparsejit.voice.weights import VoiceWeights

FloatArray = npt.NDArray[np.float32]
_TORCH_SAMPLES = 500
_WARM_UP_SAMPLES = 50


@dataclass(frozen=True)
class SynthesisTime:
    """Microseconds a sample on one core, of the compiled sampler and of torch eager.

    `us_min` and `us_median` are over repeats of the whole utterance; `us_torch` is the median
    over samples of the dense network's step alone, without the signal processing around it.
    """

    sample_rate: int
    us_min: float
    us_median: float
    us_torch: float

    @property
    def real_time_factor(self) -> float:
        """Seconds of speech per second of computing, at the median."""
        return 1e6 / (self.sample_rate * self.us_median)

    @property
    def speed_up(self) -> float:
        """How many times faster than torch eager, at the medians."""
        return self.us_torch / self.us_median


def time_synthesis(
    voices: Sequence[WaveRNN], mel: FloatArray, repeats: int = 5
) -> list[SynthesisTime]:
    """Time the whole utterance in each form of one voice, `repeats` times in turn, on one pinned
    core, then torch eager there.
    """
    conditioning = voices[0].weights.conditioning(mel)
    with pinned(), single_threaded():
        rounds = [
            [sample_us(Sampler(voice.loop, seed), conditioning) for voice in voices]
            for seed in range(repeats + 1)
        ]
        us_torch = torch_us(voices[0].weights)
    rate = voices[0].sample_rate
    measured = zip(*rounds[1:], strict=True)  # the first round warms up
    return [SynthesisTime(rate, min(us), float(np.median(us)), us_torch) for us in measured]


def sample_us(sampler: Sampler, conditioning: FrameInputs) -> float:
    """Microseconds a sample of the frames that come next."""
    started = native_timing.clock()
    samples = sampler.generate(conditioning)
    return (native_timing.clock() - started) / 1e3 / len(samples)


def layer_matrices(weights: VoiceWeights) -> list[GivenMatrix]:
    """The matrices of the per-sample network, as problems for `perf.kernels.run`."""
    return [
        GivenMatrix("recurrent", weights.recurrent),
        GivenMatrix("dense", weights.dense),
        GivenMatrix("output", weights.output),
    ]


def torch_us(weights: VoiceWeights) -> float:
    """Median microseconds of one eager step of the dense network."""
    step = VoiceStep(weights)
    index, uniform, state = step.examples
    times = []
    with torch.inference_mode():
        for _ in range(_WARM_UP_SAMPLES + _TORCH_SAMPLES):
            started = native_timing.clock()
            index, state, _ = step(index, uniform, state)
            times.append((native_timing.clock() - started) / 1e3)
    return float(np.median(times[_WARM_UP_SAMPLES:]))
