"""The compiled sampler against its definition in numpy, and against itself in pieces."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runnable import ISAS
from spec_networks import plain_parameters, plain_signal, speech_like_mel

from sparsejit.errors import InvalidInput
from sparsejit.ir import reference
from sparsejit.ir.spec import CategoricalDraw, Quantisation
from sparsejit.machine.target import Target
from sparsejit.voice.bundled import VOICE, bundled_utterance
from sparsejit.voice.speak.wavernn import WaveRNN
from sparsejit.voice.spec import trained
from sparsejit.voice.spec.sample_loop import Sampler
from sparsejit.voice.weights import VoiceWeights

FloatArray = npt.NDArray[np.float32]

# A draw may differ from the float64 reference where uniform * total lies this close to a partial
# sum, relative to the total. The network's float32 rounding moves a probability by about 1e-6.
ROUNDING_TIE = 2e-5
MOST_FLIPS = 1e-3  # share of samples


@pytest.fixture(scope="module", params=ISAS)
def target(request: pytest.FixtureRequest) -> Target:
    return Target.named(request.param)


def assert_agrees(voice: WaveRNN, mel: FloatArray, samples: int, seed: int) -> None:
    """Every draw equals the reference's, or is a rounding tie; every sample equals to the bit."""
    network, sampler = voice.source, Sampler(voice.loop, seed)
    audio = sampler.generate(network.conditioning(mel))
    classes, flips = sampler.classes[:samples].tolist(), 0
    features, _ = network.frame_features(mel)
    inputs, outputs = zip(*plain_signal(network.spec, classes, features), strict=True)
    np.testing.assert_array_equal(audio[:samples], outputs)
    spec = CategoricalDraw(256, 1 / network.temperature)
    parameters = plain_parameters(network.spec, network.tensors, features, inputs)
    for index, (logits, chosen) in enumerate(zip(parameters, classes, strict=True)):
        uniform = float(reference.random_uniform(seed, index))
        drawn = reference.categorical_draw(spec, logits, uniform)
        if drawn != chosen:
            flips += 1
            assert abs(drawn - chosen) == 1, f"sample {index}: not a neighbouring class"
            margin = reference.categorical_margin(spec, logits, uniform)
            assert margin < ROUNDING_TIE, f"sample {index}: margin {margin:.2g}"
    assert flips <= MOST_FLIPS * samples


def test_bundled_voice_agrees_with_the_reference_for_20000_samples(target: Target) -> None:
    utterance = bundled_utterance()
    voice = WaveRNN(VoiceWeights.load(VOICE), target)
    assert_agrees(voice, utterance.mel[:, 60:151], 20_000, seed=1)


def test_the_bundled_voice_is_its_spec_and_tensors_to_the_bit() -> None:
    voice, utterance = WaveRNN.from_pretrained(post_filter=False), bundled_utterance()
    network, mel = voice.source, utterance.mel[:, 60:70]
    described = WaveRNN.from_checkpoint(network.tensors, network.spec)
    assert described.loop.program.image.data == voice.loop.program.image.data
    samples = Sampler(described.loop, 3).generate(network.conditioning(mel))
    np.testing.assert_array_equal(samples, voice.generate(mel, seed=3))


@pytest.mark.parametrize("hidden", [8, 16, 24, 72, 136])
def test_any_hidden_size_agrees_with_the_reference(target: Target, hidden: int) -> None:
    voice = WaveRNN(VoiceWeights.random(hidden=hidden, density=0.3, seed=hidden), target)
    assert_agrees(voice, speech_like_mel(4, hidden), 880, seed=hidden)


@pytest.fixture(scope="module")
def voice() -> WaveRNN:
    return WaveRNN(VoiceWeights.random(hidden=64))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.integers(0, 2**64 - 1))
def test_streaming_gives_the_samples_of_one_call(
    voice: WaveRNN, chunk_lengths: list[int], seed: int
) -> None:
    mel = speech_like_mel(sum(chunk_lengths) + 1)
    chunks = np.split(mel, np.cumsum(chunk_lengths), axis=1)
    streamed = np.concatenate(list(voice.stream(chunks, seed)))
    np.testing.assert_array_equal(streamed, voice.generate(mel, seed))


@pytest.mark.parametrize(("post_filter", "ahead"), [(False, 2), (True, 5)])
def test_stream_speaks_as_soon_as_the_look_ahead_is_there(post_filter: bool, ahead: int) -> None:
    voice = WaveRNN(VoiceWeights.random(hidden=8), post_filter=post_filter)
    frames_pulled = 0

    def frames() -> Iterator[FloatArray]:
        nonlocal frames_pulled
        for frame in speech_like_mel(10).T:
            frames_pulled += 1
            yield frame

    assert len(next(voice.stream(frames()))) > 0
    assert frames_pulled == 1 + ahead


