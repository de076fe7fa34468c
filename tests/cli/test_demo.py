"""`sparsejit demo`, whole: what it writes and what it reports."""

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from fake_clock import TICK_NS, ticking
from headless_browser import OpenPage, chromium
from typer.testing import CliRunner
from whole_page import WholePage

import sparsejit.commands.demo as demo_command
from sparsejit.commands.cli import app
from sparsejit.voice.bundled import bundled_recording, bundled_utterance
from sparsejit.voice.features import log_mel
from sparsejit.voice.weights import VoiceWeights


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def report(folder: Path) -> dict:
    smaller = folder / "dense.safetensors"  # the bundled one would speak for half a minute
    VoiceWeights.random(hidden=32, density=1.0).save(smaller)
    with ticking(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_command, "DENSE", smaller)
        result = CliRunner().invoke(app, ["demo", "--json", "--out", str(folder)])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout[result.stdout.index("{") :])


def test_the_utterance_is_spoken(report: dict, folder: Path) -> None:
    audio, rate = soundfile.read(folder / "demo.wav", dtype="float32")
    asked = bundled_utterance().mel
    assert rate == 22_050 and len(audio) == 220 * asked.shape[1]
    spoken = log_mel(audio, rate)
    assert np.corrcoef(asked.ravel(), spoken.ravel())[0, 1] > 0.9
    assert (folder / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_every_layer_is_reported_with_its_peers(report: dict) -> None:
    assert [row["problem"] for row in report["layers"]] == ["recurrent", "dense", "output"]
    for row in report["layers"]:
        assert row["nnz"] <= 0.1 * row["M"] * row["N"]
        assert {"torch F.linear", "OpenBLAS sgemv"} <= row["speed_up"].keys()
        assert row["ns_min"] == TICK_NS and set(row["speed_up"].values()) == {1.0}


def test_the_sampler_is_timed_beside_torch(report: dict, folder: Path) -> None:
    """An utterance takes a tick, and so does one step of torch."""
    samples = soundfile.info(folder / "demo.wav").frames
    us = TICK_NS / 1e3 / samples
    found = report["synthesis"]
    assert (found["us_min"], found["us_torch"]) == (pytest.approx(us), TICK_NS / 1e3)
    assert found["real_time_factor"] == pytest.approx(1e6 / (22_050 * us))
    assert found["speed_up"] == pytest.approx(samples)


def test_gradual_pruning_beats_cutting_at_once(report: dict) -> None:
    assert report["prune"]["gradual"] < report["prune"]["one_shot"]


def test_the_recording_is_that_of_the_utterance() -> None:
    np.testing.assert_allclose(log_mel(bundled_recording()), bundled_utterance().mel, atol=1e-4)


@pytest.mark.usefixtures("report")
def test_the_page_plays_the_recording_and_what_was_spoken(folder: Path) -> None:
    html = (folder / "demo.html").read_text("utf-8")
    assert len(html) < 4_000_000
    page = WholePage(html)
    assert bundled_utterance().text in "".join(page.text)
    players = page.of("audio")
    sounds = [
        soundfile.read(io.BytesIO(base64.b64decode(player["src"].split(",")[1])), dtype="float32")
        for player in players
    ]
    assert [rate for _, rate in sounds] == 4 * [22_050]
    np.testing.assert_array_equal(sounds[0][0], bundled_recording())
    spoken, _ = soundfile.read(folder / "demo.wav", dtype="float32")
    np.testing.assert_allclose(sounds[2][0], spoken, atol=2**-15)  # formats round their own ways
    assert len(page.of("img")) == len(players)


@pytest.mark.usefixtures("report")
def test_the_page_fits_a_phone(folder: Path) -> None:
    with chromium() as browser:
        page = OpenPage(browser, folder / "demo.html", width=360)
        spoken = soundfile.info(folder / "demo.wav").frames
        samples = (len(bundled_recording()), spoken, spoken, spoken)
        assert page.durations() == pytest.approx([n / 22_050 for n in samples], abs=0.01)
        assert page.needed_width() <= page.width
        assert page.complaints == []
