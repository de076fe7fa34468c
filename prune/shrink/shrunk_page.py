"""The result of `sparsejit.shrink` as a table for terminals, and as a self-contained web page."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from sparsejit.api.report_page import Bands, Column, html_page, html_table
from sparsejit.machine.target import Target
from sparsejit.prune.shrink.frontier_picture import PICTURE_STYLE, frontier_picture
from sparsejit.prune.shrink.shrunk import Shrunk, microseconds

if TYPE_CHECKING:
    from rich.console import RenderableType

_LAYER = Column("layer", lambda layer: layer.name, True)
_ZEROS = Column("zeros", lambda layer: f"{layer.zeros:.0%}")
_NS = Column("us", lambda layer: microseconds(layer.ns, 3))
_LAYERS = (
    _LAYER,
    Column("weights", lambda layer: "x".join(map(str, layer.shape)), True),
    Column("pattern", lambda layer: layer.pattern, True),
    Column("storage", lambda layer: layer.storage, True),
    _ZEROS,
    Column("error", lambda layer: f"{layer.error:.2%}"),
    Column("dense us", lambda layer: microseconds(layer.dense_ns, 3)),
    _NS,
)


def as_table(shrunk: Shrunk) -> RenderableType:
    """The layers for a terminal, and the gain below."""
    return Bands(_LAYERS, shrunk.layers, shrunk.lines, "box")


def as_page(shrunk: Shrunk) -> str:
    """HTML that needs nothing else: the gain, the frontier, the peers and the layers."""
    facts = *shrunk.lines, f"on {Target.detect().model}"
    parts = (
        ("Error against time", frontier_picture(shrunk)),
        ("Other engines on the same core, in the same run", _peers(shrunk)),
        ("The layers that cost most now", _costliest(shrunk)),
        ("All layers that may have zeros", html_table(_LAYERS, shrunk.layers)),
    )
    body = "".join(f"<h2>{escape(heading)}</h2>{html}" for heading, html in parts if html)
    note = (
        "Times of layers, and their errors, each as if no other layer had changed, are predicted. "
        "The error and the times of the whole model are measured."
    )
    body += f"<p>{escape(note)}</p>"
    return html_page("sparsejit shrink", "A model made faster by zeros", facts, body, PICTURE_STYLE)


def _peers(shrunk: Shrunk) -> str:
    """A table of ours and the peers; empty without peers."""
    if not shrunk.peers:
        return ""
    names = ["sparsejit, dense"] if shrunk.is_dense else ["sparsejit, dense", "sparsejit, shrunk"]
    rows = [(name, "", ns) for name, ns in zip(names, (shrunk.dense_ns, shrunk.ns), strict=False)]
    rows += [(peer.name, peer.version, peer.ns) for peer in shrunk.peers]
    columns = (
        Column("engine", lambda row: row[0], True),
        Column("version", lambda row: row[1], True),
        Column("us", lambda row: microseconds(row[2])),
        Column("times the result's time", lambda row: f"{row[2] / shrunk.ns:.2f}"),
    )
    return html_table(columns, rows)


def _costliest(shrunk: Shrunk) -> str:
    """A table of a few layers, and their shares of the predicted time of a call where known."""
    whole = shrunk.predicted_ns
    share = Column("share", lambda layer: f"{layer.ns / whole:.0%}" if whole else "")
    return html_table((_LAYER, _NS, share, _ZEROS), shrunk.costliest)
