"""How a voice shows itself: repr, print, rich, and in a notebook."""

import re

import pytest
from rich.console import Console

from sparsejit.voice.speak.wavernn import WaveRNN

TITLE = "WaveRNN, 384 units, 5.8% of weights left, temperature 0.9, 22,050 Hz"
SIZES = {"recurrent": "1152 x 384", "dense": "256 x 384", "output": "256 x 256"}


@pytest.fixture(scope="module")
def voice() -> WaveRNN:
    return WaveRNN.from_pretrained()


def test_layers_are_those_of_the_sample_loop(voice: WaveRNN) -> None:
    assert [layer.name for layer in voice.layers] == list(voice.loop.plans)
    for layer in voice.layers:
        assert layer.density == layer.nnz / (layer.rows * layer.columns) <= 0.1
        assert layer.predicted_ns > 0


def test_repr_is_one_line(voice: WaveRNN) -> None:
    assert repr(voice) == f"<{TITLE}>"


def test_print_and_rich_show_a_table(voice: WaveRNN) -> None:
    console = Console(width=120, color_system=None)
    with console.capture() as capture:
        console.print(voice)
    for text in (str(voice), capture.get()):
        assert TITLE in text
        for layer in voice.layers:
            (line,) = (line for line in text.splitlines() if f" {layer.name} " in line)
            for part in (SIZES[layer.name], f"{layer.density:.1%}", layer.kernel):
                assert part in line
            assert f"{layer.predicted_ns:,.0f}" in line


def test_a_notebook_shows_a_table_and_no_audio(voice: WaveRNN) -> None:
    html = voice._repr_html_()
    assert html.startswith(f"<table><caption>{TITLE}</caption><tr><th>layer</th>")
    assert "<audio" not in html
    rows = re.findall(r"<tr><td>(.*?)</td></tr>", html)
    assert [row.split("</td><td>") for row in rows] == [list(la.cells()) for la in voice.layers]
