"""The voice as users see it: mel in, speech out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsejit.api.compiled import Explained
from sparsejit.api.reports.layers_report import layers_of
from sparsejit.api.reports.report import LayerReport, Report
from sparsejit.errors import InvalidInput, check_flags
from sparsejit.frontends.arrays import to_array
from sparsejit.machine.target import Target
from sparsejit.planner.calibration import calibrated
from sparsejit.runtime.native_timing import duration_ns, pinned
from sparsejit.voice.bundled import VOICE
from sparsejit.voice.features import POWER_FLOOR, FloatArray, log_mel
from sparsejit.voice.speak.post_filter import FRAMES_AHEAD, post_filtered
from sparsejit.voice.speak.streams import speak_side_by_side
from sparsejit.voice.spec.known_checkpoints import known_network, read_checkpoint
from sparsejit.voice.spec.sample_loop import SampleLoop, Sampler, check_seed, compile_sample_loop
from sparsejit.voice.spec.trained import GivenConditioning, TrainedNetwork
from sparsejit.voice.spec.voice_spec import VoiceSpec
from sparsejit.voice.weights import VoiceWeights

# Most frames of a stream's piece: more gain no speed, and a piece cannot be interrupted.
_MOST_FRAMES_AT_ONCE = 64
# `explain` times this number of frames at once, this number of times.
_FRAMES_TIMED, _TIMES = 20, 9


class WaveRNN(Explained):
    """A pruned voice compiled into one native function. Thread-safe.

    Make one with `from_pretrained`, `from_checkpoint` or `from_torch`. A copy is the voice itself;
    pickling keeps its source, and compiles it where it is loaded.

    >>> voice = WaveRNN.from_pretrained()
    >>> audio = voice.generate(voice.features(recording, rate), seed=0)

    Args:
        source: a voice that `train` made, or a network
        target: "native", a level such as "avx2", or a `Target`
        dtype: how the matrices of the network are stored, "float32", "bfloat16", "float16" or
            "int8"; or a dict from names of `layers` to dtypes. With int8, inputs of products are
            quantised too, the state in steps of 1/127, and sums are exact.
        post_filter: whether a filter brings the speech nearer to the mel, with 800 samples (36 ms)
            more of delay. It works on mels of sparsejit's own voices only: voices of another
            project are never filtered.
        temperature: replaces the network's own; classes are drawn from softmax(logits /
            temperature)
    """

    def __init__(
        self,
        source: VoiceWeights | TrainedNetwork,
        target: str | Target = "native",
        dtype: str | Mapping[str, str] = "float32",
        post_filter: bool = True,
        temperature: float | None = None,
    ) -> None:
        check_flags(post_filter=post_filter)
        self._compiled_with = target, dtype, post_filter
        if temperature is not None:
            source = source.at_temperature(temperature)
        self._weights = source if isinstance(source, VoiceWeights) else None
        network = source.network if isinstance(source, VoiceWeights) else source
        self.source: TrainedNetwork = network
        self.post_filter = post_filter and network.reads.is_log_mel
        self.sample_rate, self.hop_length = network.sample_rate, network.hop_length
        self.n_mels = network.n_mels
        self._target = calibrated(Target.resolve(target))
        self.loop: SampleLoop = compile_sample_loop(network.graph.sample, self._target, dtype)
        # Speak a frame here, or a first stream would wait for allocations and page faults.
        self.generate(np.full((self.n_mels, 1), np.log10(POWER_FLOOR)))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._weights or self.source, *self._compiled_with)

    def __str__(self) -> str:
        return str(self.explain())

    @property
    def weights(self) -> VoiceWeights:
        """The weights of a voice that `train` made.

        Raises:
            InvalidInput: the voice is another network
        """
        if self._weights is None:
            raise InvalidInput("this voice is another project's; voice.source has its tensors")
        return self._weights

    @property
    def layers(self) -> tuple[LayerReport, ...]:
        """The matrices of the network that runs once a sample, with the kernels chosen for them."""
        return tuple(layer for layer in self.explain().layers if layer.candidates)

    def explain(self, *, measure: bool = False) -> Report:
        """Report the cost of every layer for a sample, and the reasons.

        Args:
            measure: speak for about a second, pinned to one core, and report nanoseconds a sample
                of the network as a whole
        """
        check_flags(measure=measure)
        loop = self.loop
        layers = layers_of(loop.steps, self._target)
        image, core = loop.program.image, self._target.core
        facts = {
            "code_bytes": image.code_bytes,
            "pool_bytes": image.pool_bytes,
            "workspace_bytes": loop.workspace_bytes,
            "sample_rate": self.sample_rate,
            "hop_length": self.hop_length,
            "processor": self._target.model,
            "rates": core.origin,
        }
        lines = [
            f"{image.code_bytes:,} bytes of code, {image.pool_bytes:,} of literals; "
            f"{loop.workspace_bytes:,} bytes a stream; rates: {core.origin}"
        ]
        ns = self._ns_a_sample() if measure else None
        if ns is not None:
            speed = 1e9 / (ns * self.sample_rate)
            lines.append(f"measured: {ns:,.0f} ns a sample, {speed:.1f} times real time")
        return Report(self.title, tuple(lines), tuple(layers), facts, ns)

    def _ns_a_sample(self) -> float:
        mel = np.full((self.n_mels, _FRAMES_TIMED), np.log10(POWER_FLOOR))
        conditioning = self.source.conditioning(mel)
        sampler = Sampler(self.loop, 0)

        def speak(count: int) -> None:
            for _ in range(count):
                sampler.generate(conditioning)

        with pinned():
            took = [duration_ns(speak, 1) for _ in range(_TIMES)]
        return median(took) / (_FRAMES_TIMED * self.hop_length)

    @property
    def title(self) -> str:
        """Units, weights left, temperature and rate, in a line."""
        facts = [step.facts for step in self.loop.steps if step.facts.layer is not None]
        density = sum(each.nnz for each in facts) / sum(each.weights for each in facts)
        return (
            f"WaveRNN, {self.source.hidden_size} units, {density:.1%} of weights left, "
            f"temperature {self.source.temperature:g}, {self.sample_rate:,} Hz"
        )

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path = VOICE,
        *,
        target: str | Target = "native",
        dtype: str | Mapping[str, str] = "float32",
        temperature: float | None = None,
        post_filter: bool = True,
    ) -> WaveRNN:
        """Compile the bundled voice, or the voice in a file that `sparsejit train` wrote.

        Args:
            path: a voice, or a checkpoint of `train`
            target: as for `WaveRNN`
            dtype: as for `WaveRNN`
            temperature: as for `WaveRNN`
            post_filter: as for `WaveRNN`

        Raises:
            InvalidInput: there is no such file, or no such temperature
            DamagedFile: the file is not a voice
        """
        return cls(VoiceWeights.load(path), target, dtype, post_filter, temperature)

    @classmethod
    def from_checkpoint(
        cls,
        source: str | Path | Mapping[str, Any],
        spec: VoiceSpec | None = None,
        *,
        sample_rate: int | None = None,
        companding: str | None = None,
        target: str | Target = "native",
        dtype: str | Mapping[str, str] = "float32",
        temperature: float | None = None,
        post_filter: bool = True,
    ) -> WaveRNN:
        """Compile a network that another project trained, pruned or not.

        Args:
            source: a state dict, or a file of one, safetensors or torch's (only tensors are read)
            spec: the network's description, whose `tensor_shapes()` name its tensors; the "mel" of
                `generate` is then its conditioning, (rows, frames): see `GivenConditioning`.
                Without one the state dict is of fatchord/WaveRNN (RAW or MOL) or of a one-GRU
                network with the same names.
            sample_rate: in Hz, where there is no spec; that project's own by default
            companding: "linear" or "mu_law", where there is no spec; that project's own by default
            target: as for `WaveRNN`
            dtype: as for `WaveRNN`
            temperature: as for `WaveRNN`
            post_filter: as for `WaveRNN`

        Raises:
            InvalidInput: a tensor does not fit (the first is named), or there is no such
                temperature; and as `read_checkpoint` does
        """
        tensors = read_checkpoint(source)
        if spec is None:
            network = known_network(tensors, sample_rate, companding)
        elif sample_rate is not None or companding is not None:
            raise InvalidInput("the spec holds the sample rate and companding; leave both out")
        else:
            network = TrainedNetwork(spec, tensors, GivenConditioning(spec))
        return cls(network, target, dtype, post_filter, temperature)

    @classmethod
    def from_torch(
        cls,
        module: Any,
        *,
        target: str | Target = "native",
        dtype: str | Mapping[str, str] = "float32",
        temperature: float | None = None,
        post_filter: bool = True,
    ) -> WaveRNN:
        """Compile a `sparsejit.voice.train.module.WaveRNNModule`, pruned or not.

        Args:
            module: the trained module
            target: as for `WaveRNN`
            dtype: as for `WaveRNN`
            temperature: as for `WaveRNN`
            post_filter: as for `WaveRNN`

        Raises:
            InvalidInput: it is another module
        """
        if type(module).__name__ != "WaveRNNModule":
            raise InvalidInput(
                f"{type(module).__name__} is not a voice; "
                "give a sparsejit.voice.train.module.WaveRNNModule"
            )
        return cls(module.weights(), target, dtype, post_filter, temperature)

    def features(self, audio: npt.ArrayLike, rate: int) -> FloatArray:
        """Log-mel (80, frames) of mono audio, for `generate`.

        Args:
            audio: samples in [-1, 1], (samples,)
            rate: of the audio, in Hz; any

        Raises:
            InvalidInput: the voice is another project's, which has features of its own
        """
        if not self.source.reads.is_log_mel:
            raise InvalidInput(
                "this voice was trained on another project's mels; compute mels as that project "
                "does"
            )
        return log_mel(np.asarray(to_array(audio, "the audio"), np.float32), rate)

    def generate(self, mel: npt.ArrayLike, seed: int = 0) -> FloatArray:
        """Speak a mel. The same seed gives the same samples.

        A voice of another project has its own `n_mels`, `hop_length` and `sample_rate`.

        Args:
            mel: log-mel (80, frames)
            seed: a whole number from 0 to 2^64 - 1

        Returns:
            220 * frames float32 samples at 22,050 Hz.

        Raises:
            InvalidInput: a mel of another shape, with NaN or infinity in it, or on another scale
                than log10 power, or the other project's
        """
        return self._finished(mel, Sampler(self.loop, seed).generate(self.source.conditioning(mel)))

    def _finished(self, mel: npt.ArrayLike, samples: FloatArray) -> FloatArray:
        """The samples of a whole mel, filtered where the voice has a post-filter."""
        if not self.post_filter:
            return samples
        return np.concatenate(list(post_filtered([(self.source.checked_mel(mel), samples)])))

    def generate_batch(
        self, mels: Sequence[npt.ArrayLike], seeds: Sequence[int]
    ) -> list[FloatArray]:
        """Speak several mels, of any lengths, side by side on one core.

        Each has the samples that `generate` gives for it and its seed, to the bit.

        Args:
            mels: log-mels (80, frames)
            seeds: one for each mel

        Raises:
            InvalidInput: the numbers of mels and seeds differ, a seed is invalid, or `generate`
                would refuse a mel; nothing is spoken then
        """
        for name, given in (("mels", mels), ("seeds", seeds)):
            if not isinstance(given, Sequence | np.ndarray):
                raise InvalidInput(f"{name} is {given!r}; give a list of {name}")
        if len(mels) != len(seeds):
            raise InvalidInput(f"{len(mels)} mels and {len(seeds)} seeds; give a seed for each mel")
        for seed in seeds:
            check_seed(seed)
        checked = [self._checked_of_batch(number, mel) for number, mel in enumerate(mels)]
        inputs = ((self.source.conditioning(m), s) for m, s in zip(checked, seeds, strict=True))
        spoken = dict(speak_side_by_side(self.loop, inputs))
        return [self._finished(mel, spoken[number]) for number, mel in enumerate(checked)]

    def _checked_of_batch(self, number: int, mel: npt.ArrayLike) -> FloatArray:
        try:
            checked = self.source.checked_mel(mel)
        except InvalidInput as error:
            raise InvalidInput(f"mels[{number}]: {error}") from error
        if not checked.shape[1]:
            raise InvalidInput(f"mels[{number}] has no frame; leave it out")
        return checked

    def stream(self, mel_frames: Iterable[npt.ArrayLike], seed: int = 0) -> Iterator[FloatArray]:
        """Speak chunks of a mel as they arrive.

        Two frames of look-ahead are held back until they can be spoken, and 800 samples where a
        post-filter follows. A piece is at most 64 frames, even of a longer chunk; the first is as
        short as possible, so that it is there at once.

        Args:
            mel_frames: log-mels (80, any number of frames), one after the other
            seed: as for `generate`

        Yields:
            Pieces, which joined are the samples that `generate` gives for the joined mel.

        Raises:
            InvalidInput: as `generate` does, for the first chunk that is wrong
        """
        drawn = self._drawn(mel_frames, seed)
        return post_filtered(drawn) if self.post_filter else (samples for _, samples in drawn)

    def _drawn(
        self, mel_frames: Iterable[npt.ArrayLike], seed: int
    ) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Speak chunks as they arrive: pieces of frames (80, F) and drawn samples (220 F,)."""
        sampler = Sampler(self.loop, seed)
        around = self.source.context_frames
        waiting: FloatArray | None = None
        longest = FRAMES_AHEAD if self.post_filter else 1

        def speak(piece: FloatArray) -> tuple[FloatArray, FloatArray]:
            spoken = piece[:, around : piece.shape[1] - around]
            return spoken, sampler.generate(self.source.conditioning(piece, context=True))

        for chunk in mel_frames:
            frames = self._checked_frames(chunk)
            if not frames.shape[1]:
                continue
            if waiting is None:
                waiting = self.source.beyond(frames[:, :1])
            waiting = np.concatenate([waiting, frames], axis=1)
            while waiting.shape[1] > 2 * around:
                piece = waiting[:, : longest + 2 * around]
                yield speak(piece)
                waiting = waiting[:, piece.shape[1] - 2 * around :]
                # A player has a piece to play while one twice as long is made.
                longest = min(2 * longest, _MOST_FRAMES_AT_ONCE)
        if waiting is not None and around:
            last = self.source.beyond(waiting[:, -1:])
            yield speak(np.concatenate([waiting, last], axis=1))

    def _checked_frames(self, chunk: npt.ArrayLike) -> FloatArray:
        """A chunk of a stream as (80, frames); one frame may come as (80,)."""
        frames = np.asarray(to_array(chunk, "the mel"), np.float32)
        return self.source.checked_mel(frames[:, None] if frames.ndim == 1 else frames)
