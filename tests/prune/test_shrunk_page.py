"""The result of `shrink` as a page: its figures, its picture, and nothing from elsewhere."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import pytest
from whole_page import WholePage

from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.prune.shrink.frontier_picture import FrontierPoint
from sparsejit.prune.shrink.shrunk import EngineTime, Shrunk, ShrunkLayer

HOSTILE = '<b>"net" & co</b>'


def layer(name: str, ns: float) -> ShrunkLayer:
    return ShrunkLayer(name, (64, 32, 3), 0.55, "unstructured", "float32", 0.02, 2 * ns, ns)


FALLING = [FrontierPoint(1e5 * n, 0.3 / 4**n) for n in range(2, 8)]
FRONTIER = (*FALLING, FrontierPoint(1e6, 1e-6))
PEER = EngineTime("onnxruntime", "1.30.0", 1.2e6)
SHRUNK = Shrunk(
    cast(CompiledModel, None),
    None,
    (layer("small", 10.0), layer(HOSTILE, 2e5), layer("middle", 5e4), layer("large", 1e5)),
    *(0.012, None, 8e5, 4e5, False, FRONTIER),
    (FrontierPoint(3e5, 0.05), FrontierPoint(5e5, 0.012)),
    (PEER,),
)


def test_a_page_is_whole_and_needs_nothing_else() -> None:
    html = SHRUNK.html()
    page = WholePage(html)
    assert not {"link", "img", "iframe", "object", "script"}.intersection(page.tags)
    assert "url(" not in html and "@import" not in html and "http" not in html
    assert HOSTILE in page.text and "prefers-color-scheme: dark" in html


def test_a_page_says_the_gain_the_peers_and_the_costliest_layers() -> None:
    text = WholePage(SHRUNK.html()).text
    assert SHRUNK.line in text and "2.00 times as fast as dense" in SHRUNK.line
    line = "3.00 times as fast as the dense model in onnxruntime 1.30.0 (1,200 us)"
    assert line in text and line in str(SHRUNK)
    peers = text[text.index("engine") : text.index("The layers that cost most now")]
    assert peers[4:] == [
        *("sparsejit, dense", "800", "2.00"),
        *("sparsejit, shrunk", "400", "1.00"),
        *("onnxruntime", "1.30.0", "1,200", "3.00"),
    ]
    costliest = text[text.index("The layers that cost most now") + 1 :]
    assert costliest[4:16] == [
        *(HOSTILE, "200", "40%", "55%"),
        *("large", "100", "20%", "55%"),
        *("middle", "50", "10%", "55%"),
    ]
    assert text[text.index("small") :][:8] == [
        *("small", "64x32x3", "unstructured", "float32", "55%", "2.00%", "0.02", "0.01")
    ]


def circles(page: WholePage) -> list[tuple[str | None, float, float]]:
    return [(x["class"], float(x["cx"] or 0), float(x["cy"] or 0)) for x in page.of("circle")]


def test_the_picture_has_the_frontier_and_the_tried_choices_to_scale() -> None:
    page = WholePage(SHRUNK.html())
    (line,) = page.of("polyline")
    points = [tuple(map(float, each.split(","))) for each in (line["points"] or "").split()]
    shown = [point for point in FRONTIER if point.error >= 1e-4]
    assert len(points) == len(shown) < len(FRONTIER)  # dense has no error: a line of its own
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert [y for _, y in points] == sorted(y for _, y in points)  # downwards on the page
    steps = [after[1] - before[1] for before, after in pairwise(points)]
    assert max(steps) - min(steps) < 0.3  # errors by their logarithms
    (kind, x, y), (last, *returned) = circles(page)
    assert (kind, last) == ("tried", "returned")
    assert x < returned[0] and y < returned[1]
    assert "returned: 1.20% at 500 us" in page.text and "ms" not in page.text[-1]
    assert "predicted time, ms" in page.text and {"1%", "10%", "0.6"} <= set(page.text)


def test_a_model_that_stays_dense_has_no_returned_point() -> None:
    dense = replace(SHRUNK, is_dense=True, error=0.0, ns=8e5, peers=())
    page = WholePage(dense.html())
    assert [kind for kind, *_ in circles(page)] == ["tried", "tried"]
    assert any("the dense model was returned" in each for each in page.text)
    assert "engine" not in page.text and dense.predicted_ns == 1e6
    bare = replace(dense, tried=(), frontier=())
    assert "svg" not in WholePage(bare.html()).tags and bare.predicted_ns is None
    assert "sparsejit, shrunk" not in WholePage(replace(dense, peers=(PEER,)).html()).text


@pytest.mark.parametrize("error", [0.0, 1e-9, 1.0, 50.0])
def test_a_picture_of_one_point_is_whole(error: float) -> None:
    point = FrontierPoint(12.5, error)
    page = WholePage(replace(SHRUNK, frontier=(point,), tried=(point,)).html())
    assert "svg" in page.tags and "nan" not in " ".join(page.text)


def test_json_holds_all_that_the_page_shows() -> None:
    found: dict[str, Any] = json.loads(json.dumps(SHRUNK.as_dict()))
    assert found["peers"] == [{"name": "onnxruntime", "version": "1.30.0", "ns": 1.2e6}]
    assert found["costliest"] == [HOSTILE, "large", "middle"] and found["predicted_ns"] == 5e5
    assert len(found["frontier"]) == 7 and found["tried"][-1] == {"ns": 5e5, "error": 0.012}
