"""What a compiled model loses: its layers and outputs beside float64, on data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsejit.api.output_error import ErrorSums
from sparsejit.api.shown import Shown, table_of
from sparsejit.api.variant import TiledGraph, Variant, lowered_variant
from sparsejit.ir.graph import Array
from sparsejit.ir.layer_scales import LayerScales
from sparsejit.passes.calibrated_layers import STORING, in_float32, keyed_layers

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class ValueAccuracy:
    """What one layer, or one output of the model, is off.

    Attributes:
        name: of the layer in the model, or of the output
        dtype: how the layer's weights are stored; empty for an output
        largest: the largest difference from float64, over the largest value
        mean: the root mean square of the difference, over that of the values
        float32: `largest` with all layers in float32
    """

    name: str
    dtype: str
    largest: float
    mean: float
    float32: float


@dataclass(frozen=True)
class Accuracy(Shown):
    """Errors of layers, what came before them included, and of outputs. Print it.

    Attributes:
        layers: those with weights, in order
        outputs: what the model gives
        elements: how many elements of data they are measured on
    """

    layers: tuple[ValueAccuracy, ...]
    outputs: tuple[ValueAccuracy, ...]
    elements: int

    @property
    def error(self) -> float:
        """The largest error of the worst output, of its largest value."""
        return max((each.largest for each in self.outputs), default=0.0)

    @property
    def line(self) -> str:
        """The errors of outputs, in words."""
        plain = max((each.float32 for each in self.outputs), default=0.0)
        count = f"{self.elements} element{'s' * (self.elements > 1)} of data"
        return (
            f"outputs are off by {self.error:.2g} of the largest at most, on {count}; "
            f"in float32 by {plain:.2g}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**asdict(self), "error": self.error}

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        table = table_of("", ("layer", "dtype"), ("largest error", "mean error", "in float32"))
        for each in (*self.layers, *self.outputs):
            name = each.name if each.dtype else f"output {each.name}"
            figures = (f"{number:.2g}" for number in (each.largest, each.mean, each.float32))
            table.add_row(Text(name), each.dtype, *figures)
        return Group(Text(self.line), table)


class ModelCall(NamedTuple):
    """A variant, the arrays of a call, and what the model gives for them."""

    variant: Variant
    inputs: Sequence[Array]
    results: Sequence[Array]


def accuracy_of(calls: Sequence[ModelCall], scales: Sequence[LayerScales]) -> Accuracy:
    """What these calls are off; `scales` are those that layers were stored by."""
    twins: dict[int, _Twins] = {}
    sums: list[_Sums] = []
    for call in calls:
        own = twins.setdefault(id(call.variant), _Twins(call.variant, scales))
        sums = sums or [_Sums() for _ in own.values]
        own.compare(call, sums)
    names = next(iter(twins.values()))
    outputs = len(names.graph.outputs)
    found = [
        one.named(*names_of) for one, names_of in zip(sums, names.described(), strict=True)
    ]
    return Accuracy(tuple(found[outputs:]), tuple(found[:outputs]), len(calls))


class _Sums:
    """Errors of one value, as compiled and in float32."""

    def __init__(self) -> None:
        self.short, self.plain = ErrorSums(), ErrorSums()

    def named(self, name: str, dtype: str) -> ValueAccuracy:
        short = self.short
        return ValueAccuracy(name, dtype, short.largest, short.mean, self.plain.largest)


class _Twins:
    """A variant with its layers' results as outputs, the same in float32, and in float64."""

    def __init__(self, variant: Variant, scales: Sequence[LayerScales]) -> None:
        self.graph, tile = min(variant.graphs, key=lambda each: each.tile or 1)
        self._tile, self._axes = tile or 1, variant.batch_axes
        self.layers = list(keyed_layers(self.graph).values())
        self.values = (*self.graph.outputs, *(node.outputs[0] for node in self.layers))
        watched = replace(self.graph, outputs=self.values, batch_axes=None)
        self._exact = in_float32(watched, scales)
        self._short, self._plain = (
            lowered_variant([TiledGraph(one, None)], variant.options, "twin", is_cached=False)
            for one in (watched, self._exact)
        )

    def described(self) -> Iterator[tuple[str, str]]:
        """The name of each value, and the dtype of a layer."""
        yield from ((value.origin.name, "") for value in self.graph.outputs)
        for node in self.layers:
            assert isinstance(node.op, STORING)
            yield node.outputs[0].origin.layer, node.op.dtype.value

    def compare(self, call: ModelCall, sums: Sequence[_Sums]) -> None:
        """Take in what one call is off, a tile at a time."""
        count = len(self.graph.outputs)
        for piece, inputs in self._pieces(call.inputs):
            exact = self._exact.evaluate(inputs)
            short, plain = (each.call.run(*inputs) for each in (self._short, self._plain))
            short[:count] = self._results(call.results, piece)
            for number, one in enumerate(sums):
                wanted, floats = exact[number], plain[number]
                if number < count and piece is not None:  # the rest of a tile is padding
                    wanted, floats = (each[: len(short[number])] for each in (wanted, floats))
                one.short.add(short[number], wanted)
                one.plain.add(floats, wanted)

    def _results(self, results: Sequence[Array], piece: slice | None) -> Sequence[Array]:
        if piece is None or self._axes is None:
            return results
        return [each[piece] for each in _batch_first(results, self._axes.outputs)]

    def _pieces(self, inputs: Sequence[Array]) -> Iterator[tuple[slice | None, list[Array]]]:
        """Which samples a tile has, and its inputs, the last sample again where it is not full."""
        if self._axes is None:
            yield None, list(inputs)
            return
        axes = self._axes.inputs
        moved = _batch_first(inputs, axes)
        pairs = list(zip(moved, axes, strict=True))
        samples = next(len(each) for each, axis in pairs if axis is not None)
        for start in range(0, samples, self._tile):
            places = np.minimum(np.arange(start, start + self._tile), samples - 1)
            rows = [x if axis is None else np.ascontiguousarray(x[places]) for x, axis in pairs]
            yield slice(start, start + self._tile), rows


def _batch_first(arrays: Sequence[Array], axes: Sequence[int | None]) -> list[Array]:
    pairs = zip(arrays, axes, strict=True)
    return [each if axis is None else np.moveaxis(each, axis, 0) for each, axis in pairs]
