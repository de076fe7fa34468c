"""Choice of the dtype of each layer: short where faster and outputs stay within a budget.

Each layer is calibrated alone. Then layers are stored short, in the order of time saved per error,
while the outputs of the compiled code stay within the budget.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sparsejit.api.models.final_graph import Dtypes, final_graph
from sparsejit.api.models.predicted_times import predicted_times
from sparsejit.api.quantising.scales import Scales
from sparsejit.api.quantising.scales_of_inputs import Forms
from sparsejit.api.quantising.short_layers import CalibrationInput, ShortLayers
from sparsejit.api.reports.accuracy import output_error
from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.layer_scales import LayerKey, LayerScales
from sparsejit.ir.spec import DType
from sparsejit.ir.values import Array
from sparsejit.lowering.context import ModelOptions, Progress
from sparsejit.passes.calibrated_layers import keyed_layers
from sparsejit.planner.cheapest_row import choose, priced

SHORT = (DType.INT8, DType.BFLOAT16, DType.FLOAT16)
# Least gain as a share of a layer's time, and of the whole time: smaller gains are within the error
# of a prediction.
_LEAST_GAIN, _LEAST_WHOLE_GAIN = 0.05, 0.02
# Rounds of the search: each continues after the first layer that did not fit in the last one.
_MOST_ROUNDS = 3
# Assumed errors of a layer that cannot be calibrated alone, such as a recurrence.
_UNKNOWN_ERROR = {DType.INT8: 1e-2, DType.BFLOAT16: 2e-3, DType.FLOAT16: 3e-4}


class _Change(NamedTuple):
    """A change to try: the layers of one name stored in one dtype."""

    layer: str
    dtype: DType
    scales: tuple[LayerScales, ...]
    saved_ns: float

    @property
    def worth(self) -> float:
        """Time saved per squared error."""
        squares = sum(each.error**2 for each in self.scales)
        return self.saved_ns / max(squares, 1e-12)


@dataclass
class ChosenScales:
    """Chooses scales for one model and its data; `priced` is the graph that calls will run."""

    elements: Sequence[CalibrationInput]
    priced: Graph
    budget: float | Callable[[list[Any]], bool]
    options: ModelOptions
    as_called: Callable[[list[Array]], Any]  # outputs as the model returns them
    tell: Progress

    def made(self) -> Scales:
        """Return the best scales within the budget.

        Raises InvalidInput for NaN inside the model on the data, and where outputs of float32 are
        outside the budget already.
        """
        self._layers = ShortLayers(self.elements, self.options, self.tell)
        if not self._fits(self._layers.exact):
            raise InvalidInput("budget: outputs in float32 are not good enough either")
        self.tell("choosing dtypes", 0.4)
        changes = list(self._changes(self._layers.forms))
        chosen: dict[str, _Change] = {}
        for among in (SHORT[:1], SHORT[1:]):
            some = [each for each in changes if each.dtype in among]
            chosen = self._filled(chosen, some)
        return self._record(chosen)

    def _changes(
        self, forms: Mapping[LayerKey, Forms]
    ) -> Iterator[_Change]:
        """Yield the changes that are predicted to save time."""
        self._float32_ns, floats = self._times("float32")
        layers = keyed_layers(self._layers.graph)
        keys = [key for key, node in layers.items() if _is_plain(node.op)]
        for dtype in SHORT:
            stored = [_form(forms, key, dtype) for key in keys]
            found = [each for each in stored if each is not None]
            try:
                _, times = self._times(self._layers.scales(found))
            except InvalidInput:  # weights beyond the dtype
                continue
            by_layer: dict[str, list[LayerScales]] = defaultdict(list)
            for each in found:
                by_layer[each.layer].append(each)
            for layer, group in by_layer.items():
                saved = floats.get(layer, 0.0) - times.get(layer, 0.0)
                if saved > _LEAST_GAIN * floats.get(layer, 0.0):
                    scales = tuple(replace(each, saved_ns=saved) for each in group)
                    yield _Change(layer, dtype, scales, saved)

    def _times(self, dtypes: Dtypes) -> tuple[float, dict[str, float]]:
        final = final_graph(self.priced, self.options, dtypes)
        ns, times = predicted_times(final, self.options)
        return ns, {layer: sum(steps.values()) for layer, steps in times.items()}

    def _filled(
        self, chosen: dict[str, _Change], changes: Iterable[_Change]
    ) -> dict[str, _Change]:
        """Add changes within the budget, of layers that have none yet; return all chosen."""
        best = {}
        for each in sorted(changes, key=lambda one: one.worth):
            best[each.layer] = each  # the dtype with the larger `worth` comes last
        left = [each for each in best.values() if each.layer not in chosen]
        left.sort(key=lambda one: -one.worth)
        for _ in range(_MOST_ROUNDS):
            if not left:
                break
            count = self._most(chosen, left)
            chosen = {**chosen, **{each.layer: each for each in left[:count]}}
            left = left[count + 1 :]
        return chosen

    def _most(self, chosen: Mapping[str, _Change], left: Sequence[_Change]) -> int:
        """Return how many of the first changes in `left` fit the budget, beside the chosen ones.

        The model is compiled with them, and its outputs decide.
        """
        fits, fails = 0, len(left) + 1
        count = len(left)  # often all of them do
        while fits + 1 < fails:
            self.tell(f"trying {len(chosen) + count} short layers", 0.5)
            tried = [*chosen.values(), *left[:count]]
            if self._fits(self._layers.outputs(self._layers.scales(_layers(tried)))):
                fits = count
            else:
                fails = count
            count = (fits + fails) // 2
        return fits

    def _fits(self, outputs: list[list[Array]]) -> bool:
        if callable(self.budget):
            return bool(self.budget([self.as_called(each) for each in outputs]))
        return output_error(outputs, self._layers.exact) <= self.budget

    def _record(self, chosen: Mapping[str, _Change]) -> Scales:
        """Return the choice as Scales: all float32 where it is not predicted to be faster."""
        short = _layers(chosen.values())
        ns, _ = self._times(self._layers.scales(short)) if short else (self._float32_ns, {})
        rows = (
            priced("short layers", ns),
            priced("float32", self._float32_ns, margin=1 - _LEAST_WHOLE_GAIN),
        )
        if choose("dtypes", rows, None).name == "float32":
            short, ns = [], self._float32_ns
        outputs = self._layers.outputs(self._layers.scales(short)) if short else self._layers.exact
        error = output_error(outputs, self._layers.exact)
        budget = None if callable(self.budget) else float(self.budget)
        sums = self._layers.sums if short else ()
        layers = self._layers.all_layers(short)
        return Scales(layers, error, budget, ns, self._float32_ns, sums)


def _is_plain(op: Any) -> bool:
    return op.dtype is DType.FLOAT32


def _form(
    forms: Mapping[LayerKey, Forms], key: LayerKey, dtype: DType
) -> LayerScales | None:
    """Return the LayerScales of a layer in a dtype, as calibrated; None where there are none.

    A layer without calibrated x, such as a recurrence, gets the assumed error of the dtype.
    """
    if key in forms:
        return forms[key].get(dtype)
    how = "each row" if dtype is DType.INT8 else ""
    return LayerScales(*key, dtype, how=how, error=_UNKNOWN_ERROR[dtype])


def _layers(changes: Iterable[_Change]) -> list[LayerScales]:
    return [one for each in changes for one in each.scales]
