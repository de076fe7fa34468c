"""The networks that `bench synth` measures: by hand in C, in torch, and as graphs, all the same."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sparsejit.errors import MissingDependency
from sparsejit.machine.target import Target
from sparsejit.perf.voice import deck_loop
from sparsejit.perf.voice.deck_loop import DeckLoop, packed_blocks
from sparsejit.perf.voice.voice_networks import (
    CHECKPOINT,
    SampleNetwork,
    deck_network,
    lpcnet_network,
    network_named,
    wavernn_network,
)
from sparsejit.perf.voice.voice_peers import exact_step, step_of
from sparsejit.voice.spec.sample_loop import Sampler, compile_sample_loop
from sparsejit.voice.weights import VoiceWeights

needs_c = pytest.mark.skipif(
    Target.detect().isa != "avx512" or not (shutil.which("cc") or shutil.which("gcc")),
    reason="the loop in C needs AVX-512 and a compiler",
)


@needs_c
def test_the_loop_in_c_computes_the_deck() -> None:
    network = deck_network()
    spec = replace(network.spec, hop_length=8)
    short = SampleNetwork("deck", spec, network.tensors, network.conditioning)
    given = np.random.default_rng(0).integers(0, 256, 20).tolist()  # into the third frame
    exact = short.exact_logits(given)
    for dtype, bound in (("float32", 2e-6), ("bfloat16", 0.02)):
        found = DeckLoop(short, dtype).logits(np.array(given))
        assert np.abs(found - exact).max() < bound * np.abs(exact).max()


@needs_c
def test_the_loop_in_c_draws_the_same_classes() -> None:
    network = deck_network()
    sampler = Sampler(compile_sample_loop(network.graph, Target.detect()), 7)
    sampler.generate(network.inputs)
    same = DeckLoop(network, "float32").run(7) == sampler.classes
    assert np.argmin(same) == 0 if same.all() else np.argmin(same) > 100


def test_without_a_compiler_it_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deck_loop.shutil, "which", lambda name: None)
    with pytest.raises(MissingDependency, match=r"AVX-512|C compiler"):
        DeckLoop(deck_network(), "float32")


def test_blocks_hold_every_weight_once() -> None:
    weights = np.zeros((32, 5), np.float32)
    weights[:16, [0, 2, 4]], weights[16:, 1] = 1.5, -3
    first, inputs, values = packed_blocks(weights, "float32")
    assert first.tolist() == [0, 3, 4] and inputs.tolist() == [0, 2, 4, 1]
    np.testing.assert_array_equal(values, np.repeat([1.5, 1.5, 1.5, -3], 16).reshape(4, 16))
    first, inputs, values = packed_blocks(weights, "bfloat16")
    assert first.tolist() == [0, 4, 6] and inputs.tolist() == [0, 2, 4, 0, 1, 0]
    wide = (values.astype(np.uint32) << 16).view(np.float32).transpose(0, 2, 1).reshape(6, 16)
    np.testing.assert_array_equal(wide[:, 0], [1.5, 1.5, 1.5, 0, -3, 0])


def test_the_deck_s_blocks() -> None:
    for name in ("rnn.weight_hh", "rnn.weight_ih", "fc1.weight", "fc2.weight"):
        weights = deck_network().tensors[name][:, :1024]
        groups = weights.reshape(-1, 16, 1024) != 0
        assert (groups.any(axis=1) == groups.all(axis=1)).all()
        assert groups.mean() == pytest.approx(0.04, rel=0.1)


def networks() -> list[SampleNetwork]:
    return [deck_network(), lpcnet_network(), network_named("voice")]


@pytest.mark.parametrize("network", networks(), ids=lambda network: network.name)
def test_torch_has_the_graph_s_formulas(network: SampleNetwork) -> None:
    """A sample from silence, whose last class is the spec's first one, or 0."""
    (exact,) = network.exact_logits([0])
    found = exact_step(step_of(network), 1)[-1]
    np.testing.assert_allclose(found, exact, atol=1e-6 * np.abs(exact).max())


def test_trained_wavernn_in_torch_has_the_graph_s_formulas() -> None:
    if not CHECKPOINT.exists():
        pytest.skip("the checkpoint is not here")
    network = wavernn_network()
    (exact,) = network.exact_logits([0])
    np.testing.assert_allclose(exact_step(step_of(network), 1)[-1], exact, rtol=2e-6)


@pytest.mark.parametrize("hidden", [16, 24])
def test_steps_go_on_from_what_they_leave(hidden: int, tmp_path: Path) -> None:
    """A voice of our own, too, in torch: rows of tables multiplied before all samples."""
    VoiceWeights.random(hidden).save(tmp_path / "own.safetensors")
    network = network_named("voice", tmp_path / "own.safetensors")
    step = step_of(network)
    first, second = exact_step(step, 1), exact_step(step, 2)
    assert np.abs(first[1]).max() > 0 and not np.array_equal(first[1], second[1])


def test_the_reference_is_the_compiled_loop() -> None:
    network, given = deck_network(), [3, 200, 17]
    loop = compile_sample_loop(network.forced.sample, Target.detect())
    (found,) = Sampler(loop, 0).run(network.forced_inputs(given))
    np.testing.assert_allclose(found[:3], network.exact_logits(given), atol=1e-5)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match=r"mel\.npy is not there"):
        network_named("wavernn-16k", tmp_path)
