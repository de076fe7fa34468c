"""The nets of the study of streams: the pruned GRUs, and a wake word's pipeline as one stream."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import sparsejit
from sparsejit.perf.studies.stream_steps import (
    SIZES,
    SPARSITY,
    STATES,
    STEP,
    compiled_pipeline,
    pruned_net,
)

WAKE_WORD = Path(__file__).parents[3] / "shared" / "data" / "onnx" / "wakeword_mirror.onnx"


@pytest.mark.parametrize("name", SIZES)
def test_a_pruned_net_in_a_stream_is_torchs(name: str) -> None:
    net, example = pruned_net(SIZES[name])
    for cell in (net.voice, net.noise, net.speech):
        for weight in (cell.weight_ih, cell.weight_hh):
            assert (weight == 0).float().mean().item() == pytest.approx(SPARSITY, abs=1e-3)
    stream = sparsejit.compile(net, example, state=STATES).stream()
    states = list(example[1:])
    for x in torch.randn(100, *example[0].shape):
        with torch.no_grad():
            *wanted, voice, noise, speech = net(x, *states)
        states = [voice, noise, speech]
        for ours, theirs in zip(stream(x), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


@pytest.mark.skipif(not WAKE_WORD.exists(), reason="needs ../shared/data/onnx")
def test_a_wake_words_pipeline_is_one_stream() -> None:
    """From samples: the whole model, late; its classifier gives what its file gives."""
    model, fast = compiled_pipeline(WAKE_WORD)
    time = torch.arange(60 * STEP) / 16_000
    x = torch.sin(900 * time * time)[None] * torch.rand(1, len(time))
    found = fast.stream().run(x.numpy())
    with torch.no_grad():
        wanted = model(x).numpy()
    late = fast.delay // STEP
    assert late * STEP == fast.delay and late + wanted.shape[1] == found.shape[1] == 60
    assert not found[:, :late].any() and np.ptp(wanted) > 1e-4
    np.testing.assert_allclose(found[:, late:], wanted, rtol=0, atol=2e-6)
    session = onnxruntime.InferenceSession(WAKE_WORD, providers=["CPUExecutionProvider"])
    embeddings = torch.randn(1, 96, 20)
    with torch.no_grad():
        ours = model.classifier(embeddings).numpy()[0]
    rows = embeddings[0].T.numpy()
    theirs = [session.run(None, {"inputs_0": rows[None, n : n + 16]})[0].item() for n in range(5)]
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert np.ptp(theirs) > 1e-3
