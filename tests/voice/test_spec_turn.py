"""What a class becomes: amplitudes, levels, and signals of linear prediction."""

import numpy as np
import pytest
from spec_networks import random_conditioning, random_tensors, two_grus

from sparsejit.errors import InvalidInput
from sparsejit.ir.spec import Activation
from sparsejit.machine.target import Target
from sparsejit.voice import prediction
from sparsejit.voice.features import HOP_LENGTH, SAMPLE_RATE
from sparsejit.voice.networks import FrameTerms
from sparsejit.voice.sample_graph import sample_graph
from sparsejit.voice.sample_loop import compile_sample_loop
from sparsejit.voice.sampler import Sampler
from sparsejit.voice.spec import (
    LEVEL_SCALE,
    PREDICTOR,
    RESIDUAL_SCALE,
    Categorical,
    Companding,
    DenseSpec,
    Gaussian,
    GruSpec,
    HeldConditioning,
    LastClass,
    LastSampleRow,
    LinearPrediction,
    PredictionRow,
    VoiceSpec,
)
from sparsejit.voice.spec_graph import drawing_graph
from sparsejit.voice.weights import VoiceWeights

HIDDEN = 24


def our_voice() -> VoiceSpec:
    """The voice of this project, as a spec."""
    layers = (
        GruSpec("rnn", HIDDEN, added=("gates",)),
        DenseSpec("fc1", 256, Activation.RELU, added=("bias",)),
        DenseSpec("fc2", 256),
    )
    inputs = (LastSampleRow("s", 64), LastClass("k", 64, 128), PredictionRow("p", 64))
    return VoiceSpec(
        SAMPLE_RATE,
        HOP_LENGTH,
        inputs,
        (HeldConditioning("gates", 3 * HIDDEN), HeldConditioning("bias", 256)),
        layers,
        Categorical(256, Companding.MU_LAW),
        0.9,
        LinearPrediction(prediction.SIGNAL_LIMIT, prediction.PRE_EMPHASIS),
    )


def test_our_voice_as_a_spec_draws_the_same_classes() -> None:
    """Tables, linear prediction, reconstruction and pre-emphasis are those of `sample_graph`."""
    weights = VoiceWeights.random(hidden=HIDDEN, density=0.4)
    weights = VoiceWeights(weights.tensors, 0.9)
    steps = np.random.default_rng(0).standard_normal((80, 4)) * 0.3
    conditioning = weights.conditioning(np.cumsum(steps, axis=1) * 0.5 - 3)
    ours = weights.tensors
    tables = np.split(ours["embedding.weight"], 3)
    tensors = {f"{name}.table": table for name, table in zip("skp", tables, strict=True)}
    tensors |= {
        "rnn.weight_ih": np.tile(ours["rnn.weight_ih_l0"], 3),
        "rnn.weight_hh": ours["rnn.weight_hh_l0"],
        # Of a frame, all but this part of the biases is in the conditioning.
        "rnn.bias_ih": np.zeros(3 * HIDDEN, np.float32),
        "rnn.bias_hh": np.append(np.zeros(2 * HIDDEN), weights.recurrent_new_bias),
        "fc1.weight": ours["fc1.weight"],
        "fc1.bias": np.zeros(256, np.float32),
        "fc2.weight": ours["fc2.weight"],
        "fc2.bias": ours["fc2.bias"],
    }
    graph = drawing_graph(our_voice(), tensors)
    loop_arrays = conditioning.loop_arrays()
    names = ("gates", "bias", PREDICTOR, RESIDUAL_SCALE, LEVEL_SCALE)
    arrays = FrameTerms(graph)(dict(zip(names, loop_arrays.of_frames, strict=True)), 4)
    target = Target.detect()
    plain = Sampler(compile_sample_loop(sample_graph(weights), target), 3)
    spec = Sampler(compile_sample_loop(graph.sample, target), 3)
    wanted, found = plain.generate(conditioning), spec.generate(arrays)
    assert len(np.unique(plain.classes)) > 20
    np.testing.assert_array_equal(spec.classes, plain.classes)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("companding", Companding)
def test_a_class_s_amplitude_is_given(companding: Companding) -> None:
    spec = two_grus(Categorical(64, companding))
    graph = drawing_graph(spec, random_tensors(spec))
    arrays = FrameTerms(graph)(random_conditioning(spec, 10), 10)
    sampler = Sampler(compile_sample_loop(graph.sample, Target.detect()), 0)
    audio = sampler.generate(arrays)
    levels = 2 * sampler.classes / 63 - 1
    curve = np.sign(levels) * (64 ** abs(levels) - 1) / 63
    wanted = levels if companding is Companding.LINEAR else curve
    np.testing.assert_allclose(audio, wanted, atol=1e-7)


def test_prediction_and_rows_of_signals_need_each_other_and_classes() -> None:
    parts = SAMPLE_RATE, HOP_LENGTH
    rows, layers = (PredictionRow("p", 8),), (DenseSpec("out", 256),)
    with pytest.raises(InvalidInput, match="'p' is a row for a signal; give the spec a Linear"):
        VoiceSpec(*parts, rows, (), layers, Categorical(256))
    with pytest.raises(InvalidInput, match="linear prediction with Gaussian; give Categorical"):
        VoiceSpec(*parts, rows, (), layers, Gaussian(), 1.0, LinearPrediction(4.0, 0.9))
