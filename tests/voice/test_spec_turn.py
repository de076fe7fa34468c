"""Classes turned into amplitudes, levels, and signals of linear prediction."""

import numpy as np
import pytest
from spec_networks import random_conditioning, random_tensors, two_grus

from sparsejit.errors import InvalidInput
from sparsejit.machine.target import Target
from sparsejit.voice.features import HOP_LENGTH, SAMPLE_RATE
from sparsejit.voice.spec.network_graph import FrameTerms, drawing_graph
from sparsejit.voice.spec.sample_loop import Sampler, compile_sample_loop
from sparsejit.voice.spec.voice_spec import (
    Categorical,
    Companding,
    DenseSpec,
    Gaussian,
    LinearPrediction,
    PredictionRow,
    VoiceSpec,
)


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
