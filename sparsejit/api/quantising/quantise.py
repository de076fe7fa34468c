"""`sparsejit.quantise`: chooses dtypes for a trained model, from examples of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sparsejit.api.models.called import as_tensors, cut
from sparsejit.api.models.dtypes import ModelDtypes
from sparsejit.api.quantising.chosen_scales import ChosenScales
from sparsejit.api.quantising.scales import Scales
from sparsejit.api.quantising.seen_inputs import ExampleCall
from sparsejit.api.quantising.short_layers import CalibrationInput
from sparsejit.errors import InvalidInput
from sparsejit.frontends.nesting import Nest, flatten, open_axes, unflatten
from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Array
from sparsejit.lowering.context import ModelOptions, Progress

BUDGET = 0.01
Budget = float | Callable[[list[Any]], bool]


class ReadModel(NamedTuple):
    """A graph for inputs of certain shapes, with the model's own batch and axes, and its nests."""

    graph: Graph
    inputs: Nest
    outputs: Nest

    def arrays(self, call: ExampleCall) -> list[Array]:
        """Convert the inputs of a call to the arrays of the graph."""
        leaves = flatten(self.inputs, (call.args, dict(call.kwargs)), "data")
        return ModelDtypes(self.graph.inputs, self.inputs, self.outputs).arrays(leaves)

    def returned(self, outputs: list[Array], has_tensors: bool = False) -> Any:
        """Convert outputs of the graph to the model's nest of arrays, or of tensors."""
        results: list[Any] = cut(outputs, open_axes(self.outputs))
        if has_tensors:
            results = as_tensors(results, self.outputs)
        return unflatten(self.outputs, results)


def checked_budget(budget: Any) -> Budget:
    """Return the budget. Raises InvalidInput for one that is neither an error nor a function."""
    is_number = isinstance(budget, int | float | np.floating) and not isinstance(budget, bool)
    if callable(budget):
        return budget
    if not is_number or not 0 <= budget < 1:
        raise InvalidInput(
            f"budget={budget!r}; give the error that outputs may have, as a share of the largest "
            "one, such as 0.01, or a function that accepts or rejects a list of outputs"
        )
    return float(budget)


@dataclass
class ScalesFinder:
    """Chooses scales. `read` returns the model's graph; `priced` the graph that calls execute."""

    read: Callable[[ExampleCall], ReadModel]
    priced: Callable[[ExampleCall], Graph]
    options: ModelOptions
    _known: dict[tuple[Any, ...], ReadModel] = field(default_factory=dict)

    def scales(
        self,
        calls: Sequence[ExampleCall],
        budget: Budget,
        tell: Progress,
        like: ExampleCall | None = None,
    ) -> Scales:
        """Return the choice; predicted times are for calls like `like`, by default the first call.

        Raises the errors of `ChosenScales.made`.
        """
        elements = [self._element(call) for call in calls]
        first = next(iter(self._known.values()))
        leaves = [*calls[0].args, *calls[0].kwargs.values()]
        wants_tensors = bool(leaves) and not all(isinstance(one, np.ndarray) for one in leaves)

        def as_called(outputs: list[Array]) -> Any:
            return first.returned(outputs, wants_tensors)

        priced = self.priced(like or calls[0])
        return ChosenScales(elements, priced, budget, self.options, as_called, tell).made()

    def _element(self, call: ExampleCall) -> CalibrationInput:
        leaves = [*call.args, *call.kwargs.values()]
        shapes = (*map(_shape_of, leaves), *call.kwargs)
        if shapes not in self._known:
            self._known[shapes] = self.read(call)
        read = self._known[shapes]
        return CalibrationInput(read.graph, read.arrays(call))


def _shape_of(leaf: Any) -> Any:
    """Return the shape and dtype of a tensor, or the value of another leaf, as a key of graphs."""
    if isinstance(leaf, tuple | list):
        return tuple(map(_shape_of, leaf))
    if isinstance(leaf, Mapping):
        return tuple((key, _shape_of(each)) for key, each in leaf.items())
    return (tuple(leaf.shape), str(leaf.dtype)) if hasattr(leaf, "shape") else repr(leaf)
