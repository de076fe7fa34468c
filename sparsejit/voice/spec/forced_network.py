"""Score of a network on given audio: teacher-forced negative log-likelihood."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from sparsejit.errors import InvalidInput
from sparsejit.machine.target import Target
from sparsejit.voice.spec.network_graph import FrameTerms, forced_graph
from sparsejit.voice.spec.sample_loop import LoopArrays, compile_sample_loop
from sparsejit.voice.spec.sampler import Sampler
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
