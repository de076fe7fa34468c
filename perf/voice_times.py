"""A voice's sampler measured: the whole of it in every dtype, and what each part of a sample costs.

Parts are stamped inside the running function (`lowering.probes.StampProbe`), so that they share
caches as they do when it speaks; what a stamp costs is taken off.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.lowering.probes import SLOT_BYTES, StampProbe
from sparsejit.lowering.step import Step
from sparsejit.machine.target import Target
from sparsejit.perf.peers import single_threaded
from sparsejit.perf.synthesis import sample_us, torch_us
from sparsejit.planner.calibration import calibrated
from sparsejit.runtime.native_timing import pinned
from sparsejit.voice.conditioning import Conditioning
from sparsejit.voice.sample_graph import sample_graph
from sparsejit.voice.sample_loop import SampleLoop, compile_sample_loop
from sparsejit.voice.sampler import Sampler
from sparsejit.voice.wavernn import WaveRNN
from sparsejit.voice.weights import VoiceWeights

DTYPES = ("float32", "bfloat16", "int8")
ROUNDS = 9
_FRAMES = 40  # a round of a voice: 8800 samples

# What the kernels of a sample belong to; products have a plan, all others are the signal's.
_PARTS = {
    "sum-of-rows": "input rows",
    "gru-step": "gates",
    "uniform": "draw",
    "draw": "draw",
}


@dataclass(frozen=True)
class SamplePart:
    """Nanoseconds of a part in every sample, and what the planner expected of its products."""

    name: str
    ns: float
    predicted_ns: float | None
    share: float


@dataclass(frozen=True)
class VoiceTime:
    """Microseconds a sample on one core, over rounds interleaved with all others.

    `weight_bytes` are those that each sample reads; `us_torch` is the eager step of the dense
    network in the same run (`synthesis.torch_us`).
    """

    dtype: str
    us_min: float
    us_median: float
    us_torch: float
    sample_rate: int
    weight_bytes: int
    parts: tuple[SamplePart, ...]

    @property
    def real_time_factor(self) -> float:
        """Seconds of speech per second of computing, at the median."""
        return 1e6 / (self.sample_rate * self.us_median)

    @property
    def speed_up(self) -> float:
        """How many times faster than torch eager, at the medians."""
        return self.us_torch / self.us_median

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            **asdict(self),
            "real_time_factor": self.real_time_factor,
            "speed_up": self.speed_up,
        }


def time_voice(
    weights: VoiceWeights,
    mel: npt.NDArray[np.float32],
    dtypes: Sequence[str] = DTYPES,
    progress: Callable[[str], None] = lambda step: None,
) -> list[VoiceTime]:
    """Time a voice in each dtype, round after round in turn, on one pinned core.

    mel: log10 power (80, frames), of which the first 40 frames are spoken.
    """
    conditioning = weights.conditioning(mel[:, :_FRAMES])
    voices = {dtype: WaveRNN(weights, dtype=dtype) for dtype in dtypes}
    times: dict[str, list[float]] = {dtype: [] for dtype in dtypes}
    with pinned(), single_threaded():
        for number in range(ROUNDS + 1):
            progress(f"round {number} of {ROUNDS}")
            for dtype, voice in voices.items():
                us = sample_us(Sampler(voice.loop, number), conditioning)
                times[dtype] += [us] if number else []  # the first round warms up
        progress("torch")
        eager = torch_us(weights)
        parts = {dtype: _parts(weights, dtype, conditioning) for dtype in dtypes}
    return [
        VoiceTime(
            dtype,
            min(times[dtype]),
            float(np.median(times[dtype])),
            eager,
            voice.sample_rate,
            _weight_bytes(voice.loop.steps),
            parts[dtype],
        )
        for dtype, voice in voices.items()
    ]


def _weight_bytes(steps: Sequence[Step]) -> int:
    return sum(step.facts.weight_bytes for step in steps)


def _parts(
    weights: VoiceWeights, dtype: str, conditioning: Conditioning
) -> tuple[SamplePart, ...]:
    """Each step in the round in which it took least."""
    target = calibrated(Target.detect())
    loop = compile_sample_loop(sample_graph(weights), target, dtype, StampProbe)
    rounds = [_stamped_ns(Sampler(loop, seed), loop, conditioning) for seed in range(ROUNDS)]
    stamp, *least = np.min(rounds, axis=0).tolist()
    return sample_parts(loop.steps, [max(ns - stamp, 0.0) for ns in least])


def _stamped_ns(sampler: Sampler, loop: SampleLoop, conditioning: Conditioning) -> list[float]:
    """Nanoseconds a sample of a stamp behind a stamp, and of every step and its stamp, in order."""
    slots = slice(loop.probe_offset, loop.probe_offset + SLOT_BYTES * (len(loop.steps) + 2))
    ticks = sampler.workspace[slots].view(np.int64)
    ticks[:] = 0
    us = sample_us(sampler, conditioning)
    _, *stamped = ticks.tolist()
    # All stamps' ticks together are the time of all samples.
    return [1e3 * us * each / max(sum(stamped), 1) for each in stamped]


def sample_parts(steps: Sequence[Step], ns: Sequence[float]) -> tuple[SamplePart, ...]:
    """Steps of `ns` each as parts: a product is one, under its layer's name."""
    found: dict[str, float] = {}
    predicted: dict[str, float] = {}
    for step, taken in zip(steps, ns, strict=True):
        is_product = step.facts.plan is not None
        name = step.origin.name if is_product else _PARTS.get(step.kernel, "signal")
        found[name] = found.get(name, 0.0) + taken
        if is_product and step.facts.predicted_ns is not None:
            predicted[name] = step.facts.predicted_ns
    return _as_parts(found, predicted)


def _as_parts(
    found: Mapping[str, float], predicted: Mapping[str, float]
) -> tuple[SamplePart, ...]:
    total = sum(found.values())
    return tuple(
        SamplePart(name, ns, predicted.get(name), ns / total if total else 0.0)
        for name, ns in found.items()
    )
