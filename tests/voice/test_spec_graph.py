"""A `VoiceSpec` as a graph against its plain formulas, and compiled against the graph."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from runnable import ISAS
from safetensors.numpy import save_file
from spec_networks import (
    AUX,
    CONDITIONING,
    HOP,
    MEL,
    SPECS,
    plain_parameters,
    random_conditioning,
    random_tensors,
    two_grus,
)

from sparsejit.errors import InvalidInput
from sparsejit.ir.ops.products import Linear
from sparsejit.ir.values import Array
from sparsejit.machine.target import Target
from sparsejit.perf.voice.voice_networks import GraphTurns
from sparsejit.voice.prediction import expanded
from sparsejit.voice.speak.wavernn import WaveRNN
from sparsejit.voice.spec.network_graph import FrameTerms, drawing_graph, forced_graph
from sparsejit.voice.spec.sample_loop import LoopArrays, Sampler, compile_sample_loop
from sparsejit.voice.spec.voice_spec import (
    LEVEL_SCALE,
    PREDICTOR,
    RESIDUAL_SCALE,
    Categorical,
    DenseSpec,
    DualSoftmax,
    Gaussian,
    GruSpec,
    LastClass,
    LastHalves,
    LastSample,
    VoiceSpec,
)
from sparsejit.voice.weights import VoiceWeights

FRAMES = 24
# A draw may differ from the float64 reference where its number is this close to a decision.
ROUNDING_TIE = 2e-5


@pytest.fixture(params=ISAS)
def target(request: pytest.FixtureRequest) -> Target:
    return Target.named(request.param)


@pytest.mark.parametrize("name", SPECS)
def test_parameters_are_those_of_the_plain_formulas(name: str) -> None:
    """However products were joined: concatenated conditioning, residual additions, tables."""
    spec, frames = SPECS[name], 4
    tensors = random_tensors(spec)
    conditioning = random_conditioning(spec, frames)
    generator = np.random.default_rng(3)
    last, given = choices_of(spec, frames * HOP, generator)
    graph = forced_graph(spec, tensors)
    arrays = FrameTerms(graph)(conditioning, frames)
    of_samples = (*arrays.of_samples, *given)
    turns = GraphTurns(graph.sample, LoopArrays(frames, arrays.of_frames, of_samples), 0)
    for wanted in plain_parameters(spec, tensors, conditioning, last):
        found, _ = turns.next()
        np.testing.assert_allclose(np.concatenate(found), wanted, atol=2e-6)


def choices_of(
    spec: VoiceSpec, count: int, generator: np.random.Generator
) -> tuple[Array, list[Array]]:
    """The random choices that `plain_parameters` reads, and the input of the forced graph."""
    given: list[Array] = [generator.uniform(-1, 1, count).astype(np.float32)]
    samples = given[0]
    halves: list[Array] = []
    if isinstance(spec.output, DualSoftmax):
        bits = spec.output.bits
        given = [generator.integers(0, 2**bits, count) for _ in range(2)]
        samples = (2**bits * given[0] + given[1]) / 2 ** (2 * bits - 1) - 1
        halves = [2 * half / (2**bits - 1) - 1 for half in given]
    elif spec.has_classes:
        given = [generator.integers(0, spec.output.parameters, count)]
        samples = 2 * given[0] / (spec.output.parameters - 1) - 1
    columns: list[Array] = []
    for each in spec.inputs:
        if isinstance(each, LastHalves):
            first = divmod(each.first, 2**bits)
            starts = [2 * k / (2**bits - 1) - 1 for k in first]
            columns += [np.append(s, h[:-1]) for s, h in zip(starts, halves, strict=True)]
        elif isinstance(each, LastClass):
            columns.append(np.append(each.first, given[0][:-1]))
        else:
            columns.append(np.append(0, samples[:-1]))
    return np.stack([*columns, *halves[:1]], axis=1), given


@pytest.mark.parametrize("name", SPECS)
def test_compiled_draws_are_the_graph_s_or_ties(name: str, target: Target) -> None:
    spec = SPECS[name]
    graph = drawing_graph(spec, random_tensors(spec))
    arrays = FrameTerms(graph)(random_conditioning(spec, FRAMES), FRAMES)
    sampler = Sampler(compile_sample_loop(graph.sample, target), 7)
    audio = sampler.generate(arrays)
    turns, ties = GraphTurns(graph.sample, arrays, 7), 0
    assert len(audio) == FRAMES * HOP and len(np.unique(audio)) > 5
    for index, sample in enumerate(audio):
        (wanted, *drawn), margin = turns.next()
        if abs(float(wanted) - sample) > 2e-5:
            ties += 1
            assert margin < ROUNDING_TIE, f"sample {index}: {sample}, not {wanted}"
        for each in drawn:
            assert sampler.classes[index] == each or margin < ROUNDING_TIE
        follow(turns, spec, sample, *(sampler.classes[index] for _ in drawn))
    assert ties <= 2


def follow(turns: GraphTurns, spec: VoiceSpec, sample: float, drawn: int = 0) -> None:
    """Go on from the classes that the loop drew."""
    if isinstance(spec.output, DualSoftmax):
        count = spec.output.half_classes
        for name, half in zip(("coarse", "fine"), divmod(drawn, count), strict=True):
            turns.follow(f"last halves.{name}", 2 * half / (count - 1) - 1)
        assert sample == 2 * drawn / spec.output.classes - 1
    elif spec.has_classes:
        turns.follow("excitation", drawn)
        sample = 2 * drawn / (spec.output.parameters - 1) - 1
    turns.follow("last sample", sample)


@pytest.mark.parametrize("name", [*SPECS, "our own"])
def test_a_spec_speaks_its_conditioning_row_under_row_however_it_is_cut(name: str) -> None:
    own = VoiceWeights.random(hidden=24).network
    spec = SPECS.get(name, own.spec)
    tensors = random_tensors(spec) if name in SPECS else own.tensors
    voice = WaveRNN.from_checkpoint(tensors, spec)
    generator = np.random.default_rng(1)
    mel = generator.standard_normal((voice.n_mels, FRAMES)).astype(np.float32) / 4
    whole = voice.generate(mel, 3)
    cut = voice.stream(np.split(mel, (1, 4), axis=1), 3)
    np.testing.assert_array_equal(np.concatenate(list(cut)), whole)
    sizes = {each.name: each.size for each in spec.conditioning}
    if spec.prediction is not None:
        sizes |= {PREDICTOR: 32, RESIDUAL_SCALE: 1, LEVEL_SCALE: 1}
    rows = np.split(mel.T.astype(np.float64), np.cumsum([*sizes.values()])[:-1], axis=1)
    parts = dict(zip(sizes, rows, strict=True))
    if MEL in parts:
        parts[MEL] = np.pad(parts[MEL], ((1, 1), (0, 0)))
    for scalar in {RESIDUAL_SCALE, LEVEL_SCALE} & parts.keys():
        parts[scalar] = parts[scalar][:, 0]
    arrays = FrameTerms(voice.source.graph)(parts, FRAMES)
    np.testing.assert_array_equal(Sampler(voice.loop, 3).generate(arrays), whole)


def test_a_spec_s_voice_is_as_its_spec_says(tmp_path: Path) -> None:
    spec = SPECS["linear classes"]
    tensors = random_tensors(spec)
    save_file(tensors, tmp_path / "voice.safetensors")
    voice = WaveRNN.from_checkpoint(tmp_path / "voice.safetensors", spec, temperature=0.5)
    assert (voice.sample_rate, voice.hop_length, voice.n_mels) == (16_000, HOP, 11)
    assert voice.source.temperature == 0.5 and not voice.post_filter
    with pytest.raises(InvalidInput, match=r"shape \(7, 3\); give \(11, frames\)"):
        voice.generate(np.zeros((7, 3)))
    with pytest.raises(InvalidInput, match="the spec holds the sample rate and companding"):
        WaveRNN.from_checkpoint(tensors, spec, sample_rate=8000)
    with pytest.raises(InvalidInput, match=r"'I\.bias' has shape None"):
        WaveRNN.from_checkpoint({n: t for n, t in tensors.items() if n != "I.bias"}, spec)
    with pytest.raises(InvalidInput, match="the temperature is 0"):
        WaveRNN.from_checkpoint(tensors, spec, temperature=0)


def test_terms_of_a_frame_are_multiplied_once_a_frame() -> None:
    """A scalar's column, conditioning's columns and a linear layer before a GRU cost no product."""
    spec = two_grus(Categorical(16))
    graph = drawing_graph(spec, random_tensors(spec)).sample.graph
    shapes = {
        node.outputs[0].origin.name: node.inputs[1].shape
        for node in graph.nodes
        if isinstance(node.op, Linear)
    }
    recurrent = {"rnn1": (72, 24), "rnn2": (72, 24)}
    assert shapes == {**recurrent, "rnn2.input": (72, 24), "fc1": (20, 24), "fc2": (16, 20)}


def test_mu_law_levels_expand_to_g711_s_curve() -> None:
    np.testing.assert_allclose(expanded(np.array([-1, 0, 0.5, 1]), 256), [-1, 0, 15 / 255, 1])


SPEC = two_grus(Categorical(16))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": (LastSample(), LastSample())}, "2 parts are named 'last sample'"),
        ({"conditioning": CONDITIONING[:1]}, "layer 'I' reads 'aux'; conditioning is mel"),
        ({"layers": SPEC.layers[:-1]}, "the last layer has 20 features; Categorical takes 16"),
        (
            {"layers": (replace(SPEC.layers[0], added=(AUX,)), *SPEC.layers[1:])},
            "'aux' of 4 features is added to layer 'I'; give 24",
        ),
        (
            {"layers": (DenseSpec("I", 8), *SPEC.layers[1:])},
            "layer 'rnn1' of 24 units is added to 8 features",
        ),
        (
            {"inputs": (LastClass("k", 4, 0),), "output": Gaussian()},
            "input 'k' is the last class, which Gaussian lacks",
        ),
        ({"inputs": (LastHalves(),)}, "halves' is halves of a class, which Categorical lacks"),
        ({"output": DualSoftmax((), (), 4)}, "DualSoftmax after layer 'fc2'; give a GRU"),
        (
            {"layers": (*SPEC.layers[:1], GruSpec("rnn", 24)), "output": DualSoftmax((), (), 4)},
            "the coarse half has 12 features in the end; 4 bits take 16",
        ),
    ],
)
def test_a_spec_whose_parts_do_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        replace(SPEC, **change)  # type: ignore[arg-type]


def test_tensors_of_another_shape_are_refused_by_name() -> None:
    tensors = random_tensors(SPEC)
    with pytest.raises(InvalidInput, match=r"'fc1.weight' has shape None, not \(20, 28\)"):
        drawing_graph(SPEC, {n: a for n, a in tensors.items() if n != "fc1.weight"})
    with pytest.raises(InvalidInput, match=r"'extra' has shape \(2,\), not None"):
        drawing_graph(SPEC, {**tensors, "extra": np.zeros(2, np.float32)})
    with pytest.raises(InvalidInput, match=r"'I\.bias' contains NaN"):
        drawing_graph(SPEC, {**tensors, "I.bias": np.full(24, np.nan, np.float32)})
    spec = SPECS["dual softmax"]
    tensors = random_tensors(spec)
    tensors["gru.weight_ih"][50, -1] = 1
    with pytest.raises(InvalidInput, match=r"'gru\.weight_ih' is not masked: its last column"):
        drawing_graph(spec, tensors)
