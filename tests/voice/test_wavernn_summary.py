"""Displays of a voice: repr, print, rich, and in a notebook."""

import pytest
from fake_clock import TICK_NS
from rich.console import Console

from sparsejit.voice.speak.wavernn import WaveRNN

TITLE = "WaveRNN, 384 units, 5.8% of weights left, temperature 0.9, 22,050 Hz"
SIZES = {"recurrent": "1152 x 384", "dense": "256 x 384", "output": "256 x 256"}


@pytest.fixture(scope="module")
def voice() -> WaveRNN:
    return WaveRNN.from_pretrained()


def test_layers_are_those_of_the_sample_loop(voice: WaveRNN) -> None:
    assert [layer.layer for layer in voice.layers] == list(voice.loop.plans)
    for layer in voice.layers:
        assert layer.density == layer.nnz / layer.weights <= 0.1
        assert layer.predicted_ns > 0
        assert layer.candidates[0].kernel in layer.kernel


def test_repr_is_one_line(voice: WaveRNN) -> None:
    assert repr(voice) == f"<{TITLE}>"


def test_print_rich_and_a_notebook_show_a_table(voice: WaveRNN) -> None:
    console = Console(width=250, color_system=None)
    with console.capture() as capture:
        console.print(voice)
    assert "<audio" not in voice._repr_html_()
    for text in (str(voice), capture.get(), voice._repr_html_()):
        assert TITLE in text
        for layer in voice.layers:
            lines = text.splitlines()
            line = next(line for line in lines if line.startswith(f"{layer.layer} "))
            for part in (SIZES[layer.layer], f"{layer.density:.1%}", layer.kernel):
                assert part in line


@pytest.mark.usefixtures("steady_clock")
def test_it_explains_what_it_costs(voice: WaveRNN) -> None:
    assert voice.explain().whole_ns is None
    report = voice.explain(measure=True)
    assert report.whole_ns == TICK_NS / (20 * voice.hop_length)
    assert " times real time" in str(report) and TITLE in report.html()
