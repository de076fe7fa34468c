"""Score of a network on given audio, and the choice of short dtypes by it.

    ForcedNetwork   teacher-forced negative log-likelihood
    choose_dtypes   dtypes for the layers of another project's network
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.machine.target import Target
from sparsejit.planner.calibration import calibrated
from sparsejit.voice.spec.network_graph import FrameTerms, forced_graph
from sparsejit.voice.spec.sample_loop import LoopArrays, Sampler, compile_sample_loop
from sparsejit.voice.spec.trained import TrainedNetwork
from sparsejit.voice.spec.voice_spec import Categorical, DualSoftmax

_FRAMES_AT_ONCE = 64


class ForcedNetwork:
    """A voice's network compiled to score given audio.

    Raises:
        InvalidInput: an output that is neither categorical nor a dual softmax
    """

    def __init__(
        self, voice: TrainedNetwork, target: Target, dtypes: str | Mapping[str, str] = "float32"
    ) -> None:
        if not isinstance(voice.spec.output, Categorical | DualSoftmax):
            kind = type(voice.spec.output).__name__
            raise InvalidInput(f"{kind} is not scored; give a network of one or two softmaxes")
        self._voice = voice
        graph = forced_graph(voice.spec, voice.tensors)
        self._terms = FrameTerms(graph)
        self._loop = compile_sample_loop(graph.sample, target, dtypes)

    def nats(self, mel: npt.ArrayLike, classes: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """-log p(class), (samples,), of mel (bands, F) and hop_length * F classes, from silence.

        Raises:
            InvalidInput: another number of classes, and as `TrainedNetwork.checked_mel`
        """
        features, frames = self._voice.frame_features(mel)
        given = np.asarray(classes, np.int64)
        if given.shape != (frames * self._voice.hop_length,):
            wanted = frames * self._voice.hop_length
            raise InvalidInput(f"classes have shape {given.shape}; give ({wanted},) for this mel")
        arrays = self._terms(features, frames)
        output = self._voice.spec.output
        choices: tuple[npt.NDArray[np.int64], ...] = (given,)
        if isinstance(output, DualSoftmax):
            choices = np.divmod(given, output.half_classes)
        inputs = LoopArrays(frames, arrays.of_frames, (*arrays.of_samples, *choices))
        sampler, nats = Sampler(self._loop, seed=0), np.zeros((frames, self._voice.hop_length))
        for first in range(0, frames, _FRAMES_AT_ONCE):
            piece = inputs.part(first, min(first + _FRAMES_AT_ONCE, frames))
            chosen = piece.of_samples[-len(choices) :]
            for logits, each in zip(sampler.run(piece), chosen, strict=True):
                wide = logits.astype(np.float64) / self._voice.temperature
                nats[first : first + piece.frames] += _nats(wide, each).reshape(piece.frames, -1)
        return nats.reshape(-1)


def _nats(
    logits: npt.NDArray[np.float64], classes: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    wide = logits - logits.max(axis=1, keepdims=True)
    chosen = np.take_along_axis(wide, classes[:, None], axis=1)[:, 0]
    return np.log(np.exp(wide).sum(axis=1)) - chosen


SHORT_DTYPES = ("int8", "bfloat16")
# Least gain as a share of a layer's time: less is within the error of a prediction.
_LEAST_GAIN = 0.05


def choose_dtypes(
    voice: TrainedNetwork,
    mel: npt.ArrayLike,
    most_nats: float = 0.02,
    target: str | Target = "native",
    seed: int = 0,
) -> dict[str, str]:
    """Choose dtypes by layer that raise the nats a sample by `most_nats` in all, or less.

    The network speaks a mel in float32 and is then scored on this audio, with its layers shortened
    one after the other in the order of predicted savings, each to the fastest dtype with which the
    loss stays within `most_nats`. Layers that are not named stay float32. A second of speech takes
    seconds.

    Args:
        voice: a network, such as `WaveRNN.source`
        mel: (bands, frames)
        most_nats: nats a sample that may be lost
        target: "native", a level or a `Target`
        seed: seed of the speech

    Raises:
        InvalidInput: `most_nats` is negative, and as `ForcedNetwork` and its `nats` do
    """
    if not most_nats >= 0:
        raise InvalidInput(f"most_nats={most_nats!r}; give the nats that may be lost, such as 0.02")
    machine = calibrated(Target.resolve(target))
    trial = _Trial(voice, machine, mel, seed)
    chosen: dict[str, str] = {}
    for layer, dtype in _by_gain(voice, machine):
        if layer not in chosen and trial.cost({**chosen, layer: dtype}) <= most_nats:
            chosen[layer] = dtype
    return chosen


class _Trial:
    """Audio that the float32 network drew, and the network's score on it with shorter dtypes."""

    def __init__(
        self, voice: TrainedNetwork, target: Target, mel: npt.ArrayLike, seed: int
    ) -> None:
        self._voice, self._target, self._mel = voice, target, mel
        sampler = Sampler(compile_sample_loop(voice.graph.sample, target), seed)
        sampler.generate(voice.conditioning(mel))
        self._classes = sampler.classes
        self._float32 = self._nats({})

    def cost(self, dtypes: Mapping[str, str]) -> float:
        """Nats a sample above the float32 network's."""
        return self._nats(dtypes) - self._float32

    def _nats(self, dtypes: Mapping[str, str]) -> float:
        network = ForcedNetwork(self._voice, self._target, dtypes)
        return float(np.mean(network.nats(self._mel, self._classes)))


def _by_gain(voice: TrainedNetwork, target: Target) -> list[tuple[str, str]]:
    """Pairs of a layer and a short dtype that are predicted to save time, the most saving first."""
    times = {
        dtype: {
            name: plan.chosen.cost.ns
            for name, plan in compile_sample_loop(voice.graph.sample, target, dtype).plans.items()
        }
        for dtype in ("float32", *SHORT_DTYPES)
    }
    gains = {
        (name, dtype): ns - times[dtype][name]
        for name, ns in times["float32"].items()
        for dtype in SHORT_DTYPES
        if times[dtype][name] < (1 - _LEAST_GAIN) * ns
    }
    return sorted(gains, key=lambda pair: gains[pair], reverse=True)
