"""Utterances spoken side by side on one core: they join and leave between chunks of frames."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from sparsejit.voice.features import FloatArray
from sparsejit.voice.spec.sample_loop import LoopArrays, SampleLoop, Sampler, run_in_lockstep

# More streams at once gain little more, and their own data fills the caches.
MOST_STREAMS = 16


@dataclass(eq=False)
class UtteranceInProgress:
    """One stream: the frames it will speak, how many are spoken, and their samples."""

    sampler: Sampler
    arrays: LoopArrays
    spoken: int = 0
    pieces: list[FloatArray] = field(default_factory=list)

    @property
    def frames_left(self) -> int:
        return self.arrays.frames - self.spoken

    def samples(self) -> FloatArray:
        """All samples spoken so far, float32."""
        return np.concatenate([np.empty(0, np.float32), *self.pieces])


class StreamScheduler:
    """Streams of one compiled voice in lockstep, sample by sample.

    Each has the samples that a `Sampler` alone gives, with any other streams beside it. Not for two
    threads at once; make one for each.
    """

    def __init__(self, loop: SampleLoop) -> None:
        self._loop = loop
        self._streams: list[UtteranceInProgress] = []

    def __len__(self) -> int:
        return len(self._streams)

    def join(self, inputs: LoopArrays, seed: int) -> UtteranceInProgress:
        """Add a stream, which begins at the next `speak`. Raises InvalidInput for a bad seed."""
        stream = UtteranceInProgress(Sampler(self._loop, seed), inputs)
        self._streams.append(stream)
        return stream

    def leave(self, stream: UtteranceInProgress) -> None:
        """Remove a stream, even with frames left."""
        self._streams.remove(stream)

    def speak(self) -> list[UtteranceInProgress]:
        """Speak all streams to the end of the shortest one; remove and return the ended streams."""
        if self._streams:
            frames = min(stream.frames_left for stream in self._streams)
            inputs = [
                stream.arrays.part(stream.spoken, stream.spoken + frames)
                for stream in self._streams
            ]
            samplers = [stream.sampler for stream in self._streams]
            results = run_in_lockstep(samplers, inputs)
            for stream, (samples, *_) in zip(self._streams, results, strict=True):
                stream.pieces.append(samples)
                stream.spoken += frames
        ended = [stream for stream in self._streams if not stream.frames_left]
        for stream in ended:
            self.leave(stream)
        return ended


def speak_side_by_side(
    loop: SampleLoop, utterances: Iterable[tuple[LoopArrays, int]], most: int = MOST_STREAMS
) -> Iterator[tuple[int, FloatArray]]:
    """Speak inputs with their seeds, at most `most` at once; yield number and samples as each ends.

    Waiting inputs join, in order, when others leave. Raises InvalidInput for an invalid seed.
    """
    scheduler, waiting = StreamScheduler(loop), enumerate(utterances)
    numbers: dict[UtteranceInProgress, int] = {}
    is_over = False
    while not is_over or len(scheduler):
        while not is_over and len(scheduler) < most:
            number, utterance = next(waiting, (-1, None))
            if utterance is None:
                is_over = True
            else:
                numbers[scheduler.join(*utterance)] = number
        for ended in scheduler.speak():
            yield numbers.pop(ended), ended.samples()
