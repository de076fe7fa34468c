"""Reports as people see them: printed, by rich, and in a notebook."""

import html
import re
from io import StringIO

import pytest
from rich.console import Console

from sparsejit.prune import LayerSparsity, LayerTime, SparsityReport
from sparsejit.prune.latency import Latency, LatencyTable

TIME = LayerTime("f32-permute", 0.9, 400.0, 450.0, 290.4, 29.1)
LAYERS = [
    LayerSparsity("gru.weight_hh_l0[0]", (256, 256), 3, "1x8", 6554, 65536, 820, 8192, time)
    for time in (None, TIME)
]
UNTIMED, TIMED = SparsityReport(LAYERS[:1]), SparsityReport(LAYERS[1:], in_turn_us=0.512)
LATENCIES = LatencyTable((Latency("out.weight", "1x8", 0.9, 0.123, "broadcast", 99),), "int8", "x")


def without_padding(text: str) -> str:
    """The text without spaces at the ends of its lines, and without lines after the last."""
    return "\n".join(map(str.rstrip, text.splitlines())).rstrip("\n")


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (UNTIMED, ["gru.weight_hh_l0[0]", "256 x 256", "6,554", "10.00%", "Sparsity"]),
        (TIMED, ["f32-permute", "450", "effective", "all in turn 0.512 us", "Sparsity"]),
        (LATENCIES, ["out.weight", "123", "90%", "1x8, int8"]),
    ],
    ids=["report", "timed report", "latencies"],
)
def test_print_notebook_and_rich_show_the_same_table(shown: object, words: list[str]) -> None:
    text = str(shown)
    for word in words:
        assert word in text
    assert "\x1b" not in text and "LayerSparsity(" not in text
    console = Console(file=StringIO(), width=150, highlight=False)
    console.print(shown)
    assert without_padding(console.file.getvalue()) == text
    markup = shown._repr_html_()
    assert markup.startswith("<pre ") and "script" not in markup
    bare = html.unescape(re.sub(r"<[^>]*>", "", markup))
    assert without_padding(bare) == text
