"""A fitted estimator of scikit-learn as native code: each of its methods one function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from sparsejit.api.advice import Advice
from sparsejit.api.advisor import advice_for
from sparsejit.api.layers_report import measured_times, report_of
from sparsejit.api.options import ModelSettings
from sparsejit.api.report import Report
from sparsejit.api.statistics import statistics_of
from sparsejit.api.variant import Dtypes, Variant, make_variant
from sparsejit.errors import InvalidInput
from sparsejit.frontends.forests import LIBRARIES, labels_of
from sparsejit.frontends.sklearn import read_estimator
from sparsejit.ir.graph import Array, Element, Graph
from sparsejit.ir.spec import DType
from sparsejit.lowering.context import ModelOptions, Progress
from sparsejit.lowering.tiles import batch_tiles
from sparsejit.runtime.copying import SharedCode


def _silent(stage: str, share: float) -> None:
    """Told of progress, says nothing."""

_FLOAT32 = np.dtype(np.float32)


class Estimator(Protocol):
    """What all estimators of scikit-learn have."""

    def get_params(self, deep: bool = True) -> dict[str, Any]: ...

    def set_params(self, **parameters: Any) -> Any: ...


def is_estimator(model: Any) -> bool:
    """Whether a model is of scikit-learn, XGBoost or LightGBM, told without importing them."""
    return type(model).__module__.split(".")[0] in LIBRARIES


class CompiledEstimator(SharedCode):
    """The methods of an estimator that predict or transform, by the names that they have there.

    `predict`, `predict_proba`, `predict_log_proba`, `decision_function` or `transform`, as far as
    the estimator has them; each is compiled at its first use. X is (samples, n_features_in_), an
    array of numbers or what numpy makes one of, such as a DataFrame. It is compared, and scaled, in
    float64 where the library does so. Results are those of the estimator to float32's precision, as
    float32, labels as they are. What is missing or infinite goes where the library sends it, or is
    refused as there. Categories are whole numbers, in frames too. Thread-safe. A copy,
    scikit-learn's clone too, is the estimator itself; pickling keeps its graphs, compiled anew at
    their first use.
    """

    def __init__(
        self,
        estimator: Any,
        settings: ModelSettings,
        dtypes: Dtypes = "float32",
        example: Any = None,
        progress: Progress = _silent,
    ) -> None:
        self._name = type(estimator).__name__
        # Who stores weights in fewer bits gives up those of X.
        in_full = dtypes == DType.FLOAT32.value
        read = read_estimator(estimator)
        self._input = read.input if in_full else replace(read.input, reads_float64=False)
        self.n_features_in_ = read.input.features
        self.classes_: Array | None = getattr(estimator, "classes_", None)
        self.feature_names_in_: Array | None = getattr(estimator, "feature_names_in_", None)
        self._labels, self._flags = labels_of(estimator)
        batch = 1 if example is None else len(self._input.read(example))
        options = settings.resolved()
        single = next(iter(read.graphs(1, Element.FLOAT32).values()))
        self.tile, shared = batch_tiles(single, batch, options.threads)
        # By the dtype of X.
        self._graphs: Mapping[np.dtype[Any], Mapping[str, Graph]] = {
            np.dtype(element.value): read.graphs(self.tile, element)
            for element in (read.writes if in_full else [Element.FLOAT32])
        }
        self._settings, self._shares_tiles = settings, shared
        self._dtypes, self._progress = dtypes, progress
        self._prepare(options)

    def _prepare(self, options: ModelOptions) -> None:
        """Compile for this machine, what it comes to."""
        self._options = replace(options, shares_tiles=self._shares_tiles)
        self._variants: dict[tuple[str, np.dtype[Any]], Variant] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Callable[[dict[str, Any]], CompiledEstimator], tuple[Any]]:
        made_anew = ("_options", "_variants", "_lock")
        kept = {name: value for name, value in vars(self).items() if name not in made_anew}
        return _again, ({**kept, "_progress": _silent},)

    def __sklearn_clone__(self) -> CompiledEstimator:
        return self

    def __repr__(self) -> str:
        return f"<{self.title}>"

    @property
    def title(self) -> str:
        """What it was, and its methods, in a line."""
        return f"sparsejit {self._name}: {', '.join(self.methods)}"

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.methods]

    def __getattr__(self, name: str) -> Callable[[Any], Array]:
        """The method of that name. Raises AttributeError where the estimator has none."""
        known = self.methods if "_graphs" in self.__dict__ else ()
        if name not in known:
            raise AttributeError(
                f"{type(self).__name__} has no {name!r}; it has {', '.join(known)}"
            )
        return _EstimatorMethod(self, name)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the estimator's methods."""
        return tuple(self._graphs[_FLOAT32])

    def explain(self, method: str = "", *, measure: bool = False) -> Report:
        """What every layer of a method costs and why, as `CompiledModel.explain` says it.

        Without a name it is the first of `methods`.
        """
        variant = self.variant(method or self.methods[0])
        return report_of(variant, self.title, statistics_of(variant), measure)

    def advise(self, method: str = "") -> Advice:
        """What would make a method faster without fitting anew, as `CompiledModel.advise` does."""
        variant = self.variant(method or self.methods[0])
        return advice_for(variant, measured_times(variant), trainable=False)

    def variant(self, method: str, dtype: np.dtype[Any] = _FLOAT32) -> Variant:
        """A method as it was compiled for X of a dtype.

        Raises InvalidInput for one that is not in `methods`.
        """
        if method not in self.methods:
            raise InvalidInput(
                f"{self._name} has no method {method!r}; use one of {', '.join(self.methods)}"
            )
        with self._lock:
            if (method, dtype) not in self._variants:
                graph, name = self._graphs[dtype][method], f"{self._name}.{method}"
                self._variants[method, dtype] = make_variant(
                    graph, self._options, self._dtypes, self.tile, name, self._progress
                )
            return self._variants[method, dtype]

    def run(self, method: str, X: Any) -> Array:
        """What a method returns for X. Raises InvalidInput for what the estimator refuses."""
        x = self._input.read(X)
        variant = self._variants.get((method, x.dtype)) or self.variant(method, x.dtype)
        (result,) = variant.call.run(x)
        element = variant.graph.outputs[0].type.element
        if element is Element.BOOL:
            return result.astype(self._flags)
        if element is Element.INT64 and self._labels is not None:
            return self._labels[result]
        return result


@dataclass(frozen=True)
class _EstimatorMethod:
    """One method of an estimator, bound to it."""

    estimator: CompiledEstimator
    name: str

    def __call__(self, X: Any) -> Array:
        return self.estimator.run(self.name, X)


def _again(kept: dict[str, Any]) -> CompiledEstimator:
    """The estimator that was pickled, for this machine."""
    estimator = CompiledEstimator.__new__(CompiledEstimator)
    vars(estimator).update(kept)
    estimator._prepare(estimator._settings.resolved())
    return estimator


def compile_estimator(
    estimator: Any,
    example: Any,
    settings: ModelSettings,
    dtypes: Dtypes,
    progress: Progress,
) -> CompiledEstimator:
    """The estimator compiled for batches like the example: an array, or a tuple of one."""
    if isinstance(example, tuple):
        if len(example) != 1:
            raise InvalidInput(f"example_inputs has {len(example)} arrays; give X alone")
        (example,) = example
    return CompiledEstimator(estimator, settings, dtypes, example, progress)
