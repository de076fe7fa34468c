"""The voice as users see it: mel in, speech out."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from sparsejit.errors import InvalidInput
from sparsejit.frontends.arrays import to_array
from sparsejit.machine.target import Target
from sparsejit.planner.calibration import calibrated
from sparsejit.voice import features
from sparsejit.voice.bundled import VOICE
from sparsejit.voice.conditioning import CONTEXT_FRAMES, checked_mel
from sparsejit.voice.features import FloatArray
from sparsejit.voice.sample_graph import sample_graph
from sparsejit.voice.sample_loop import SampleLoop, compile_sample_loop
from sparsejit.voice.sampler import Sampler
from sparsejit.voice.summary import LayerSummary, VoiceSummary
from sparsejit.voice.weights import VoiceWeights

# Of a stream: more gain no speed, and nothing interrupts what is being spoken.
_MOST_FRAMES_AT_ONCE = 64


class WaveRNN:
    """A pruned voice compiled into one native function. Thread-safe.

    dtype: how the matrices of the network are stored, float32, bfloat16, float16 or int8; or a dict
        from names of `layers` to that. With int8 inputs of products are quantised too, the state in
        steps of 1/127, and sums are exact.

    >>> voice = WaveRNN.from_pretrained()
    >>> audio = voice.generate(voice.features(recording, rate), seed=0)
    """

    sample_rate = features.SAMPLE_RATE
    hop_length = features.HOP_LENGTH
    n_mels = features.N_MELS

    def __init__(
        self,
        weights: VoiceWeights,
        target: str | Target = "native",
        dtype: str | Mapping[str, str] = "float32",
    ) -> None:
        self.weights = weights
        self.loop: SampleLoop = compile_sample_loop(
            sample_graph(weights), calibrated(Target.resolve(target)), dtype
        )
        # What is made or faulted in at first use, here, or a first stream would wait for it.
        self.generate(np.full((self.n_mels, 1), np.log10(features.POWER_FLOOR)))

    def __repr__(self) -> str:
        return f"<{self._summary().title}>"

    def __str__(self) -> str:
        return str(self._summary())

    def __rich__(self) -> Table:
        return self._summary().table()

    def _repr_html_(self) -> str:
        return self._summary().html()

    @property
    def layers(self) -> tuple[LayerSummary, ...]:
        """The matrices of the network that runs once a sample, with the kernels chosen for them."""
        weights = self.weights
        matrices = {
            "recurrent": weights.recurrent,
            "dense": weights.dense,
            "output": weights.output,
        }
        return tuple(
            LayerSummary(
                name,
                matrix.shape[0],
                matrix.shape[1],
                int(np.count_nonzero(matrix)),
                self.loop.plans[name].chosen.template.name,
                self.loop.plans[name].chosen.cost.ns,
            )
            for name, matrix in matrices.items()
        )

    def _summary(self) -> VoiceSummary:
        layers = self.layers
        density = sum(layer.nnz for layer in layers) / sum(la.rows * la.columns for la in layers)
        title = (
            f"WaveRNN, {self.weights.hidden_size} units, {density:.1%} of weights left, "
            f"temperature {self.weights.temperature:g}, {self.sample_rate:,} Hz"
        )
        return VoiceSummary(title, layers)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path = VOICE,
        temperature: float | None = None,
        dtype: str | Mapping[str, str] = "float32",
    ) -> "WaveRNN":
        """The bundled voice, or the one in a file that `sparsejit train` wrote.

        temperature: in place of the voice's own; classes are drawn from
            softmax(logits / temperature).

        Raises InvalidInput where there is no such file or temperature, DamagedFile where it is not
        a voice.
        """
        weights = VoiceWeights.load(path)
        if temperature is not None:
            weights = replace(weights, temperature=temperature)
        return cls(weights, dtype=dtype)

    @classmethod
    def from_torch(
        cls, module: Any, temperature: float = 1.0, dtype: str | Mapping[str, str] = "float32"
    ) -> "WaveRNN":
        """Compile a `sparsejit.voice.module.WaveRNNModule`, pruned or not.

        Classes are drawn from softmax(logits / temperature). Raises InvalidInput for another
        module.
        """
        if type(module).__name__ != "WaveRNNModule":
            raise InvalidInput(
                f"{type(module).__name__} is not a voice; "
                "give a sparsejit.voice.module.WaveRNNModule"
            )
        return cls(module.weights(temperature), dtype=dtype)

    def features(self, audio: npt.ArrayLike, rate: int) -> FloatArray:
        """Log-mel (80, frames) of mono audio at any sample rate, for `generate`."""
        return features.log_mel(np.asarray(audio, np.float32), rate)

    def generate(self, mel: npt.ArrayLike, seed: int = 0) -> FloatArray:
        """Speak log-mel (80, frames): 220 * frames float32 samples at 22,050 Hz.

        The same seed gives the same samples. Raises InvalidInput for a mel of another shape, with
        NaN or infinity in it, or on another scale than log10 power.
        """
        return Sampler(self.loop, seed).generate(self.weights.conditioning(mel))

    def stream(self, mel_frames: Iterable[npt.ArrayLike], seed: int = 0) -> Iterator[FloatArray]:
        """Speak chunks of log-mel (80, any number of frames) as they arrive.

        Two frames of look-ahead are held back until they can be spoken. The pieces joined are the
        samples `generate` gives for the joined mel. A piece is at most 64 frames, however long the
        chunk was; the first is one frame, so that it is there at once. Raises InvalidInput as
        `generate` does, for the first chunk that is wrong.
        """
        sampler = Sampler(self.loop, seed)
        waiting: FloatArray | None = None
        longest = 1
        for chunk in mel_frames:
            frames = self._checked_frames(chunk)
            if not frames.shape[1]:
                continue
            if waiting is None:
                waiting = np.repeat(frames[:, :1], CONTEXT_FRAMES, axis=1)
            waiting = np.concatenate([waiting, frames], axis=1)
            while waiting.shape[1] > 2 * CONTEXT_FRAMES:
                piece = waiting[:, : longest + 2 * CONTEXT_FRAMES]
                yield sampler.generate(self.weights.conditioning(piece, context=True))
                waiting = waiting[:, piece.shape[1] - 2 * CONTEXT_FRAMES :]
                # Whoever plays them has a piece to play while one twice as long is made.
                longest = min(2 * longest, _MOST_FRAMES_AT_ONCE)
        if waiting is not None:
            last = np.repeat(waiting[:, -1:], CONTEXT_FRAMES, axis=1)
            rest = np.concatenate([waiting, last], axis=1)
            yield sampler.generate(self.weights.conditioning(rest, context=True))

    def _checked_frames(self, chunk: npt.ArrayLike) -> FloatArray:
        """A chunk of a stream as (80, frames); one frame may come as (80,)."""
        frames = np.asarray(to_array(chunk, "the mel"), np.float32)
        return checked_mel(frames[:, None] if frames.ndim == 1 else frames)
