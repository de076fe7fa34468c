"""The cost of a network's sample, in parts and beside peers: the bookkeeping, not the times."""

import json
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from fake_clock import FakeClock
from typer.testing import CliRunner

from sparsejit.commands.cli import app
from sparsejit.errors import CompileError, MissingDependency
from sparsejit.machine.target import Target
from sparsejit.perf.checking.claims import CLAIMS
from sparsejit.perf.checking.contests import CONTESTS
from sparsejit.perf.checking.core_contests import NetworkSubject
from sparsejit.perf.voice import voice_parts, voice_times
from sparsejit.perf.voice.voice_networks import SampleNetwork, network_named
from sparsejit.perf.voice.voice_parts import GATES, PRODUCTS, sample_parts, touched_bytes
from sparsejit.perf.voice.voice_times import NetworkContest, checked_network, time_network
from sparsejit.voice.speak.wavernn import WaveRNN
from sparsejit.voice.spec.sample_loop import compile_sample_loop
from sparsejit.voice.weights import VoiceWeights

PARTS = {"recurrent", "dense", "output", "gates", "draw", "signal"}


@pytest.fixture(scope="module")
def weights() -> VoiceWeights:
    return VoiceWeights.random(hidden=64)


@pytest.fixture(scope="module")
def voice(weights: VoiceWeights, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("voice") / "own.safetensors"
    weights.save(path)
    return path


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice_times, "ROUNDS", 2)


def test_every_step_belongs_to_a_part(weights: VoiceWeights) -> None:
    steps = WaveRNN(weights, dtype="int8").loop.steps
    ns = [2.0**number for number in range(len(steps))]
    parts = {part.name: part for part in sample_parts(steps, ns)}
    assert parts.keys() == PARTS
    assert sum(part.ns for part in parts.values()) == sum(ns)
    assert sum(part.share for part in parts.values()) == pytest.approx(1)
    for name in ("recurrent", "dense", "output"):
        own = [(s, t) for s, t in zip(steps, ns, strict=True) if s.origin.name == name]
        (product,) = (step for step, _ in own if step.facts.plan is not None)
        assert parts[name].ns == sum(taken for _, taken in own)
        assert parts[name].predicted_ns == product.facts.predicted_ns
        assert parts[name].group == PRODUCTS
    assert parts["gates"].predicted_ns is None and parts["gates"].group == GATES


def test_a_tree_s_decisions_are_the_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network_named("lpcnet").graph
    steps = compile_sample_loop(graph, Target.detect(), "float32").steps
    parts = {part.name: part for part in sample_parts(steps, [1.0] * len(steps))}
    assert parts.keys() == {
        *("signal", "gates", "draw"),
        *("gru_a", "gru_b", "gru_b.input", "dual"),
    }
    assert {"uniform", "tree-draw"} <= {step.kernel for step in steps}


def test_parts_add_up_to_the_samples(
    voice: Path, monkeypatch: pytest.MonkeyPatch, steady_clock: FakeClock
) -> None:
    """A sample's stamps are its time; with a clock that stands still between two looks."""
    monkeypatch.setattr(voice_parts, "ROUNDS", 2)
    found = time_network("voice", voice, ["float32", "int8"], peers=())
    assert [one.dtype for one in found] == ["float32", "int8"]
    for one in found:
        assert {part.name for part in one.parts} == PARTS
        assert sum(part.share for part in one.parts) == pytest.approx(1)
        assert sum(one.shares().values()) == pytest.approx(1)
        assert one.us_min == one.us_median and one.peers == () and one.speed_up("torch") is None
    assert found[0].touched.weights == 4 * found[1].touched.weights
    assert [one.touched.rows for one in found] == [3 * 3 * 64 * size for size in (4, 1)]


def test_all_of_the_image_but_other_rows_is_touched() -> None:
    network = network_named("deck")
    loop = compile_sample_loop(network.graph, Target.detect(), "float32")
    touched = touched_bytes(network.graph, loop)
    assert touched.rows == 0
    assert touched.weights + touched.indices == loop.program.image.pool_bytes
    assert touched.conditioning == 4 * (3 * 1024 + 1024)
    own = network_named("voice").graph
    loop = compile_sample_loop(own, Target.detect(), "float32")
    tables = 3 * 256 * 3 * 384 * 4
    assert touched_bytes(own, loop).indices < loop.program.image.pool_bytes - tables


@pytest.mark.parametrize("name", ["deck", "lpcnet", "voice"])
def test_a_wrong_loop_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    network = network_named(name)
    assert checked_network(network, "float32") < 1e-5
    monkeypatch.setattr(
        SampleNetwork, "exact_logits", lambda self, given: np.ones((len(given), 256))
    )
    with pytest.raises(CompileError, match="wrong: its largest error"):
        checked_network(network, "float32")


def test_peers_run_in_the_same_rounds(voice: Path) -> None:
    with ExitStack() as stack:
        contest = NetworkContest(stack, 0, "voice", voice, ["int8"], ["torch", "tvm"])
        contest.round(0)
        contest.forget()
        contest.round(1)
        (torch,) = contest.peer_times()
        assert torch.name == "torch"
        assert len(contest.us["int8"]) == 1
        assert "no bench environment" in contest.skipped["tvm"]


def test_the_command(tmp_path: Path, voice: Path) -> None:
    arguments = ["bench", "synth", "--network", "voice", "--voice", str(voice), "--no-peers"]
    result = CliRunner().invoke(app, [*arguments, "--dtype", "int8", "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert row["network"] == "own" and row["dtype"] == "int8"
    assert {part["name"] for part in row["parts"]} == PARTS
    assert row["touched_bytes"] == sum(row["touched"].values())
    assert np.isfinite([row["us_min"], row["us_median"], row["predicted_us"]]).all()
    shown = CliRunner().invoke(app, [*arguments, "--dtype", "int8"])
    assert shown.exit_code == 0 and "all products" in shown.stdout


def test_a_network_without_its_files_is_skipped(tmp_path: Path) -> None:
    arguments = ["--network", "wavernn-16k", "--checkpoint", str(tmp_path), "--no-peers"]
    result = CliRunner().invoke(app, ["bench", "synth", *arguments])
    assert result.exit_code == 0 and "is not there" in result.output


@pytest.mark.parametrize("option", ["dtype", "network", "peer"])
def test_what_is_none_is_named(option: str) -> None:
    result = CliRunner().invoke(app, ["bench", "synth", f"--{option}", "int4"])
    assert result.exit_code != 0 and "int4" in str(result.exception) + result.output


def test_claims_of_networks_have_contests() -> None:
    source = "perf/results/synth.jsonl"
    claims = [claim for claim in CLAIMS if claim.source == source]
    assert claims and all((claim.subject, claim.against) in CONTESTS for claim in claims)


def test_a_contest_is_a_ratio(monkeypatch: pytest.MonkeyPatch, steady_clock: FakeClock) -> None:
    assert NetworkSubject("lpcnet", "int8", "real time")() > 0
    with pytest.raises(MissingDependency, match="no bench environment"):
        NetworkSubject("lpcnet", "int8", "tvm")
