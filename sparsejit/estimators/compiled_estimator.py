"""A fitted estimator of scikit-learn as native code, one function for each of its methods."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from types import MethodType
from typing import Any, Protocol

import numpy as np

from sparsejit.api.compiled import Compiled, Loader, PathLike
from sparsejit.api.models.export import exported_model
from sparsejit.api.models.final_graph import NamedDtypes
from sparsejit.api.models.variant import GRAPH_REFUSALS, Variant, make_variant
from sparsejit.api.options import ModelSettings
from sparsejit.api.reports.advisor import Advice, advice_for
from sparsejit.api.reports.layers_report import measured_times, report_of
from sparsejit.api.reports.report import Report
from sparsejit.artefact.export import export
from sparsejit.artefact.exported import ExportedFunction, c_name
from sparsejit.artefact.sealed import SealedFile
from sparsejit.errors import (
    CompileError,
    DamagedFile,
    InvalidInput,
    MissingDependency,
    SparseJitError,
)
from sparsejit.estimators.forest_rounds import BY_OPTION, Asked, asked_for, with_rounds
from sparsejit.estimators.forests import LIBRARIES
from sparsejit.estimators.sklearn_tags import SCORES, sklearn_tags
from sparsejit.estimators.source import (
    KIND,
    METHODS,
    EstimatorSource,
    estimator_to_data,
    read_estimator_file,
    source_of,
    x_kind,
)
from sparsejit.estimators.text import TextCounts, TextReader
from sparsejit.estimators.text_products import (
    LeadingProducts,
    products_beside,
    products_of,
)
from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Array, Element
from sparsejit.lowering.context import Progress
from sparsejit.runtime.program import Program

_LEAVES = ("apply", "pred_leaf")  # methods that return numbers of leaves


def _silent(stage: str, share: float) -> None:
    """A progress function that shows nothing."""


_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_COUNTS = 1 << 17  # of texts in memory at the same time, zeros too
_PRODUCTS = "products"  # the kind of an X of products of counts
_OF_PRODUCTS = np.dtype(np.void)


class Estimator(Protocol):
    """An estimator of scikit-learn, by its two methods for parameters."""

    def get_params(self, deep: bool = True) -> dict[str, Any]: ...

    def set_params(self, **parameters: Any) -> Any: ...


class _OfferedMethod:
    """A method of compiled estimators, which exists where the estimator has it."""

    def __init__(self, name: str) -> None:
        def method(self: CompiledEstimator, X: Any, **options: Any) -> Any:
            return self.run(name, X, **options)

        method.__name__ = name  # scorers ask for it
        self.name, self.function = name, method

    def __get__(self, estimator: CompiledEstimator | None, owner: type) -> Any:
        if estimator is None:
            return self.function
        if self.name not in estimator.methods:
            raise AttributeError(self.name)
        return MethodType(self.function, estimator)


def is_estimator(model: Any) -> bool:
    """Whether a model is from scikit-learn, XGBoost, LightGBM or CatBoost; does not import them."""
    return type(model).__module__.split(".")[0] in LIBRARIES


class CompiledEstimator(Compiled):
    """A compiled estimator, with the methods of the original that predict or transform.

    They are `predict`, `predict_proba`, `predict_log_proba`, `decision_function`, `score_samples`
    and `transform`, as far as the estimator has them; each is compiled at its first use.

    X is (samples, n_features_in_), an array of numbers or an object that numpy converts to one,
    such as a DataFrame; a Series is one row. It is compared, and scaled, in float64 where the
    library does so. Results are float32 and equal the estimator's to float32's precision; labels
    are the same. Missing and infinite values are treated, or refused, as in the library. Where
    `set_output` asked for frames of pandas, `transform` returns these. To scikit-learn it is a
    fitted estimator, whose `fit` and `clone` return itself.
    """

    def __init__(self, source: EstimatorSource, progress: Progress = _silent) -> None:
        self._source, self._input = source, source.input
        self.n_features_in_ = source.input.features
        self.classes_ = source.classes if source.targets is None else [*source.targets]
        self.feature_names_in_ = source.columns
        self.tile = source.tile
        self._options = replace(source.settings.resolved(), shares_tiles=source.shares_tiles)
        self._flags = np.dtype(source.flags)
        self._progress = progress
        self._variants: dict[tuple[Asked, str], Variant] = {}
        self._calls: dict[tuple[str, np.dtype[Any], bool], _Call] = {}
        self._asked: dict[Asked, dict[str, _Call]] = {}
        every = source.graphs[_FLOAT32.name]
        self.methods = tuple(name for name in every if name not in BY_OPTION)
        self._lock = threading.Lock()
        self._zeros: list[Array] = []  # arrays for counts that no call uses

    def _saved(self) -> SealedFile:
        return SealedFile(KIND, *estimator_to_data(self._source))

    def __sklearn_clone__(self) -> CompiledEstimator:
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        return sklearn_tags(self._source.kind, self.methods, self._input)

    def fit(self, X: Any = None, y: Any = None, **options: Any) -> CompiledEstimator:
        """Return the compiled estimator itself, as scikit-learn's FrozenEstimator does.

        So it can be evaluated by `cross_val_score`, and be a part of a pipeline or a vote.

        Args:
            X: not read
            y: not read
            options: not read
        """
        return self

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return no parameters: there is nothing to fit again.

        Args:
            deep: not read
        """
        return {}

    def set_params(self, **parameters: Any) -> CompiledEstimator:
        """Return the compiled estimator itself, where no parameters are given.

        Args:
            parameters: none

        Raises:
            InvalidInput: there are any
        """
        if parameters:
            raise InvalidInput(
                f"a compiled {self._input.name} has no parameters, and got {[*parameters]}; set "
                "them on the estimator, fit it, and compile it again"
            )
        return self

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of a classifier, or the R^2 of a regressor, as scikit-learn does.

        Args:
            X: (samples, n_features_in_)
            y: true labels or values, (samples,) or (samples, outputs)
            sample_weight: the weight of each sample, (samples,); by default 1

        Raises:
            InvalidInput: it is no classifier or regressor, or y has another shape
        """
        score = SCORES.get(self._source.kind)
        if score is None:
            raise InvalidInput(
                f"a {self._input.name} is no classifier or regressor; compute the score that you "
                "want from its results"
            )
        return score(np.asarray(y), np.asarray(self.run("predict", X)), sample_weight)

    @property
    def title(self) -> str:
        """The name of the estimator, and its methods, in one line."""
        return f"sparsejit {self._input.name}: {', '.join(self.methods)}"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in METHODS or name in self.methods]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Raise AttributeError for a method that the estimator does not have."""
        known = self.__dict__.get("methods", ())
        raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(known)}")

    def explain(self, method: str = "", *, measure: bool = False) -> Report:
        """Report the cost of every layer of a method and why, as `CompiledModel.explain` does.

        Args:
            method: a name in `methods`; by default the first
            measure: run the method for about a second
        """
        variant = self._usual(method or self.methods[0])
        return report_of(variant, self.title, variant.statistics, measure)

    def advise(self, method: str = "") -> Advice:
        """Suggest how to make a method faster without fitting it again: see `CompiledModel.advise`.

        Args:
            method: a name in `methods`; by default the first
        """
        variant = self._usual(method or self.methods[0])
        return advice_for(variant, measured_times(variant), trainable=False)

    def variant(
        self, method: str, dtype: np.dtype[Any] = _FLOAT32, is_sparse: bool = False
    ) -> Variant:
        """Return the native function of a method for X of a dtype, compiled at its first use.

        Args:
            method: a name in `methods`
            dtype: float32, or float64 where the estimator reads that
            is_sparse: for a sparse X, where the estimator has separate functions for it

        Raises:
            InvalidInput: there is no such method, or X is of no such kind
        """
        if method not in self.methods and method not in self._source.graphs[_FLOAT32.name]:
            raise InvalidInput(
                f"{self._input.name} has no method {method!r}; use one of {', '.join(self.methods)}"
            )
        kind = x_kind(dtype.name, is_sparse)
        if kind not in self._source.graphs:
            raise InvalidInput(
                f"{self._input.name} reads no {kind} X; use {' or '.join(self._source.graphs)}"
            )
        return self._variant(Asked(method), kind)

    def _usual(self, method: str) -> Variant:
        """The function that runs for most X."""
        if self._products is None or method not in self.methods:
            return self.variant(method)
        return self._variant(Asked(method), _PRODUCTS)

    def _variant(self, asked: Asked, kind: str) -> Variant:
        with self._lock:
            if (asked, kind) not in self._variants:
                self._variants[asked, kind] = self._made(asked, kind)
            return self._variants[asked, kind]

    def _made(self, asked: Asked, kind: str) -> Variant:
        source, name = self._source, f"{self._input.name}.{asked.method}"
        graph = self._graphs(kind)[asked.method]
        if asked.rounds is not None:
            graph = with_rounds(graph, source.rounds, asked.rounds)
        try:
            return make_variant(
                graph, self._options, source.dtypes, self.tile, name, self._progress
            )
        except SparseJitError:
            raise
        except GRAPH_REFUSALS as error:
            raise CompileError(f"{name} cannot be compiled: {error!r}; report it") from error

    def _graphs(self, kind: str) -> Mapping[str, Graph]:
        if kind != _PRODUCTS:
            return self._source.graphs[kind]
        assert self._products is not None
        return self._products.graphs

    @cached_property
    def _products(self) -> LeadingProducts | None:
        """The products with which all methods begin, where X are texts or has texts."""
        if self._input.text_columns:
            graphs = self._source.graphs.get(_FLOAT64.name)
            features = self._input.features
            counted = range(features, features + self._input.counted)
            return None if graphs is None else products_beside(graphs, counted)
        if self._input.text is None or not self._input.takes_products:
            return None
        kinds = dict.fromkeys([self._input.widest.name, _FLOAT32.name])
        found = (products_of(self._source.graphs[kind]) for kind in kinds)
        return next((each for each in found if each is not None), None)

    @property
    def program(self) -> Program:
        return self.variant(self.methods[0]).program

    def _exported(self, name: str) -> ExportedFunction:
        return exported_model(name, self.variant(self.methods[0]))

    def export(
        self,
        path: PathLike,
        header: PathLike | None = None,
        method: str = "",
        *,
        system: str = "linux",
    ) -> None:
        """Write a method for C, as `CompiledModel.export` does.

        X is float32. `predict` of a classifier returns indices into `classes_`, as int64.

        Args:
            path: an object file (.o, .obj) or a shared object (.so)
            header: a C header (.h)
            method: a name in `methods`; by default the first
            system: "linux", "windows" or "macos"
        """
        variant = self.variant(method or self.methods[0])
        export(exported_model(c_name(path), variant), path, header, system)

    def bind(self, X: Array, result: Array, method: str = "") -> Callable[[], None]:
        """Return a function without arguments that computes a method from the current values of X.

        Values that the estimator refuses raise nothing. Otherwise it is as `CompiledModel.bind`.

        Args:
            X: (samples, n_features_in_), float32, or float64 where the estimator reads that;
                columns of codes follow the features where steps read words
            result: float32, with the shape of the method's result. For `predict` of a classifier
                int64, indices into `classes_`, or bool for several labels.
            method: a name in `methods`; by default the first
        """
        if not isinstance(X, np.ndarray):
            raise InvalidInput(f"X is a {type(X).__name__}; bind a numpy array")
        dtype = X.dtype if X.dtype.name in self._source.graphs else _FLOAT32
        return self.variant(method or self.methods[0], dtype).call.bind([X], [result])

    def run(self, method: str, X: Any, **options: Any) -> Any:
        """Return a method's result for X, an array; a list of arrays where the library returns one.

        Args:
            method: a name in `methods`
            X: (samples, n_features_in_)
            options: for `predict` of LightGBM raw_score, pred_leaf, pred_contrib; of XGBoost
                output_margin, pred_leaf, pred_contribs. For any method of LightGBM
                start_iteration, num_iteration, of XGBoost iteration_range.

        Raises:
            InvalidInput: the estimator refuses X, or an option makes no sense
        """
        if self._input.text is not None:
            found = self._of_texts(method, self._input.text, X, options)
        elif self._input.text_columns:
            found = self._of_columns(method, X, options)
        else:
            found = self._result(method, X, self._input.read(X), options)
        if method == "transform" and self._source.outputs is not None and not options:
            return _framed(found, self._source.outputs, X)
        return found

    def _result(self, method: str, X: Any, x: Array, options: dict[str, Any]) -> Any:
        if options:
            return self._run_asked(method, X, x, options)
        key = method, x.dtype, x.shape[1] != self._input.width
        call, finish = self._calls.get(key) or self._calls.setdefault(key, self._call(*key))
        (result,) = call(x)
        self._input.check_result(result)
        return result if finish is None else finish(result)

    def _of_texts(
        self, method: str, reader: TextReader, texts: Any, options: dict[str, Any]
    ) -> Any:
        """A method's result for texts: of products of their counts, or of all counts."""
        products = self._products
        if products is None or options:
            parts = reader.parts(self._input.texts(texts))
            most = max(self.tile, _COUNTS // reader.width)
            found = [
                self._of_counts(method, each, options)
                for part in parts
                for each in part.split(most)
            ]
        else:
            call, finish = self._text_call(method)
            found = []
            for part in self._text_products(self._input.texts(texts)):
                (result,) = call(part)
                found.append(result if finish is None else finish(result))
        return found[0] if len(found) == 1 else _joined(found)

    @cached_property
    def _text_products(self) -> Callable[[Sequence[str]], Iterator[Array]]:
        assert self._input.text is not None and self._products is not None
        return self._input.text.products(self._products.weights)

    def _text_call(self, method: str) -> _Call:
        key = method, _OF_PRODUCTS, False
        if key not in self._calls:
            variant = self._variant(Asked(method), _PRODUCTS)
            self._calls[key] = variant.call.run, self._finish(method, variant)
        return self._calls[key]

    def _of_columns(self, method: str, X: Any, options: dict[str, Any]) -> Any:
        """A method's result for an X with columns of texts."""
        rules, features = self._input, self._input.features
        x, texts = rules.read(X), rules.texts_of_columns(X)
        if self._products is not None and not options and x.dtype == _FLOAT64:
            products = sum(
                np.concatenate([*each(own)])
                for each, own in zip(self._column_products, texts, strict=True)
            )
            call, finish = self._text_call(method)
            (result,) = call(np.concatenate([x[:, :features], products, x[:, features:]], axis=1))
            return result if finish is None else finish(result)
        most, found = max(self.tile, _COUNTS // rules.width), []
        for first in range(0, len(x), most):
            own = slice(first, first + most)
            counts = rules.counts_of([each[own] for each in texts])
            found.append(self._of_counts(method, counts, options, x[own]))
        return found[0] if len(found) == 1 else _joined(found)

    @cached_property
    def _column_products(self) -> list[Callable[[Sequence[str]], Iterator[Array]]]:
        """The products of each column of texts."""
        assert self._products is not None
        readers = [each.reader for each in self._input.text_columns]
        ends = np.cumsum([each.width for each in readers])[:-1]
        parts = np.split(self._products.weights, ends)
        return [each.products(part) for each, part in zip(readers, parts, strict=True)]

    def _of_counts(
        self, method: str, counts: TextCounts, options: dict[str, Any], beside: Array | None = None
    ) -> Any:
        """A method's result for counts, which are written among zeros that are kept for that.

        Columns of X and of codes lie `beside` the counts.
        """
        dtype = self._input.widest if beside is None else beside.dtype
        try:
            zeros = self._zeros.pop()
        except IndexError:
            zeros = np.zeros((0, self._input.width), dtype)
        if len(zeros) < counts.count or zeros.dtype != dtype:
            zeros = np.zeros((counts.count, self._input.width), dtype)
        try:
            self._input.write_counts(counts, zeros[: counts.count])
            x = zeros[: counts.count]
            if beside is not None:
                features = self._input.features
                x[:, :features], rest = beside[:, :features], beside[:, features:]
                x[:, self._input.width - rest.shape[1] :] = rest
            return self._result(method, x, x, options)
        finally:
            zeros[counts.texts, counts.columns] = 0
            self._zeros.append(zeros)

    def _run_asked(self, method: str, X: Any, x: Array, options: dict[str, Any]) -> Any:
        """The result that options ask for; leaves are of all rounds, and cut."""
        source, is_sparse = self._source, x.shape[1] != self._input.width
        known = source.graphs[_FLOAT32.name]
        asked = asked_for(self._input.library, source.rounds, method, options, known)
        kind, rounds = x_kind(x.dtype.name, is_sparse), asked.rounds
        is_leaf = asked.method in _LEAVES
        variant = self._variant(Asked(asked.method) if is_leaf else asked, kind)
        (result,) = variant.call.run(x)
        self._input.check_result(result)
        finish = self._finish(asked.method, variant)
        found = result if finish is None else finish(result)
        if is_leaf and rounds is not None:
            each = found.shape[1] // source.rounds
            found = found[:, rounds[0] * each : rounds[1] * each]
        is_contribution = asked.method == "pred_contrib"
        keeps = is_contribution and self._input.library == "lightgbm" and hasattr(X, "tocsr")
        # A step before may have made a matrix dense, or an array sparse.
        return _sparse_like(X, found) if keeps and self._input.name != "Pipeline" else found

    def _call(self, method: str, dtype: np.dtype[Any], is_sparse: bool) -> _Call:
        variant = self.variant(method, dtype, is_sparse)
        return variant.call.run, self._finish(method, variant)

    def _finish(self, method: str, variant: Variant) -> Callable[[Array], Any] | None:
        """The conversion of a method's result into the library's; None for none."""
        element, labels = variant.outputs[0].type.element, self._source.labels
        if method in _LEAVES:
            dtype = {"lightgbm": np.int32, "xgboost": np.float32}.get(self._input.library)
            return partial(np.ndarray.astype, dtype=dtype) if dtype is not None else None
        if method == "pred_contrib" and self._input.library == "xgboost":
            return partial(np.ndarray.astype, dtype=np.float32)
        finish: Callable[[Array], Any] | None = None
        if element is Element.BOOL:
            finish = partial(np.ndarray.astype, dtype=self._flags)
        elif element is Element.INT64 and self._source.targets is not None:
            finish = partial(_labelled_columns, self._source.targets)
        elif element is Element.INT64 and labels is not None:
            finish = partial(_labelled, labels)
        elif self._source.splits:
            finish = partial(_split, [len(each) for each in self._source.targets or ()])
        return finish


for _name in METHODS:
    setattr(CompiledEstimator, _name, _OfferedMethod(_name))


# A native function, and a conversion of its result, or None.
_Call = tuple[Callable[..., Any], Callable[[Array], Any] | None]


def _joined(parts: list[Any]) -> Any:
    """The results of samples after samples as one."""
    if isinstance(parts[0], list):
        return [_joined(list(each)) for each in zip(*parts, strict=True)]
    return np.concatenate(parts)


def _labelled_columns(targets: Sequence[Array], places: Array) -> Array:
    columns = zip(targets, places.T, strict=True)
    return np.stack([_labelled(labels, places) for labels, places in columns], axis=1)


def _split(counts: Sequence[int], found: Array) -> list[Array]:
    """The results of each column of y, which lie side by side."""
    return np.split(found, np.cumsum(counts)[:-1], axis=1)


def _sparse_like(X: Any, found: Array) -> Any:
    """Contributions as LightGBM has them for a sparse X: sparse, in a list for several classes."""
    kinds: Any = import_module("scipy.sparse")
    kind = kinds.csc_matrix if isinstance(X, kinds.csc_matrix) else kinds.csr_matrix
    parts = np.split(found, found.shape[1] // (X.shape[1] + 1), axis=1)
    matrices = [kind(part) for part in parts]
    return matrices if len(matrices) > 1 else matrices[0]


def _framed(result: Array, columns: Array, X: Any) -> Any:
    """The result as a frame with the index of X, as `set_output` asked for."""
    try:
        pandas: Any = import_module("pandas")
    except ImportError as error:
        raise MissingDependency(
            f"transform returns a frame ({error}); pip install pandas, or compile the estimator "
            "after set_output(transform='default')"
        ) from error
    result = result.reshape(len(result), -1)
    if len(columns) != result.shape[1]:  # only in a file that was made up
        raise DamagedFile(f"has {len(columns)} names for {result.shape[1]} columns; save it again")
    is_row = getattr(X, "ndim", 0) == 1 and hasattr(X, "to_frame")
    index = [X.name] if is_row else getattr(X, "index", None)
    return pandas.DataFrame(result, columns=columns, index=index)


def _labelled(labels: Array, places: Array) -> Array:
    try:
        found: Array = labels[places]
    except IndexError:  # only a file that was made up lacks labels
        raise DamagedFile(f"the file has {len(labels)} labels, too few; save it again") from None
    return found


def compile_estimator(
    estimator: Any,
    example: Any,
    settings: ModelSettings,
    dtypes: NamedDtypes,
    progress: Progress,
) -> CompiledEstimator:
    """Compile an estimator for batches like the example: an array, or a tuple of one."""
    if isinstance(example, tuple):
        if len(example) != 1:
            raise InvalidInput(f"example_inputs has {len(example)} arrays; give X alone")
        (example,) = example
    return CompiledEstimator(source_of(estimator, settings, dtypes, example), progress)


LOADER = Loader(read_estimator_file, CompiledEstimator)
