"""Speech synthesis measured: the compiled sampler and its layers, beside torch run eagerly."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from sparsejit.perf.peers.peers import single_threaded
from sparsejit.perf.problems import GivenMatrix
from sparsejit.perf.timing import RoundsInTurn
from sparsejit.perf.voice.voice_networks import FRAMES, trained_network
from sparsejit.perf.voice.voice_peers import step_of
from sparsejit.runtime import native_timing
from sparsejit.runtime.native_timing import pinned
from sparsejit.voice.speak.wavernn import WaveRNN
from sparsejit.voice.spec.sample_loop import LoopArrays, Sampler
from sparsejit.voice.spec.trained import TrainedNetwork

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
        """Speed-up over torch eager, at the medians."""
        return self.us_torch / self.us_median


def time_synthesis(
    voices: Sequence[WaveRNN], mel: FloatArray, repeats: int = 5
) -> list[SynthesisTime]:
    """Time the forms of one voice, then torch eager, on one pinned core.

    Each form speaks the whole utterance `repeats` times, in turns.
    """
    network = voices[0].source
    conditioning = network.conditioning(mel)
    with pinned(), single_threaded():
        turns = RoundsInTurn({one: partial(_voice_us, one, conditioning) for one in voices})
        turns.round(repeats)
        turns.forget()
        turns.run(repeats)
        us_torch = torch_us(network, mel)
    rate, least, medians = voices[0].sample_rate, turns.least(), turns.medians()
    return [SynthesisTime(rate, least[one], medians[one], us_torch) for one in voices]


def _voice_us(voice: WaveRNN, conditioning: LoopArrays, seed: int) -> float:
    return sample_us(Sampler(voice.loop, seed), conditioning)


def sample_us(sampler: Sampler, conditioning: LoopArrays) -> float:
    """Generate the next frames and return microseconds a sample."""
    started = native_timing.clock()
    samples = sampler.generate(conditioning)
    return (native_timing.clock() - started) / 1e3 / len(samples)


def layer_matrices(network: TrainedNetwork) -> list[GivenMatrix]:
    """The matrices of the bundled voice's network, as problems for `perf.kernels.run`."""
    names = {"recurrent": "weight_hh", "dense": "weight", "output": "weight"}
    return [GivenMatrix(name, network.tensors[f"{name}.{part}"]) for name, part in names.items()]


def torch_us(network: TrainedNetwork, mel: FloatArray) -> float:
    """Median microseconds of one eager step of the dense network."""
    step = step_of(trained_network("torch", network, mel[:, :FRAMES]))
    inputs = list(step.examples)
    times = []
    with torch.inference_mode():
        for _ in range(_WARM_UP_SAMPLES + _TORCH_SAMPLES):
            started = native_timing.clock()
            results = step(*inputs)
            times.append((native_timing.clock() - started) / 1e3)
            for given, taken in step.feedback:
                inputs[taken] = results[given]
    return float(np.median(times[_WARM_UP_SAMPLES:]))