def test_stream_speaks_a_long_chunk_in_pieces_that_grow_to_64_frames() -> None:
    voice = WaveRNN(VoiceWeights.random(hidden=8), post_filter=False)
    mel = speech_like_mel(200)
    pieces = list(voice.stream([mel[:, :5], mel[:, 5:]], 3))
    frames = [len(piece) // voice.hop_length for piece in pieces]
    assert frames == [1, 2, 4, 8, 16, 32, 64, 64, 7, 2]
    np.testing.assert_array_equal(np.concatenate(pieces), voice.generate(mel, 3))


def test_nothing_is_left_to_make_when_a_stream_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    voice = WaveRNN(VoiceWeights.random(hidden=8))

    def forbid(*arguments: object) -> None:
        raise AssertionError("made when the stream began")

    monkeypatch.setattr(trained, "drawing_graph", forbid)
    monkeypatch.setattr(trained, "FrameTerms", forbid)
    assert len(next(voice.stream([speech_like_mel(3)])))


def test_one_seed_gives_one_utterance(voice: WaveRNN) -> None:
    mel = speech_like_mel(3)
    np.testing.assert_array_equal(voice.generate(mel, 5), voice.generate(mel, 5))
    assert not np.array_equal(voice.generate(mel, 5), voice.generate(mel, 6))


def test_threads_do_not_disturb_each_other(voice: WaveRNN) -> None:
    mel = speech_like_mel(30)
    alone = [voice.generate(mel, seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda seed: voice.generate(mel, seed), range(8)))
    np.testing.assert_array_equal(alone, together)


def test_from_torch_gives_the_samples_of_the_same_weights() -> None:
    torch = pytest.importorskip("torch")
    from sparsejit.voice.train.module import WaveRNNModule

    weights = VoiceWeights.random(hidden=48)
    module = WaveRNNModule(48)
    module.load_state_dict({k: torch.from_numpy(v) for k, v in weights.tensors.items()})
    mel = speech_like_mel(2)
    expected = WaveRNN(weights).generate(mel)
    np.testing.assert_array_equal(WaveRNN.from_torch(module).generate(mel), expected)


def test_from_torch_names_what_is_not_a_voice() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InvalidInput, match=r"Linear is not a voice; give .*WaveRNNModule"):
        WaveRNN.from_torch(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("mel", "message"),
    [
        (np.zeros((79, 4), np.float32), r"\(79, 4\)"),
        (np.zeros((80, 0), np.float32), r"\(80, 0\)"),
        (np.full((80, 4), np.nan, np.float32), "NaN"),
    ],
)
def test_a_bad_mel_is_named(voice: WaveRNN, mel: FloatArray, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        voice.generate(mel)


def test_a_bad_chunk_of_a_stream_is_named(voice: WaveRNN) -> None:
    with pytest.raises(InvalidInput, match=r"\(81, 2\)"):
        next(voice.stream([np.zeros((81, 2), np.float32)]))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_bad_seed_is_named(voice: WaveRNN, seed: int) -> None:
    with pytest.raises(InvalidInput, match=str(seed)):
        voice.generate(speech_like_mel(1), seed)


def test_stored_shorter_it_still_speaks(target: Target) -> None:
    """The state is quantised in steps of 1/127, whatever its largest magnitude."""
    weights = VoiceWeights.random(hidden=72, density=0.3)
    mel = speech_like_mel(3)
    voices = {dtype: WaveRNN(weights, target, dtype) for dtype in ("float32", "bfloat16", "int8")}
    spoken = {dtype: voice.generate(mel, seed=4) for dtype, voice in voices.items()}
    for dtype in ("bfloat16", "int8"):
        assert not np.array_equal(spoken[dtype], spoken["float32"])
    layers = [(step.origin.name, step.facts.layer) for step in voices["int8"].loop.steps]
    scales = {name: (spec.dtype.value, spec.x_steps) for name, spec in layers if spec}
    state = ("int8", Quantisation(1 / 127, 0, symmetric=True))
    assert scales == {"recurrent": state, "dense": state, "output": ("int8", None)}


def test_layers_may_have_dtypes_of_their_own() -> None:
    weights = VoiceWeights.random(hidden=64)
    voice = WaveRNN(weights, dtype={"recurrent": "int8"})
    kernels = {layer.layer: layer.kernel for layer in voice.layers}
    assert "int8" in kernels["recurrent"] and "f32" in kernels["dense"]


def test_an_int8_voice_is_the_same_however_it_is_cut() -> None:
    voice = WaveRNN(VoiceWeights.random(hidden=64), dtype="int8")
    mel = speech_like_mel(9)
    pieces = list(voice.stream([mel[:, :2], mel[:, 2:3], mel[:, 3:]], seed=1))
    np.testing.assert_array_equal(np.concatenate(pieces), voice.generate(mel, seed=1))


def test_a_dtype_that_is_none_is_named() -> None:
    with pytest.raises(InvalidInput, match="int4"):
        WaveRNN(VoiceWeights.random(hidden=64), dtype="int4")
