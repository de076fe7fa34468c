"""The page of the demo: whole, by itself, escaped, and with each take to be heard and seen."""

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from headless_browser import OpenPage, chromium
from PIL import Image
from whole_page import WholePage

from sparsejit import __version__
from sparsejit.perf.kernels import PeerTime, Row
from sparsejit.perf.voice.listening_page import LAYER_COLUMNS, ListeningPage, SampleTime
from sparsejit.perf.voice.sound_page import (
    RANGE_DB,
    SoundPage,
    Take,
    power_db,
    scale_colours,
    spectrogram_png,
)

HOSTILE = """<script>alert("&'1'")</script>""" + "unbroken" * 20
RATE = 22_050


def tone(hertz: float, seconds: float, rate: int = RATE) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate).astype(np.float32)


def layer(name: str, ns: float) -> Row:
    """A measured kernel, two times as fast as torch and four times as the slower BLAS."""
    peers = {"torch F.linear": 2 * ns, "OpenBLAS sgemv": 3 * ns, "torch.mv": 4 * ns}
    return Row(
        problem=name,
        strategy="mixed",
        dtype="float32",
        isa="avx512",
        M=512,
        N=256,
        nnz=13_107,
        ns_min=ns,
        ns_median=ns,
        effective_gflops=500.0,
        real_gflops=50.0,
        code_bytes=2048,
        pool_bytes=4096,
        compile_ms=10.0,
        max_abs_error=0.0,
        relative_error=0.0,
        auto=True,
        ns_by_place=(ns,),
        ns_python=ns,
        limit="L2",
        share_of_limit=0.75,
        peers=tuple(PeerTime(one, "native", time, time, 0.0) for one, time in peers.items()),
    )


PAGE = ListeningPage(
    text=f"words {HOSTILE}",
    source=f"source {HOSTILE}",
    machine=f"machine {HOSTILE}",
    takes=(
        Take(f"Recording {HOSTILE}", f"note {HOSTILE}", tone(440, 1.5), RATE),
        Take("Dense", "In torch.", 1.3 * tone(440, 1.25), RATE),
        Take("Pruned", "Compiled.", tone(880, 0.75, 16_000), 16_000),
    ),
    layers=(layer(f"first {HOSTILE}", 1500.0), layer("second", 500.0)),
    samplers=(
        SampleTime("ours", 4.0),
        SampleTime("in int8", 2.5),
        SampleTime(f"torch {HOSTILE}", 120.0),
    ),
    timed=f"timed {HOSTILE}",
    sample_rate=RATE,
    density=0.1,
)


SOUNDS = SoundPage(
    heading=f"heading {HOSTILE}",
    lead=f"lead {HOSTILE}",
    figures=((f"number {HOSTILE}", f"figure {HOSTILE}"),),
    machine=PAGE.machine,
    source=PAGE.source,
    takes=PAGE.takes,
    maker=f"maker {HOSTILE}",
)


def test_others_are_faster_or_slower_than_ours() -> None:
    text = " ".join(WholePage(PAGE.html()).text)
    assert re.search(r"faster still: in int8\s+1\.6\W", text)
    assert re.search(r"as fast as torch .*?\s+30\W", text)


@pytest.fixture(scope="module")
def whole() -> WholePage:
    return WholePage(PAGE.html())


def inside(url: str | None) -> bytes:
    assert url is not None
    return base64.b64decode(url.partition("base64,")[2], validate=True)


def test_the_page_needs_nothing_else(whole: WholePage) -> None:
    html = PAGE.html()
    assert html.startswith("<!doctype html>")
    assert "script" not in whole.tags
    links = [value or "" for name, value in whole.attributes if name in {"src", "href", "srcset"}]
    assert len(links) == 7 and all(link.startswith("data:") for link in links)
    assert not re.search(r"https?:|url\(|@import", html)
    assert not {"iframe", "object", "embed"}.intersection(whole.tags)
    (policy,) = (m["content"] for m in whole.of("meta") if "http-equiv" in m)
    assert "default-src 'none'" in policy
    assert html == PAGE.html()


def test_the_title_says_which_project_and_version(whole: WholePage) -> None:
    title = "".join(whole.text).split("real time, on one core")[0]
    assert f"sparsejit {__version__}: " in title


def test_text_is_escaped(whole: WholePage) -> None:
    text = "".join(whole.text)
    for start in ("words", "source", "machine", "Recording", "note", "first", "torch", "timed"):
        assert f"{start} {HOSTILE}" in text
    (said,) = {audio["aria-label"] for audio in whole.of("audio") if HOSTILE in audio["aria-label"]}
    assert said == f"Recording {HOSTILE}, 1.5 seconds"


