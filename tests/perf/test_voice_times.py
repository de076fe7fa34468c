"""What a sample of a voice costs, part by part: the bookkeeping, not the times."""

import json
from pathlib import Path

import numpy as np
import pytest
from fake_clock import FakeClock
from typer.testing import CliRunner

from sparsejit.commands.cli import app
from sparsejit.perf import voice_times
from sparsejit.perf.voice_times import sample_parts, time_voice
from sparsejit.voice.bundled import bundled_utterance
from sparsejit.voice.wavernn import WaveRNN
from sparsejit.voice.weights import VoiceWeights

PARTS = {"recurrent", "dense", "output", "gates", "draw", "signal"}


@pytest.fixture(scope="module")
def weights() -> VoiceWeights:
    return VoiceWeights.random(hidden=64)


def test_every_step_belongs_to_a_part(weights: VoiceWeights) -> None:
    steps = WaveRNN(weights, dtype="int8").loop.steps
    ns = [2.0**number for number in range(len(steps))]
    parts = {part.name: part for part in sample_parts(steps, ns)}
    assert parts.keys() == PARTS
    assert sum(part.ns for part in parts.values()) == sum(ns)
    assert sum(part.share for part in parts.values()) == pytest.approx(1)
    for step, taken in zip(steps, ns, strict=True):
        if step.facts.plan is not None:
            part = parts[step.origin.name]
            assert (part.ns, part.predicted_ns) == (taken, step.facts.predicted_ns)
    assert parts["gates"].predicted_ns is None


def test_parts_add_up_to_the_samples(
    weights: VoiceWeights, monkeypatch: pytest.MonkeyPatch, steady_clock: FakeClock
) -> None:
    """A sample's stamps are its time; with a clock that stands still between two looks."""
    monkeypatch.setattr(voice_times, "ROUNDS", 2)
    monkeypatch.setattr(voice_times, "torch_us", lambda weights: 50.0)
    found = time_voice(weights, bundled_utterance().mel, ["float32", "int8"])
    assert [one.dtype for one in found] == ["float32", "int8"]
    for one in found:
        assert {part.name for part in one.parts} == PARTS
        assert sum(part.share for part in one.parts) == pytest.approx(1)
        assert one.speed_up == pytest.approx(50.0 / one.us_median)
        assert one.us_min == one.us_median
    rows = 3 * 3 * weights.hidden_size  # of three tables, float32 and int8
    products = [one.weight_bytes - size * rows for one, size in zip(found, (4, 1), strict=True)]
    assert products[0] == 4 * products[1]


def test_the_command(tmp_path: Path, weights: VoiceWeights) -> None:
    voice = tmp_path / "own.safetensors"
    weights.save(voice)
    arguments = ["bench", "synth", "--voice", str(voice), "--dtype", "int8"]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert row["voice"] == "own" and row["dtype"] == "int8"
    assert {part["name"] for part in row["parts"]} == PARTS
    assert np.isfinite([row["us_min"], row["us_median"], row["us_torch"]]).all()
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0 and "times torch eager" in shown.stdout


def test_a_dtype_that_is_none_is_named() -> None:
    result = CliRunner().invoke(app, ["bench", "synth", "--dtype", "int4"])
    assert result.exit_code != 0 and "int4" in str(result.exception) + result.output
