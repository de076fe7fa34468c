"""Accuracy of a compiled model: errors of its layers and outputs against float64, on data.

    ErrorSums, OutputErrors    the error of values against exact values, as one number
    Accuracy                   the errors of layers and outputs
    accuracy_of                the errors on some calls
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sparsejit.api.models.variant import TiledGraph, Variant, lowered_variant
from sparsejit.api.reports.shown import Shown, counted, table_of
from sparsejit.ir.layer_scales import LayerScales
from sparsejit.ir.values import Array
from sparsejit.passes.calibrated_layers import STORING, in_float32, keyed_layers

if TYPE_CHECKING:
    from rich.console import RenderableType

class ErrorSums:
    """The error of one value, over several arrays of it.

    Attributes:
        largest: the largest difference, over the largest exact value
        mean: the root mean square of the difference, over the root mean square of the exact values

    Where the exact values are whole numbers or bool, both are the share of elements that differ.
    """

    def __init__(self) -> None:
        self._most_off = self._most = self._squares_off = self._squares = 0.0
        self._wrong = self._count = 0

    def add(self, found: Array, exact: Array) -> None:
        """Add an array and its exact values."""
        if exact.dtype.kind != "f":
            self._wrong += int(np.count_nonzero(found != exact))
            self._count += exact.size
            return
        exact = exact.astype(np.float64, copy=False)
        with np.errstate(invalid="ignore"):
            off = np.where(found == exact, 0.0, found - exact)  # equal infinities are no error
        finite = exact[np.isfinite(exact)]
        self._most_off = float(np.fmax(self._most_off, np.abs(off).max(initial=0.0)))
        if np.isnan(off).any():
            self._most_off = float("inf")
        self._most = max(self._most, float(np.abs(finite).max(initial=0.0)))
        self._squares_off += float(np.square(off).sum())
        self._squares += float(np.square(finite).sum())

    @property
    def largest(self) -> float:
        return self._wrong / self._count if self._count else self._most_off / (self._most or 1.0)

    @property
    def mean(self) -> float:
        if self._count:
            return self._wrong / self._count
        return float(np.sqrt(self._squares_off / (self._squares or 1.0)))


class OutputErrors:
    """The errors of a model's outputs, over several elements of the data."""

    def __init__(self) -> None:
        self._sums: list[ErrorSums] = []

    def add(self, found: Sequence[Array], exact: Sequence[Array]) -> None:
        """Add the outputs of an element, and the exact ones."""
        self._sums = self._sums or [ErrorSums() for _ in exact]
        for one, *pair in zip(self._sums, found, exact, strict=True):
            one.add(*pair)

    @property
    def largest(self) -> float:
        """The largest error of the worst output."""
        return max((one.largest for one in self._sums), default=0.0)

    @property
    def mean(self) -> float:
        """The mean error of the worst output."""
        return max((one.mean for one in self._sums), default=0.0)


def output_error(found: Sequence[Sequence[Array]], exact: Sequence[Sequence[Array]]) -> float:
    """Return the largest error of the worst output.

    Both arguments have a list of outputs for each element of the data.
    """
    return _errors(found, exact).largest


def mean_output_error(found: Sequence[Sequence[Array]], exact: Sequence[Sequence[Array]]) -> float:
    """Return the mean error of the worst output; the arguments are as in `output_error`."""
    return _errors(found, exact).mean


def _errors(found: Sequence[Sequence[Array]], exact: Sequence[Sequence[Array]]) -> OutputErrors:
    errors = OutputErrors()
    for pair in zip(found, exact, strict=True):
        errors.add(*pair)
    return errors


@dataclass(frozen=True)
class ValueAccuracy:
    """Errors of one layer, or of one output of the model.

    Attributes:
        name: the name of the layer in the model, or of the output
        dtype: the dtype in which the layer's weights are stored; empty for an output
        largest: the largest difference from float64, over the largest value
        mean: the root mean square of the difference, over the root mean square of the values
        float32: `largest` with all layers in float32
    """

    name: str
    dtype: str
    largest: float
    mean: float
    float32: float


@dataclass(frozen=True)
class Accuracy(Shown):
    """Errors of layers, which include the errors of the layers before them, and of outputs.

    `print` shows a table.

    Attributes:
        layers: the layers with weights, in order
        outputs: the outputs of the model
        elements: the number of elements of data that they are measured on
    """

    layers: tuple[ValueAccuracy, ...]
    outputs: tuple[ValueAccuracy, ...]
    elements: int

    @property
    def error(self) -> float:
        """The largest error of the worst output, as a share of its largest value."""
        return max((each.largest for each in self.outputs), default=0.0)

    @property
    def line(self) -> str:
        """The errors of outputs, in words."""
        plain = max((each.float32 for each in self.outputs), default=0.0)
        count = f"{counted(self.elements, 'element')} of data"
        return (
            f"outputs are off by {self.error:.2g} of the largest at most, on {count}; "
            f"in float32 by {plain:.2g}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
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
    """A variant, the input arrays of a call, and the outputs for them."""

    variant: Variant
    inputs: Sequence[Array]
    results: Sequence[Array]


def accuracy_of(
    calls: Sequence[ModelCall], scales: Sequence[LayerScales], outputs: Sequence[str]
) -> Accuracy:
    """Return the errors of these calls, for outputs of these names.

    The layers were stored with `scales`.
    """
    twins: dict[int, _Twins] = {}
    sums: list[_Sums] = []
    for call in calls:
        own = twins.setdefault(id(call.variant), _Twins(call.variant, scales))
        sums = sums or [_Sums() for _ in own.values]
        own.compare(call, sums)
    described = [(name, "") for name in outputs], next(iter(twins.values())).layer_names()
    found = [one.named(*each) for one, each in zip(sums, chain(*described), strict=True)]
    return Accuracy(tuple(found[len(outputs) :]), tuple(found[: len(outputs)]), len(calls))


class _Sums:
    """Error sums of one value, as compiled and in float32."""

    def __init__(self) -> None:
        self.short, self.plain = ErrorSums(), ErrorSums()

    def named(self, name: str, dtype: str) -> ValueAccuracy:
        short = self.short
        return ValueAccuracy(name, dtype, short.largest, short.mean, self.plain.largest)


class _Twins:
    """Three versions of a variant whose outputs include its layers' results.

    They are the variant as compiled, compiled in float32, and evaluated in float64.
    """

    def __init__(self, variant: Variant, scales: Sequence[LayerScales]) -> None:
        self.graph, tile = min(variant.graphs, key=lambda each: each.tile or 1)
        self._tile, self._axes = tile or 1, variant.batch_axes
        self.layers = list(keyed_layers(self.graph).values())
        self.values = (*self.graph.outputs, *(node.outputs[0] for node in self.layers))
        watched = replace(self.graph, outputs=self.values, batch_axes=None)
        self._exact = in_float32(watched, scales)
        as_floats = replace(variant.options, rounds_x=False)
        self._short, self._plain = (
            lowered_variant([TiledGraph(one, None)], options, "twin", is_cached=False)
            for one, options in ((watched, variant.options), (self._exact, as_floats))
        )

    def layer_names(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each layer, and its dtype."""
        for node in self.layers:
            assert isinstance(node.op, STORING)
            yield node.outputs[0].origin.layer, node.op.dtype.value

    def compare(self, call: ModelCall, sums: Sequence[_Sums]) -> None:
        """Add the errors of one call to `sums`, a tile at a time."""
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
        """Yield the samples of each tile and its inputs; the last sample is repeated as padding."""
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