def test_each_take_can_be_heard(whole: WholePage) -> None:
    players = whole.of("audio")
    assert len(players) == len(PAGE.takes)
    for player, take in zip(players, PAGE.takes, strict=True):
        assert "controls" in player
        assert player["src"].startswith("data:audio/flac;base64,")
        samples, rate = soundfile.read(io.BytesIO(inside(player["src"])), dtype="float32")
        assert rate == take.sample_rate
        np.testing.assert_allclose(samples, np.clip(take.samples, -1, 1), atol=2**-15)


def test_each_take_can_be_seen(whole: WholePage) -> None:
    pictures = whole.of("img")
    assert len(pictures) == len(PAGE.takes)
    for picture, take in zip(pictures, PAGE.takes, strict=True):
        image = Image.open(io.BytesIO(inside(picture["src"])))
        assert image.size == (int(picture["width"]), int(picture["height"]))
        assert image.width == np.ceil(len(take.samples) / (take.sample_rate // 100))
        assert take.name in picture["alt"] and f"{take.seconds:.1f} seconds" in picture["alt"]


def test_tables_have_headers_and_every_cell(whole: WholePage) -> None:
    assert all(header["scope"] in {"col", "row"} for header in whole.of("th"))
    assert len(whole.of("table")) == 3
    text = " ".join("".join(whole.text).split())
    for row in PAGE.layers:
        for heading, cell in LAYER_COLUMNS:
            assert heading in text and cell(row) in text
    assert [cell(PAGE.layers[1]) for _, cell in LAYER_COLUMNS][-5:] == [
        *("500", "50.0", "75% L2", "2.0x", "3.0x")
    ]


def test_the_parts_add_up_to_a_sample() -> None:
    parts = PAGE.parts()
    assert [part.name for part in parts] == [PAGE.layers[0].problem, "second", "the rest"]
    assert [part.us for part in parts] == [1.5, 0.5, 2.0]


def test_layers_that_take_longer_alone_leave_no_rest() -> None:
    page = replace(PAGE, samplers=(SampleTime("ours", 1.0), SampleTime("torch", 120.0)))
    assert [part.us for part in page.parts()] == [1.5, 0.5]
    WholePage(page.html())


def test_a_spectrogram_has_its_tone_where_the_axis_says() -> None:
    db = power_db(tone(2000, 1.0), RATE)
    assert db.shape[1] == 101  # of 220 samples each, the last not whole
    assert db[:, 50].argmax() / db.shape[0] == pytest.approx(2000 / 8000, abs=0.01)
    image = np.asarray(Image.open(io.BytesIO(spectrogram_png(db, float(db.max())))))
    assert image.shape == db.shape
    assert image[:, 50].argmax() / db.shape[0] == pytest.approx(1 - 2000 / 8000, abs=0.01)
    assert image.max() == 63 and image.min() == 0
    assert db[-1, 50] < db.max() - RANGE_DB


def test_the_scale_runs_from_dark_to_bright() -> None:
    brightness = [sum(bytes.fromhex(colour[1:])) for colour in scale_colours()]
    assert brightness == sorted(brightness) and brightness[0] < 30 < 600 < brightness[-1]


def test_a_page_of_sounds_alone() -> None:
    whole = WholePage(SOUNDS.html())
    text = "".join(whole.text)
    for start in ("heading", "lead", "number", "figure", "machine", "source", "note", "maker"):
        assert f"{start} {HOSTILE}" in text
    assert "script" not in whole.tags and not whole.of("table")
    assert len(whole.of("audio")) == len(whole.of("img")) == len(SOUNDS.takes)


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("shown", [PAGE, SOUNDS], ids=["demo", "sounds"])
def test_in_a_browser(tmp_path: Path, width: int, shown: ListeningPage | SoundPage) -> None:
    path = tmp_path / "demo.html"
    path.write_text(shown.html(), "utf-8")
    with chromium() as browser:
        page = OpenPage(browser, path, width)
        assert page.durations() == pytest.approx([take.seconds for take in PAGE.takes], abs=0.01)
        page.open_details()
        assert page.needed_width() <= width
        assert all(size > 0 for sizes in page.picture_sizes() for size in sizes)
        assert page.complaints == []
        assert {url.partition(":")[0] for url in page.requests} <= {"file", "data"}
