"""Streams side by side: each has the samples that it has alone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from runnable import ISAS
from spec_networks import speech_like_mel

from sparsejit.errors import InvalidInput
from sparsejit.machine.target import Target
from sparsejit.voice.speak.streams import StreamScheduler, speak_side_by_side
from sparsejit.voice.speak.wavernn import WaveRNN
from sparsejit.voice.spec.sample_loop import Sampler
from sparsejit.voice.weights import VoiceWeights

FloatArray = npt.NDArray[np.float32]
DTYPES = ("float32", "bfloat16", "float16", "int8")


def voice_of(dtype: str, target: Target, hidden: int = 72) -> WaveRNN:
    return WaveRNN(VoiceWeights.random(hidden=hidden, density=0.3, seed=3), target, dtype)


@pytest.fixture(scope="module", params=[*ISAS, "native"])
def target(request: pytest.FixtureRequest) -> Target:
    return Target.named(request.param)


@pytest.fixture(scope="module")
def voice() -> WaveRNN:
    """The drawn classes are heard."""
    return WaveRNN(VoiceWeights.random(hidden=72, density=0.3, seed=3), post_filter=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_stream_has_the_samples_it_has_alone(target: Target, dtype: str) -> None:
    """With lengths that differ: some leave, and one that waits joins. A post-filter follows."""
    voice = voice_of(dtype, target)
    assert voice.post_filter
    mels = [speech_like_mel(1 + number * 5 % 4, number) for number in range(17)]
    alone = [voice.generate(mel, 100 + number) for number, mel in enumerate(mels)]
    for together, expected in zip(
        voice.generate_batch(mels, range(100, 117)), alone, strict=True
    ):
        np.testing.assert_array_equal(together, expected)


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 33])
def test_any_number_of_streams_goes_side_by_side(voice: WaveRNN, count: int) -> None:
    conditioning = [voice.source.conditioning(speech_like_mel(2, n)) for n in range(count)]
    pairs = [(each, seed) for seed, each in enumerate(conditioning)]
    spoken = dict(speak_side_by_side(voice.loop, pairs, most=count))
    assert sorted(spoken) == list(range(count))
    for number, samples in spoken.items():
        expected = Sampler(voice.loop, number).generate(conditioning[number])
        np.testing.assert_array_equal(samples, expected)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("level", ["avx2", "native"])
def test_products_made_in_parts_are_the_same(level: str, dtype: str) -> None:
    """A layer too large for L1 runs in parts, with rows left over behind the last whole one."""
    target = Target.resolve(level)
    voice = voice_of(dtype, target, hidden=168)
    assert max(step.facts.weight_bytes for step in voice.loop.steps) > target.l1d_bytes // 2
    mels = [speech_like_mel(2, number) for number in range(3)]
    for together, mel in zip(voice.generate_batch(mels, [0, 0, 0]), mels, strict=True):
        np.testing.assert_array_equal(together, voice.generate(mel))


def test_streams_join_and_leave_between_chunks(voice: WaveRNN) -> None:
    mels = [speech_like_mel(frames, frames) for frames in (2, 5, 3)]
    inputs = [voice.source.conditioning(mel) for mel in mels]
    scheduler = StreamScheduler(voice.loop)
    first, second = (scheduler.join(inputs[n], seed=n) for n in (0, 1))
    assert scheduler.speak() == [first] and len(scheduler) == 1
    third = scheduler.join(inputs[2], seed=2)
    assert set(scheduler.speak()) == {second, third} and not len(scheduler)
    assert scheduler.speak() == []
    for stream, mel, seed in zip((first, second, third), mels, range(3), strict=True):
        np.testing.assert_array_equal(stream.samples(), voice.generate(mel, seed))


def test_a_stream_that_leaves_early_has_what_it_spoke(voice: WaveRNN) -> None:
    mels = [speech_like_mel(frames) for frames in (1, 4)]
    scheduler = StreamScheduler(voice.loop)
    streams = [scheduler.join(voice.source.conditioning(mel), seed=1) for mel in mels]
    scheduler.speak()
    scheduler.leave(streams[1])
    assert not len(scheduler)
    samples = streams[1].samples()
    assert len(samples) == voice.hop_length
    np.testing.assert_array_equal(samples, voice.generate(mels[1], 1)[: len(samples)])


def test_inputs_are_taken_as_places_become_free(voice: WaveRNN) -> None:
    """Conditioning of a waiting stream is not computed yet."""
    taken: list[int] = []

    def utterances() -> Iterator[tuple[object, int]]:
        for number in range(6):
            taken.append(number)
            yield voice.source.conditioning(speech_like_mel(1 + number)), number

    spoken = speak_side_by_side(voice.loop, utterances(), most=2)  # type: ignore[arg-type]
    assert next(spoken)[0] == 0 and taken == [0, 1]
    assert [number for number, _ in spoken] == [1, 2, 3, 4, 5]


def test_threads_may_speak_batches_at_once(voice: WaveRNN) -> None:
    mels = [speech_like_mel(3 + number, number) for number in range(5)]
    alone = [voice.generate(mel, seed) for seed, mel in enumerate(mels)]
    with ThreadPoolExecutor(4) as pool:
        batches = list(pool.map(lambda _: voice.generate_batch(mels, range(5)), range(8)))
    for batch in batches:
        for samples, expected in zip(batch, alone, strict=True):
            np.testing.assert_array_equal(samples, expected)


def test_no_mels_are_no_speech(voice: WaveRNN) -> None:
    assert voice.generate_batch([], []) == []


@pytest.mark.parametrize(
    ("mels", "seeds", "message"),
    [
        ([speech_like_mel(1)], [1, 2], "1 mels and 2 seeds"),
        ([speech_like_mel(1)], [-1], "seed -1"),
        ([speech_like_mel(1), np.zeros((79, 4))], [0, 1], r"mels\[1\]: .*\(79, 4\)"),
        ([np.zeros((80, 0))], [0], r"mels\[0\] has no frame"),
    ],
)
def test_a_bad_batch_is_named(
    voice: WaveRNN, mels: list[FloatArray], seeds: list[int], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        voice.generate_batch(mels, seeds)


@pytest.mark.parametrize("seed", [None, "7", 1.5, True, [1], -1, 2**64])
def test_bad_seeds_are_refused(seed: Any) -> None:
    voice, mel = WaveRNN(VoiceWeights.random(hidden=8, density=1, seed=0)), speech_like_mel(3)
    with pytest.raises(InvalidInput, match="is not a 64-bit number"):
        voice.generate(mel, seed)
    with pytest.raises(InvalidInput, match="is not a 64-bit number"):
        voice.generate_batch([mel], [seed])


def test_bad_batches_are_refused() -> None:
    voice, mel = WaveRNN(VoiceWeights.random(hidden=8, density=1, seed=0)), speech_like_mel(3)
    with pytest.raises(InvalidInput, match="mels is 3; give a list"):
        voice.generate_batch(3, [0])
    with pytest.raises(InvalidInput, match="seeds is 0; give a list"):
        voice.generate_batch([mel], 0)
    with pytest.raises(InvalidInput, match=r"mels\[0\]"):
        voice.generate_batch(["speech"], [0])


@pytest.mark.parametrize("rate", [None, "22050", float("nan"), True, 0, -1, 22050.5, [1]])
def test_bad_rates_are_refused(rate: Any) -> None:
    voice = WaveRNN(VoiceWeights.random(hidden=8, density=1, seed=0))
    with pytest.raises(InvalidInput, match="give a positive number of Hz"):
        voice.features(np.zeros(9000, np.float32), rate)
    with pytest.raises(InvalidInput, match="the audio"):
        voice.features("speech", 22050)
