"""The result of `sparsejit.shrink`: the compiled model, its source, and the cost of each layer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsejit.api.model import CompiledModel
from sparsejit.api.scales import Scales
from sparsejit.api.shown import Shown
from sparsejit.errors import InvalidInput
from sparsejit.files import atomic_path
from sparsejit.prune.shrink.sources import suffix_of

if TYPE_CHECKING:
    from rich.console import RenderableType

_COSTLIEST = 3


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
class FrontierPoint:
    """A choice of zeros and storage for all layers.

    Attributes:
        ns: predicted nanoseconds of a call
        error: the error of the outputs, as `Shrunk.error`
    """

    ns: float
    error: float


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
        """The dense time over the time."""
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
        few = f"{names}: too few rows in the data for zeros; give more data"
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
        from sparsejit.prune.shrink.shrunk_page import as_table

        return as_table(self)

    def html(self) -> str:
        """One self-contained page."""
        from sparsejit.prune.shrink.shrunk_page import as_page

        return as_page(self)


def microseconds(ns: float, digits: int = 4) -> str:
    """Nanoseconds as microseconds, to that many digits or to whole ones."""
    us = ns / 1e3
    return f"{us:,.0f}" if us >= 10 ** (digits - 1) else f"{us:.{digits}g}"
