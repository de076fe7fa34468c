"""A frame's values for the sampler: exact sums, whatever is computed with it, and mels that fit."""

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsejit.errors import InvalidInput
from sparsejit.voice.bundled import bundled_utterance
from sparsejit.voice.speak.wavernn import WaveRNN
from sparsejit.voice.spec.known_parts import ExactLinear, RowwiseLinear
from sparsejit.voice.weights import VoiceWeights

FloatArray = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def bundled() -> WaveRNN:
    return WaveRNN.from_pretrained()


@pytest.fixture(scope="module")
def utterance() -> FloatArray:
    return bundled_utterance().mel


@pytest.fixture(scope="module")
def whole(bundled: WaveRNN, utterance: FloatArray) -> FloatArray:
    return bundled.generate(utterance, seed=0)


@pytest.mark.parametrize("frames", [1, 2, 5, 20, 639])
def test_the_bundled_utterance_is_the_same_in_chunks_of(
    frames: int, bundled: WaveRNN, utterance: FloatArray, whole: FloatArray
) -> None:
    chunks = (utterance[:, i : i + frames] for i in range(0, utterance.shape[1], frames))
    streamed = np.concatenate(list(bundled.stream(chunks, seed=0)))
    np.testing.assert_array_equal(streamed, whole)


@settings(max_examples=25)
@given(seed=st.integers(0, 1000), hidden=st.integers(1, 12), cut=st.integers(1, 29))
def test_a_frame_does_not_depend_on_how_many_are_computed_at_once(
    seed: int, hidden: int, cut: int
) -> None:
    network = VoiceWeights.random(8 * hidden, seed=seed).network
    mel = np.random.default_rng(seed).uniform(-9, 0, (80, 30)).astype(np.float32)
    whole = network.conditioning(mel).of_frames
    padded = np.pad(mel, ((0, 0), (2, 2)), mode="edge")
    for start, end in [(0, cut), (cut, cut + 1), (cut, 30)]:
        part = network.conditioning(padded[:, start : end + 4], context=True)
        for found, wanted in zip(part.of_frames, whole, strict=True):
            assert found.dtype == np.float32 and found.flags.c_contiguous
            np.testing.assert_array_equal(found, wanted[start:end])


@settings(max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), inputs=st.integers(1, 400), exponent=st.integers(-20, 20))
def test_sums_are_exact_so_that_no_order_changes_them(
    seed: int, inputs: int, exponent: int
) -> None:
    """Every BLAS sums in an order of its own: all must find what math.fsum finds."""
    generator = np.random.default_rng(seed)
    largest = 2.0**exponent
    weight = generator.standard_normal((3, inputs)) * 10.0 ** generator.uniform(-6, 6, (3, inputs))
    x = largest * generator.uniform(-1, 1, (2, inputs))
    layer = ExactLinear(weight, np.zeros(3), largest)
    rounded_x = np.rint(x / layer.input_unit)
    exact = [[math.fsum(row * column) for column in layer.weight.T] for row in rounded_x]
    np.testing.assert_array_equal(layer(x), np.array(exact) * layer.output_unit)
    order = generator.permutation(inputs)
    shuffled = ExactLinear(weight[:, order], np.zeros(3), largest)
    np.testing.assert_array_equal(shuffled(x[:, order]), layer(x))


def test_partial_sums_stay_exact_at_the_greatest_inputs() -> None:
    weight = np.full((1, 1000), 0.9999999)
    layer = ExactLinear(weight, np.zeros(1), largest=1.0)
    products = np.rint(np.ones(1000) / layer.input_unit) * layer.weight[:, 0]
    assert abs(products).sum() <= 2.0**53


def test_an_exact_product_is_as_precise_as_float32() -> None:
    generator = np.random.default_rng(0)
    weight, x = generator.uniform(-1, 1, (50, 200)), generator.uniform(-1, 1, (30, 200))
    bias = generator.standard_normal(50)
    error = np.abs(ExactLinear(weight, bias)(x) - (x @ weight.T + bias))
    assert (error < 2.0**-24 * np.abs(weight).sum(axis=1)).all()


def test_a_row_s_product_does_not_depend_on_others() -> None:
    generator = np.random.default_rng(0)
    weight, x = generator.standard_normal((30, 50)), generator.standard_normal((40, 50))
    x *= 10.0 ** generator.integers(-6, 6, (40, 1))
    product = RowwiseLinear(weight, np.ones(30))
    whole = product(x)
    np.testing.assert_allclose(whole, x @ weight.T + 1, rtol=1e-5, atol=1e-5 * np.abs(x).max())
    for count in (1, 3):
        np.testing.assert_array_equal(product(x[7 : 7 + count]), whole[7 : 7 + count])
    np.testing.assert_array_equal(product(np.zeros((2, 50))), np.ones((2, 30)))


@pytest.mark.parametrize(
    ("mel", "message"),
    [
        ([["a"]], "the mel"),
        (np.full((80, 4), -3 + 1j), "the mel"),
        (np.zeros((79, 5)), r"shape \(79, 5\)"),
        (np.zeros((80, 0)), r"shape \(80, 0\)"),
        (np.zeros(80), r"shape \(80,\)"),
        (np.full((80, 5), np.inf), "NaN or infinity"),
    ],
)
def test_conditioning_refuses(mel: npt.NDArray[np.float64], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        VoiceWeights.random(16).network.conditioning(mel)


SCALES = {
    "decibels": (lambda mel: 10 * mel, r"runs from -90 to 9\.128.* divide decibels by 10"),
    "natural logarithms": (lambda mel: np.log(10) * mel, r"runs from -20\.72 .*by 2\.3026"),
    "power": (lambda mel: 10**mel, r"runs from 1e-09 to 8\.18.*take np\.log10"),
    "magnitude": (lambda mel: 10 ** (mel / 2), r"take np\.log10"),
    "zero to one": (lambda mel: (mel + 9) / 10, r"no value below 0"),
    "audio of 16-bit integers": (lambda mel: mel + 9.03, r"scale the audio|no value below 0"),
}


@pytest.mark.parametrize("name", SCALES)
def test_a_mel_of_another_scale_is_refused_with_the_range_found(
    name: str, bundled: WaveRNN, utterance: FloatArray
) -> None:
    change, message = SCALES[name]
    mel = change(utterance)
    with pytest.raises(InvalidInput, match=message):
        bundled.generate(mel)
    with pytest.raises(InvalidInput, match=r"the mel runs from .* from -9 to 2"):
        list(bundled.stream(mel[:, i : i + 1] for i in range(mel.shape[1])))


def test_every_mel_of_audio_in_range_is_taken(bundled: WaveRNN) -> None:
    """The quietest, the loudest band, the loudest in all bands at once."""
    rate = bundled.sample_rate
    centres = np.geomspace(60, 10_000, 50)
    tones = np.sin(2 * np.pi * centres[:, None] * np.arange(3000) / rate)
    noise = np.sign(np.random.default_rng(0).standard_normal(3000))
    for audio in (np.zeros(3000), noise, *tones):
        bundled.source.checked_mel(bundled.features(audio, rate))
