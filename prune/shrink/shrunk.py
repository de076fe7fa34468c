"""The result of `sparsejit.shrink`, and a forecast of its speed.

    Shrunk             the compiled model, its source, and the cost of each layer; shown as a table
                       in terminals, and as a self-contained web page
    predicted_speeds   the speeds that `shrink` is predicted to reach with given shares of zeros,
                       without data
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsejit.api.models.compiled_model import CompiledModel
from sparsejit.api.models.compiler import ModelCompiler
from sparsejit.api.options import ModelSettings
from sparsejit.api.quantising.scales import Scales
from sparsejit.api.quantising.seen_inputs import ExampleCall
from sparsejit.api.reports.report_page import Bands, Column, html_page, html_table
from sparsejit.api.reports.shown import Shown
from sparsejit.errors import InvalidInput
from sparsejit.files import atomic_path
from sparsejit.machine.target import Target
from sparsejit.passes.default import folded
from sparsejit.passes.quantised_layers import quantised_layers
from sparsejit.prune.shrink.frontier_picture import (
    PICTURE_STYLE,
    FrontierPoint,
    frontier_picture,
    microseconds,
)
from sparsejit.prune.shrink.layers import DENSE, shrink_layers
from sparsejit.prune.shrink.layers_of_source import source_layers
from sparsejit.prune.shrink.sources import Source, suffix_of
from sparsejit.prune.shrink.times import LayerTimes

if TYPE_CHECKING:
    from rich.console import RenderableType

_COSTLIEST = 3
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
_NOTE = (
    "Times of layers, and their errors, each as if no other layer had changed, are predicted. "
    "The error and the times of the whole model are measured."
)


@dataclass(frozen=True)
class ShrunkLayer:
    """Zeros, storage and predicted cost of one layer.

    Attributes:
        name: the layer's name in `explain()`
        shape: the shape of its weights, (out, in, *kernel)
        zeros: the share of weights that are zero
        pattern: the name of the pattern of its zeros, as `Pruner` has it
        storage: the dtype of its weights: "float32" or "int8"
        error: the predicted error of the outputs if no other layer changed
        dense_ns: predicted nanoseconds of a run of the dense layer
        ns: predicted nanoseconds of a run of the shrunk layer
    """

    name: str
    shape: tuple[int, ...]
    zeros: float
    pattern: str
    storage: str
    error: float
    dense_ns: float
    ns: float


@dataclass(frozen=True)
class EngineTime:
    """The time of another engine for the dense model.

    Attributes:
        name: the engine's name, as `sparsejit bench MODEL` has it
        version: the engine's version
        ns: measured nanoseconds of a call
    """

    name: str
    version: str
    ns: float


@dataclass(frozen=True, eq=False)
class Shrunk(Shown):
    """A model that was shrunk; call `model`.

    Attributes:
        model: the compiled result
        source: a copy of the given model with the new weights; for a file an onnx.ModelProto, with
            QuantizeLinear and DequantizeLinear around layers in int8
        layers: the layers that may have zeros, in order
        error: the root mean square of the outputs' errors over the root mean square of the outputs,
            on the elements of the data that weights were not fitted to
        loss: the metric's loss on all the data; None without a metric
        dense_ns: measured nanoseconds of a call of the dense model
        ns: measured nanoseconds of a call of the result, in the same run
        is_dense: whether nothing was gained within the budget, so that `model` is the dense one
        frontier: the choices that no other beats in predicted time and predicted error, some of
            them, by rising time
        tried: the choices that were carried out, with their measured errors, the last one returned
        peers: other engines' times for the dense model, the fastest first, in the run of `dense_ns`
            and `ns`; the command `sparsejit shrink` measures them
        scales: the storage of the layers, as `compile(source, ..., dtype=scales)` takes it for a
            torch model; None where all are in float32
        left_out: the layers that stay without zeros since the data has too few rows for them
    """

    model: CompiledModel
    source: Any
    layers: tuple[ShrunkLayer, ...]
    error: float
    loss: float | None
    dense_ns: float
    ns: float
    is_dense: bool
    frontier: tuple[FrontierPoint, ...]
    tried: tuple[FrontierPoint, ...]
    peers: tuple[EngineTime, ...] = ()
    scales: Scales | None = None
    left_out: tuple[str, ...] = ()

    @property
    def speed(self) -> float:
        """Measured speed-up: the dense model's time over the shrunk model's."""
        return self.dense_ns / self.ns

    @property
    def line(self) -> str:
        """The gain in a sentence."""
        if self.is_dense:
            return "no zeros: the budget allows none that make this model faster; it stays dense"
        lost = "" if self.loss is None else f", {self.loss:.3g} of the metric lost"
        return (
            f"{self.speed:.2f} times as fast as dense ({microseconds(self.ns)} us, "
            f"{microseconds(self.dense_ns)}), outputs off by {self.error:.2%}{lost}"
        )

    @property
    def lines(self) -> tuple[str, ...]:
        """`line`, and a line for each of the other engines."""
        others = (
            f"{peer.ns / self.ns:.2f} times as fast as the dense model in {peer.name} "
            f"{peer.version} ({microseconds(peer.ns)} us)"
            for peer in self.peers
        )
        names = ", ".join(self.left_out)
        few = f"{names}: no further zeros, for which the data has too few rows; give more samples"
        return self.line, *others, *([few] if names else [])

    @property
    def predicted_ns(self) -> float | None:
        """Predicted nanoseconds of a call of the result; None where nothing was predicted."""
        points = self.frontier if self.is_dense else self.tried
        return points[-1].ns if points else None

    @property
    def costliest(self) -> tuple[ShrunkLayer, ...]:
        """The three layers that take longest now, the longest first."""
        return tuple(sorted(self.layers, key=lambda layer: layer.ns, reverse=True)[:_COSTLIEST])

    def save(self, path: str | Path) -> None:
        """Write the source with its new weights: .onnx, .pt2, or a module's state (.safetensors).

        Raises InvalidInput for another kind of path.
        """
        wanted = suffix_of(self.source)
        if Path(path).suffix != wanted:
            raise InvalidInput(f"{path} is no {wanted} path; name the file so")
        with atomic_path(path) as temporary:
            if wanted == ".onnx":
                import onnx

                onnx.save(self.source, str(temporary))
            elif wanted == ".pt2":
                import torch

                with open(temporary, "wb") as file:
                    torch.export.save(self.source, file)
            else:
                from safetensors.torch import save_model

                save_model(self.source, str(temporary))

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            **{name: getattr(self, name) for name in ("error", "loss", "dense_ns", "ns")},
            "speed": self.speed,
            "is_dense": self.is_dense,
            "predicted_ns": self.predicted_ns,
            "left_out": list(self.left_out),
            "costliest": [layer.name for layer in self.costliest],
            **{
                name: [vars(each) for each in getattr(self, name)]
                for name in ("layers", "frontier", "tried", "peers")
            },
        }

    def __rich__(self) -> RenderableType:
        return Bands(_LAYERS, self.layers, self.lines, "box")

    def html(self) -> str:
        """One self-contained page: the gain, the frontier, the peers and the layers."""
        facts = *self.lines, f"on {Target.detect().model}"
        returned = None if self.is_dense or not self.tried else self.tried[-1]
        parts = (
            ("Error against time", frontier_picture(self.frontier, self.tried, returned)),
            ("Other engines on the same core, in the same run", self._peers_table()),
            ("The layers that cost most now", self._costliest_table()),
            ("All layers that may have zeros", html_table(_LAYERS, self.layers)),
        )
        body = "".join(f"<h2>{escape(heading)}</h2>{html}" for heading, html in parts if html)
        body += f"<p>{escape(_NOTE)}</p>"
        heading = "A model made faster by zeros"
        return html_page("sparsejit shrink", heading, facts, body, PICTURE_STYLE)

    def _peers_table(self) -> str:
        """A table of ours and the peers; empty without peers."""
        if not self.peers:
            return ""
        names = ["sparsejit, dense"] if self.is_dense else ["sparsejit, dense", "sparsejit, shrunk"]
        rows = [(name, "", ns) for name, ns in zip(names, (self.dense_ns, self.ns), strict=False)]
        rows += [(peer.name, peer.version, peer.ns) for peer in self.peers]
        columns = (
            Column("engine", lambda row: row[0], True),
            Column("version", lambda row: row[1], True),
            Column("us", lambda row: microseconds(row[2])),
            Column("times the result's time", lambda row: f"{row[2] / self.ns:.2f}"),
        )
        return html_table(columns, rows)

    def _costliest_table(self) -> str:
        """A table of a few layers, and their shares of the predicted time of a call where known."""
        whole = self.predicted_ns
        share = Column("share", lambda layer: f"{layer.ns / whole:.0%}" if whole else "")
        return html_table((_LAYER, _NS, share, _ZEROS), self.costliest)


FORECAST_AMOUNTS = (0.5, 0.75)
# A smaller gain is within the error of predictions.
_LEAST_SPEED = 1.05
# Times of more weights take longer to predict than a forecast is worth.
_MOST_WEIGHTS = 6_000_000


def predicted_speeds(
    model: Any, call: ExampleCall, constants: Mapping[str, Any], threads: int
) -> dict[float, float]:
    """Predicted speed-up, by the share of zeros in every layer that `shrink` changes.

    The times are the planner's, for a call of these shapes. Empty for models without such layers,
    with little to gain, or with times that take long to predict. Raises as `compile` does.
    """
    settings = ModelSettings("native", threads, tune=False, exact=False)
    compiler = ModelCompiler(model, True, False, None, constants, None, "float32", settings)
    raw = compiler.read(call).graph
    graph = folded(quantised_layers(raw))
    found = shrink_layers(graph)
    if not found or sum(layer.weights.type.size for layer in found) > _MOST_WEIGHTS:
        return {}
    layers = [each.layer for each in source_layers(raw, found, graph, Source(model))]
    times = LayerTimes(graph, layers, {DENSE.dtype: "float32"}, compiler.options)
    dense, *totals = (times.total(DENSE, amount) for amount in (0.0, *FORECAST_AMOUNTS))
    speeds = {
        amount: float(dense / total)
        for amount, total in zip(FORECAST_AMOUNTS, totals, strict=True)
    }
    return speeds if max(speeds.values()) >= _LEAST_SPEED else {}
