"""Rules for an estimator's X, and conversion of X to the array that native code reads.

scikit-learn keeps float32 and converts all other numbers to float64, separately for each part of a
ColumnTransformer; its scalers compute in float16 where X has it, which is refused here. LightGBM
keeps both and converts whole numbers to float32 outside of frames; XGBoost converts everything to
float32. Infinite and missing values are refused where they reach a step that refuses them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.column_steps import (
    SELECTORS,
    computed_together,
    features_read,
    filling_of,
    kept_categories,
    parts_of,
)
from sparsejit.estimators.left_out_zeros import LeftOut, both, dense, trees_read_sparse
from sparsejit.estimators.lifting import Lifted
from sparsejit.estimators.own_models import MODELS
from sparsejit.estimators.parts import Link, Stack, TakenColumns, columns_of, held, is_mixing
from sparsejit.estimators.text import TextColumn, TextCounts, TextReader, texts_of
from sparsejit.estimators.traced_functions import Guard, is_function, mark_of, read_function
from sparsejit.estimators.transformers import is_written, outputs_of
from sparsejit.estimators.words import FEW_ROWS, WordColumns, frame_columns
from sparsejit.ir.values import Array
from sparsejit.runtime.array_checks import rows_check

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_NUMBERS = "biuf"
_NO_FUNCTION = -1
_POSITIVE = float(np.nextafter(0, 1))  # the least number above 0
_SHORT = "X has dtype float16, in which scalers lose digits; give X.astype(np.float32)"
# Estimators of scikit-learn that accept infinite values.
_TAKES_INFINITY = (
    *("HistGradientBoostingClassifier", "HistGradientBoostingRegressor", "IsolationForest"),
)
# Models whose results scikit-learn 1.9 writes into an array of the dtype of X, whole numbers too.
_ROUNDED_DOWN = ("BayesianGaussianMixture", "GaussianMixture")


@dataclass(frozen=True, eq=False)
class Refusals:
    """Values of X that the steps of an estimator refuse.

    `no_nan` and `no_infinity` are masks of features. `known` has features of which an encoder must
    have seen every number, with the numbers that it has seen. `together` has the groups of features
    with which a step computes as one array. `least` are the least numbers of features that are not
    refused, -infinity for most. `no_sparse_nan` is the mask of NaN in a sparse X.

    `forms` has features that a function reads, with the forms of X that it takes; `guards`, by the
    ids of functions, which of their results are refused, and `mark` is the result of such rows.
    """

    no_nan: Array
    no_infinity: Array
    known: list[tuple[int, Array]]
    together: list[Array]
    least: Array
    forms: list[tuple[Array, frozenset[str]]] = field(default_factory=list)
    guards: dict[int, Guard] = field(default_factory=dict)
    mark: float | None = None
    no_sparse_nan: Array = field(default_factory=lambda: np.zeros(1, bool))

    @classmethod
    def of(cls, chains: Sequence[Sequence[Any]], lifted: Lifted) -> Refusals:
        """Refusals of chains of steps, each from X and codes to an estimator that predicts."""
        width = lifted.width
        none = np.zeros(width, bool)
        least, no_sparse_nan = np.full(width, -np.inf), none.copy()
        found = cls(none.copy(), none.copy(), [], [], least, no_sparse_nan=no_sparse_nan)
        for steps in chains:
            own = list(takewhile(lambda step: not isinstance(step, Stack), steps))
            found.together.extend(computed_together(own, np.arange(width)))
            ends = (found.no_nan, False), (no_sparse_nan, True)
            masks = [mask for mask, sparse in ends if trees_read_sparse(steps, width, sparse)]
            found._follow(steps, _Columns.of_x(width), masks)
        no_sparse_nan |= found.no_nan
        return found._of_given(lifted)

    def _of_given(self, lifted: Lifted) -> Refusals:
        """The refusals without columns of codes that are computed from X, by their features."""
        given = lifted.features + len(lifted.words)
        for place, column in enumerate(lifted.numbers, given):
            self.no_infinity[column.feature] = True
            if column.refuses_nan or (self.no_nan[place] and np.isnan(column.missing)):
                self.no_nan[column.feature] = True
            if self.no_nan[place] and np.isnan(column.codes).any():
                raise InvalidInput(
                    f"an encoder gives NaN for unknown numbers of column {column.feature}, which a "
                    "later step refuses; fit it with another unknown_value"
                )
            if column.known is not None:
                self.known.append((column.feature, column.known))
        for place, seen in self.known:
            if place >= given and not np.isin(lifted.numbers[place - given].all_codes, seen).all():
                raise InvalidInput(
                    "the CategoricalNB refuses codes that an encoder of numbers gives; fit the "
                    "encoder with handle_unknown='error', or the CategoricalNB with min_categories"
                )
        known = [each for each in self.known if each[0] < given]
        together = [group[group < given] for group in self.together]
        masks = self.no_nan[:given], self.no_infinity[:given]
        groups = [group for group in together if len(group)]
        mark = mark_of(self.guards.values()) if self.guards else None
        forms = [(features[features < given], names) for features, names in self.forms]
        least = self.least[:given]
        stored = self.no_sparse_nan[:given]
        return Refusals(*masks, known, groups, least, forms, self.guards, mark, stored)

    def beside(self, texts: Sequence[TextColumn], features: int) -> Refusals:
        """The refusals of X without columns of counts, which follow its `features`.

        Raises InvalidInput where counts themselves may be refused.
        """
        count = sum(each.reader.width for each in texts)
        kept = np.ones(len(self.no_nan), bool)
        kept[features : features + count] = False
        counted = [feature for feature, _ in self.known] + [
            int(each) for group, _ in self.forms for each in group
        ]
        may_be_below = any(each.reader.may_be_below_0 for each in texts)
        least = self.least[~kept].max(initial=-np.inf)
        if any(not kept[each] for each in counted) or least > 0 or (least == 0 and may_be_below):
            raise InvalidInput(
                "a step refuses some counts of texts, or was recorded for a form of them; let "
                "another model read them"
            )
        # The dtype of counts is the one in which columns that are no numbers are read.
        sources = np.concatenate([
            np.arange(features),
            *(np.full(each.reader.width, each.feature) for each in texts),
            np.arange(features, len(kept) - count),
        ])
        return replace(
            self,
            no_nan=self.no_nan[kept],
            no_infinity=self.no_infinity[kept],
            together=[np.unique(sources[group]) for group in self.together],
            least=self.least[kept],
            no_sparse_nan=self.no_sparse_nan[kept],
        )

    def _follow(
        self, steps: Sequence[Any], columns: _Columns, no_nan: Sequence[Array] = ()
    ) -> _Columns:
        """The columns behind steps; NaN that the last one reads is refused in masks `no_nan`."""
        for before, step in zip([None, *steps], steps, strict=False):
            if step is steps[-1]:
                for mask in no_nan:
                    mask[columns.source[columns.nan]] = True
            if type(step).__name__ == "CategoricalNB":
                self._follow_codes(step, columns, type(before).__name__)
            columns = self._step(step, columns)
        return columns

    def _follow_codes(self, step: Any, columns: _Columns, before: str) -> None:
        """The codes of categories that a model takes: of X, of encoders, or of bins."""
        if columns.own.all():
            counts = enumerate(step.n_categories_)
            self.known.extend((int(columns.source[n]), np.arange(count)) for n, count in counts)
        elif before != "KBinsDiscretizer":
            raise InvalidInput(
                f"the {type(step).__name__} reads the results of the {before} as codes; let it "
                "read codes of an OrdinalEncoder or a KBinsDiscretizer"
            )

    def _step(self, step: Any, columns: _Columns) -> _Columns:
        if type(step).__name__ == "ColumnTransformer":
            parts = parts_of(step, len(columns.source))
            made = [self._follow(part.steps, columns.take(part.columns)) for part in parts]
            first, *others = made or [columns.take(np.zeros(0, np.int64))]
            for other in others:
                first = first.beside(other)
            return first
        if isinstance(step, Link):
            self.no_nan[columns.source[columns.nan]] = True
            self.no_infinity[columns.source[columns.infinity]] = True
            none = np.zeros(len(columns.source), bool)
            own = columns._replace(nan=none, infinity=none, function=columns.no_functions)
            return own.beside(_Columns.computed(step.predicted))
        if isinstance(step, Stack):
            predicted = _Columns.computed(_columns_of(step, len(columns.source)))
            return predicted.beside(columns) if step.passes_x else predicted
        takes_nan, takes_infinity = _takes(step)
        if not takes_nan:
            self.no_nan[columns.source[columns.nan]] = True
        if not takes_infinity:
            self.no_infinity[columns.source[columns.infinity]] = True
        for function in set(columns.function.tolist()) - {_NO_FUNCTION}:
            no_nan, no_infinity = self.guards.get(function, Guard())
            guard = Guard(no_nan or not takes_nan, no_infinity or not takes_infinity)
            if any(guard):
                self.guards[function] = guard
        if is_function(step):
            return self._behind_function(step, columns)
        self._follow_least(step, columns)
        if type(step).__name__ in _ROUNDED_DOWN and columns.own.all():
            least = np.maximum(self.least[columns.source], np.finfo(np.float64).min)
            self.least[columns.source] = least
        if (categorical := getattr(step, "is_categorical_", None)) is not None:
            self.no_infinity[columns.source[columns.infinity & categorical]] = True
        return self._behind(step, columns)

    def _behind_function(self, step: Any, columns: _Columns) -> _Columns:
        """The columns behind a function, which may be NaN and infinite whatever X is."""
        function = read_function(step)
        given = columns.source[columns.given]
        if given.size:
            forms = function.forms
            if not columns.own.all():  # behind another function, or a step that keeps the dtype
                forms |= {each.replace("array", "frame") for each in forms}
                forms |= {each.replace("frame", "array") for each in forms}
            self.forms.append((given, forms))
        found = _Columns.computed(function.outputs)
        return found._replace(
            source=np.resize(given, function.outputs) if given.size else found.source,
            given=np.full(function.outputs, bool(given.size)),
            function=np.full(function.outputs, id(step)),
        )

    def _follow_least(self, step: Any, columns: _Columns) -> None:
        """The least numbers that a model takes, which are numbers of X."""
        if getattr(step, "method", "") == "box-cox":
            least = _POSITIVE
        else:
            model = MODELS.get(type(step).__name__)
            if model is None or model.least is None:
                return
            least = model.least(step)
        if not columns.own.all():
            raise InvalidInput(
                f"the {type(step).__name__} refuses numbers below {least:g}, and steps "
                "before it change X; give it X itself"
            )
        self.least[columns.source] = np.maximum(self.least[columns.source], least)

    def _behind(self, step: Any, columns: _Columns) -> _Columns:
        none = np.zeros(len(columns.source), bool)
        if type(step).__name__ in SELECTORS:
            return columns.take(step.get_support(indices=True))
        columns = columns._replace(given=none)
        if is_mixing(step):
            return _Columns.computed(columns_of(step))
        if type(step).__name__ == "SimpleImputer":
            filling = filling_of(step)
            filled = columns._replace(nan=none, function=columns.no_functions).take(filling.kept)
            return filled.beside(_Columns.computed(len(filling.marked)))
        if type(step).__name__ == "OneHotEncoder":
            if step.handle_unknown == "error":
                self.no_nan[columns.source[columns.nan & columns.own]] = True
                for number in np.flatnonzero(columns.own):
                    seen = np.asarray(step.categories_[number])
                    self.known.append((int(columns.source[number]), seen))
            counts = [len(each) for each in kept_categories(step)]
            encoded = _Columns(columns.source, none, none, none, none, columns.no_functions)
            return encoded.take(np.repeat(np.arange(len(none)), counts))
        if type(step).__name__ == "MissingIndicator":
            if step.error_on_new and step.features == "missing-only":
                unmarked = np.isin(np.arange(len(none)), step.features_, invert=True)
                self.no_nan[columns.source[columns.nan & unmarked]] = True
            return _Columns.computed(len(step.features_))
        if is_written(step) and outputs_of(step) != len(none):
            return _Columns.computed(outputs_of(step))
        return columns._replace(own=none)


class _Columns(NamedTuple):
    """For each column behind steps, its feature of X, and whether some values of X reach it.

    These are NaN (`nan`), infinity, and the feature's own numbers, unchanged. `given`: its dtype is
    X's; `function`: the id of the FunctionTransformer that made its numbers, or `_NO_FUNCTION`.
    """

    source: Array
    nan: Array
    infinity: Array
    own: Array
    given: Array
    function: Array

    @classmethod
    def of_x(cls, count: int) -> _Columns:
        """The columns of X."""
        nan, infinity, own, given = np.ones((4, count), bool)
        return cls(np.arange(count), nan, infinity, own, given, np.full(count, _NO_FUNCTION))

    @classmethod
    def computed(cls, count: int) -> _Columns:
        """Computed columns, without NaN, infinity or numbers of a feature."""
        nan, infinity, own, given = np.zeros((4, count), bool)
        sources = np.zeros(count, np.int64)
        return cls(sources, nan, infinity, own, given, np.full(count, _NO_FUNCTION))

    @property
    def no_functions(self) -> Array:
        """The `function` of these columns where no function made them."""
        return np.full(len(self.source), _NO_FUNCTION)

    def take(self, which: Any) -> _Columns:
        return _Columns(*(each[which] for each in self))

    def beside(self, others: _Columns) -> _Columns:
        """These columns, followed by the others."""
        return _Columns(*map(np.concatenate, zip(self, others, strict=True)))


def _listed(forms: Iterable[str]) -> str:
    return " or ".join(sorted(forms)) or "nothing"


def _columns_of(stack: Stack, features: int) -> int:
    """The number of columns of a stack's predictions."""
    taken = int(held(stack.estimator.final_estimator_).n_features_in_)
    return taken - features * stack.passes_x


def _takes(step: Any) -> tuple[bool, bool]:
    """Whether a step takes NaN, and whether it takes infinite values."""
    library, kind = type(step).__module__.split(".")[0], type(step).__name__
    if isinstance(step, TakenColumns):
        return not step.is_checked, not step.is_checked
    if library != "sklearn":
        return True, not _is_linear(step)
    if is_function(step):
        return not step.validate, not step.validate
    from sklearn.utils import get_tags

    takes_nan = bool(get_tags(step).input_tags.allow_nan)
    is_selector = hasattr(step, "get_support") and takes_nan
    return takes_nan, kind in _TAKES_INFINITY or is_selector


def _is_linear(estimator: Any) -> bool:
    """Whether a model of LightGBM multiplies x, so that infinite terms may cancel."""
    booster = getattr(estimator, "booster_", estimator)
    if not type(booster).__module__.startswith("lightgbm"):
        return False
    return "\nis_linear=1\n" in booster.model_to_string()


@dataclass(frozen=True, eq=False)
class EstimatorInput:
    """The rules for X (samples, features) of one estimator.

    `reads_float64`: results depend on digits that float32 does not hold; `left_out`: the number
    that graphs read for zeros that a sparse X leaves out; `takes_frames`: whether a frame can be
    read as numbers; `words`: columns of codes that follow the features, None where no step reads
    words; `text`: the reader that counts the tokens of an X of texts, None for an X of numbers;
    `text_columns`: features of texts, whose counts follow the features; `is_column`: X may be
    (samples,); `required`: features that a frame must have, in any order, where the first step
    chooses columns by name, else None.
    """

    name: str
    library: str
    features: int
    names: tuple[Any, ...] | None
    reads_float64: bool
    refusals: Refusals
    left_out: LeftOut = LeftOut.ZERO
    takes_frames: bool = True
    words: WordColumns | None = None
    text: TextReader | None = None
    is_column: bool = False
    required: Array | None = None
    text_columns: tuple[TextColumn, ...] = ()

    @property
    def width(self) -> int:
        """The number of columns that native code reads: of X, of counts of texts, and of codes."""
        return self._width + self.counted

    @property
    def counted(self) -> int:
        """The number of columns of counts, which follow the features."""
        return sum(each.reader.width for each in self.text_columns)

    @property
    def _width(self) -> int:
        """The number of columns of X, and of codes."""
        return self.features if self.words is None else self.words.width

    def read(self, X: Any) -> Array:
        """Return X as float32, or float64 where that matters, with columns of codes behind it.

        Columns of counts are left out. A sparse X may get twice as wide. Raises InvalidInput for an
        X that the estimator refuses.
        """
        if self.is_column:
            X = self._as_column(X)
        if self.required is not None:
            X = self._in_order(X, self.required)
        if self.refusals.forms:
            self._check_forms(X)
        array: Array = X
        if self.words is not None and (self.text_columns or self.words.reads(X)):
            array = self._with_codes(self.words, X)
        elif not self._is_plain(X):
            array = self._converted(X)
            self._check_samples(array)
            if hasattr(X, "toarray"):
                self._check_finite(array, self.refusals.no_sparse_nan)
            elif self._refuses and not self._is_plain(array):
                self._check_finite(array, self.refusals.no_nan)
        if self.refusals.known:
            self._check_known(array)
        if self._has_least:
            self._check_least(X, array)
        if self.left_out is LeftOut.BOTH and hasattr(X, "toarray"):
            return both(X, array)
        return array

    def _in_order(self, X: Any, required: Array) -> Any:
        """A frame with its columns in the order of the fit; others are left out.

        Raises InvalidInput for a frame without a column that is required.
        """
        if getattr(X, "ndim", 0) == 1 and hasattr(X, "to_frame"):
            X = X.to_frame().T
        columns = getattr(X, "columns", None)
        if columns is None or self.names is None or any(columns is each for each in self._seen):
            return X
        given, known = list(columns), list(self.names)
        if given == known or len(set(given)) < len(given):
            return X
        missing = [name for name in np.asarray(known, object)[required] if name not in given]
        if missing:
            raise InvalidInput(f"X has the columns {given}; add {', '.join(map(str, missing))}")
        return X.reindex(columns=known)

    def _check_forms(self, X: Any) -> None:
        """Raise InvalidInput for a form of X of which a function gives other numbers."""
        is_frame = hasattr(X, "iloc")
        if is_frame:
            kinds = [X.dtype] * self.features if X.ndim == 1 else list(X.dtypes)
        else:
            kinds = [X.dtype if hasattr(X, "dtype") else np.asarray(X).dtype] * self.features
        for features, forms in self.refusals.forms:
            names = {str(kinds[number]) for number in features if number < len(kinds)}
            found = {f"{'frame' if is_frame else 'array'} {name}" for name in names}
            if not found <= forms or ("float32" in names and len(names) > 1):
                raise InvalidInput(
                    f"X is {_listed(found)}, and a FunctionTransformer's function was recorded for "
                    f"{_listed(forms)}; give one of these"
                )

    def check_result(self, result: Array) -> None:
        """Raise InvalidInput for a result with the mark of rows that a step refuses."""
        mark = self.refusals.mark
        if mark is None:
            return
        is_odd = np.isnan(result) if mark != mark else np.isinf(result)
        rows = np.nonzero(result == -1 if result.dtype.kind == "i" else is_odd)[0]
        if len(rows):
            raise InvalidInput(
                f"a FunctionTransformer gives {'NaN or ' * (mark != mark)}infinity for row "
                f"{rows[0]} of X, which a later step of the {self.name} does not take; give it "
                "numbers that the function takes"
            )

    def texts(self, X: Any) -> list[str]:
        """The texts of X. Raises InvalidInput for all other things."""
        given = texts_of(X)
        self._check_samples(given)
        return given

    def texts_of_columns(self, X: Any) -> list[list[str]]:
        """The texts of each of `text_columns`. Raises InvalidInput for all other things."""
        if self.required is not None:
            X = self._in_order(X, self.required)
        if getattr(X, "ndim", 0) == 1 and hasattr(X, "to_frame"):
            X = X.to_frame().T
        if hasattr(X, "columns"):
            columns = frame_columns(X, [each.feature for each in self.text_columns])
            return [texts_of(list(column)) for column in columns]
        rows = np.asarray(X, object)
        return [texts_of(rows[:, each.feature].tolist()) for each in self.text_columns]

    def counts_of(self, texts: Sequence[Sequence[str]]) -> TextCounts:
        """The counts of each of `text_columns`, at their places among all columns."""
        count, places, rest = len(texts[0]), self.features, []
        for column, own in zip(self.text_columns, texts, strict=True):
            found = column.reader.counts(own)
            rest.append((found.texts, found.columns + places, found.values))
            places += column.reader.width
        return TextCounts(count, *map(np.concatenate, zip(*rest, strict=True)))

    def write_counts(self, counts: TextCounts, array: Array) -> None:
        """Write counts into an array of zeros. Raises InvalidInput for counts that are refused."""
        array[counts.texts, counts.columns] = counts.values
        if self.refusals.known:
            self._check_known(array)
        if self._has_least:
            self._check_least(array, array)

    @cached_property
    def takes_products(self) -> bool:
        """Whether no count of texts can be refused, so that their products are read as well."""
        return not (self.refusals.known or self._has_least)

    @property
    def widest(self) -> np.dtype[Any]:
        """The dtype of X in which native code gives the library's results."""
        return self._dtypes[-1]

    def samples(self, X: Any) -> int:
        """The number of samples of X. Raises InvalidInput for an X that is refused."""
        return len(self.read(X) if self.text is None else texts_of(X))

    def _as_column(self, X: Any) -> Any:
        """X (samples,) as (samples, 1); any other X unchanged."""
        if getattr(X, "ndim", 1) != 1:
            return X
        has_words = self.words is not None and self.words.columns
        column = np.asarray(X, object if has_words else None)
        return column[:, None] if column.ndim == 1 else X

    @cached_property
    def _is_plain(self) -> Callable[[object], bool]:
        """Native check whether X can be read without conversion, as most X can."""
        return rows_check(self._width, self._dtypes, self._refuses)

    def _with_codes(self, words: WordColumns, X: Any) -> Array:
        """X (samples, width) of numbers, with codes of its words behind them."""
        if getattr(X, "ndim", 0) == 1 and hasattr(X, "to_frame"):
            X = X.to_frame().T
        is_frame = hasattr(X, "columns")
        if is_frame:
            self._check_columns(X.columns)
        elif hasattr(X, "toarray"):
            raise InvalidInput(f"X is sparse, which the {self.name} does not take; give a frame")
        rows = X if is_frame else np.asarray(X, object)
        if rows.ndim != 2 or rows.shape[1] != self.features:
            raise InvalidInput(
                f"X has shape {rows.shape}; give (samples, {self.features}), such as one row as a "
                "frame"
            )
        self._check_samples(rows)
        if is_frame:
            columns = frame_columns(X)
            array = words.read(columns)
            if self._keeps_dtypes:
                array = self._as_computed(array, self._kinds(columns))
        else:
            array = words.read_array(rows)
        if self._refuses and not self._is_plain(array):
            self._check_finite(array, self.refusals.no_nan)
        return array

    def _kinds(self, columns: Sequence[Any]) -> list[np.dtype[Any]]:
        """The dtypes of a frame's columns, float64 for words and pandas' own, and of codes."""
        kinds = [column.dtype for column in columns]
        plain = [
            kind if isinstance(kind, np.dtype) and kind.kind in _NUMBERS else _FLOAT64
            for kind in kinds
        ]
        return plain + [_FLOAT64] * (self._width - self.features)

    def _converted(self, X: Any) -> Array:
        """X (samples, features) in one of `_dtypes`; a Series is one row of a frame."""
        if getattr(X, "ndim", 0) == 1 and hasattr(X, "to_frame"):
            X = X.to_frame().T
        array, kinds = (X, None) if type(X) is np.ndarray else self._array_of(X)
        if array.dtype not in self._dtypes:
            array = self._floats(array, is_frame=hasattr(X, "columns"))
        if array.ndim != 2 or array.shape[1] != self.features:
            raise InvalidInput(
                f"X has shape {array.shape}; give (samples, {self.features}): "
                "X.reshape(1, -1) for one sample"
            )
        if array is not X and self._keeps_dtypes and hasattr(X, "columns"):
            if kinds is None:
                kinds = [kind if isinstance(kind, np.dtype) else _FLOAT64 for kind in X.dtypes]
            if set(kinds) != {array.dtype}:
                array = self._as_computed(array, kinds)
        return array

    @cached_property
    def _dtypes(self) -> tuple[np.dtype[Any], ...]:
        """The dtypes of X that native code reads."""
        return (_FLOAT32, _FLOAT64) if self.reads_float64 else (_FLOAT32,)

    @cached_property
    def _refuses(self) -> bool:
        """Whether any value of X is refused."""
        return bool(self.refusals.no_nan.any() or self.refusals.no_infinity.any())

    @cached_property
    def _has_least(self) -> bool:
        """Whether any number of X is refused for being too small."""
        return bool(np.isfinite(self.refusals.least).any())

    @cached_property
    def _keeps_dtypes(self) -> bool:
        """Whether steps compute in the dtypes of X's columns."""
        return self.reads_float64 and bool(self.refusals.together)

    def _array_of(self, X: Any) -> tuple[Array, Sequence[np.dtype[Any]] | None]:
        """The array of a frame, a sparse matrix or nested lists; the dtypes of a frame's columns,
        None where these are not known yet.
        """
        columns = getattr(X, "columns", None)
        if columns is not None:
            if not self.takes_frames:
                raise InvalidInput(
                    f"the {self.name} was fitted to a frame with columns of categories; give an "
                    "array, with their codes, X[column].cat.codes, as floats, NaN for -1"
                )
            self._check_columns(columns)
            if (few := _of_few_rows(X)) is not None:
                return few
        kinds = [str(kind) for kind in np.atleast_1d(getattr(X, "dtypes", ()))]
        if "category" in kinds and self.library != "sklearn":
            raise InvalidInput(
                "X has columns of categories; give their codes, X[column].cat.codes, as "
                "floats, and NaN for missing values"
            )
        if hasattr(X, "toarray"):
            return dense(X, self.name, self.left_out), None
        # Columns of pandas' own dtypes, which may lack values, or booleans beside numbers.
        if hasattr(X, "to_numpy") and np.asarray(X).dtype.kind == "O":
            try:
                return np.asarray(X.to_numpy(dtype=np.float64, na_value=np.nan)), None
            except (TypeError, ValueError) as error:
                raise InvalidInput(f"X has columns of {kinds}; give numbers ({error})") from error
        return np.asarray(X), None

    def _check_columns(self, columns: Any) -> None:
        """Raise InvalidInput unless columns have the names of the fit; numbers are no names."""
        if any(columns is each for each in self._seen):
            return
        self._check_names(columns)
        self._seen[:] = [columns]

    @cached_property
    def _seen(self) -> list[Any]:
        """The columns that passed the last check, in a list; rows of one frame share them."""
        return []

    def _check_names(self, columns: Any) -> None:
        named = self.library == "xgboost" or any(isinstance(name, str) for name in columns)
        if self.names is None or not named:
            return
        several = getattr(columns, "nlevels", 1) > 1
        given = [" ".join(map(str, name)) if several else str(name) for name in columns]
        known = list(map(str, self.names))
        space = "_" if "lightgbm" in self.library else " "  # LightGBM writes "_"
        if [n.replace(" ", space) for n in given] != [n.replace(" ", space) for n in known]:
            raise InvalidInput(f"X has the columns {given}; give {known}, in this order")

    def _floats(self, array: Array, is_frame: bool) -> Array:
        if array.dtype.kind not in f"{_NUMBERS}O":
            raise InvalidInput(
                f"X has dtype {array.dtype}; give real numbers: X.astype(np.float64)"
            )
        if array.dtype == np.float16 and self._keeps_dtypes:
            raise InvalidInput(_SHORT)
        try:
            if array.dtype.kind == "O":
                array = array.astype(np.float64)
            whole = array.dtype.kind != "f" and self.library == "lightgbm" and not is_frame
            short = array.dtype in (np.float16, np.float32) or whole
            wanted = _FLOAT64 if self.reads_float64 and not short else _FLOAT32
            with np.errstate(over="ignore"):
                return array.astype(wanted, copy=False)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"X has dtype {array.dtype}; give numbers ({error})") from error

    def _as_computed(self, array: Array, kinds: Sequence[np.dtype[Any]]) -> Array:
        """A frame's array in the dtype in which steps compute; InvalidInput where theirs differ.

        `kinds` are the dtypes of its columns.
        """
        groups = self.refusals.together
        computed = {np.result_type(*(kinds[number] for number in group)) for group in groups}
        if np.float16 in computed:
            raise InvalidInput(_SHORT)
        wanted = {kind if kind == _FLOAT32 else _FLOAT64 for kind in computed}
        with np.errstate(over="ignore"):
            made = array.astype(wanted.pop(), copy=False)
        if wanted or not np.array_equal(made, array, equal_nan=True):
            raise InvalidInput(
                f"X has columns of {', '.join(sorted({str(kind) for kind in kinds}))}, and the "
                "ColumnTransformer computes with each part in its own dtype; give one dtype: "
                "X.astype(np.float64)"
            )
        return made

    def _check_samples(self, samples: Array | list[str]) -> None:
        if not len(samples) and self.library != "xgboost":
            shape = getattr(samples, "shape", (0,))
            raise InvalidInput(
                f"X has no samples, its shape is {shape}; give at least one, as {self.name} asks"
            )

    def _check_finite(self, array: Array, no_nan: Array) -> None:
        for refused, is_there, what in (
            (no_nan, np.isnan, "replace it, as SimpleImputer does"),
            (self.refusals.no_infinity, np.isinf, "give numbers that its dtype holds"),
        ):
            rows, columns = np.nonzero(is_there(array) & refused)
            if len(rows):
                found, column = array[rows[0], columns[0]], int(columns[0])
                if column >= self.features and self.words is not None:
                    column = self.words.columns[column - self.features].feature
                raise InvalidInput(
                    f"X has {found} in row {rows[0]}, column {column}, which the {self.name} "
                    f"does not take; {what}"
                )

    def _check_known(self, array: Array) -> None:
        for feature, categories in self.refusals.known:
            column = array[:, feature]
            seen = (column[:, None] == categories).any(axis=1)
            unseen = ~(seen | np.isnan(column))
            if unseen.any():
                raise InvalidInput(
                    f"column {feature} of X has {column[unseen][0]}, which the fit did not see; "
                    "give an encoder handle_unknown='ignore', or a CategoricalNB min_categories"
                )

    def _check_least(self, X: Any, array: Array) -> None:
        """Raise InvalidInput for small numbers, and for an X that AdditiveChi2Sampler truncates."""
        dtype = _dtype_of(X)
        is_rounded = np.isfinite(self.refusals.least) & (self.refusals.least != _POSITIVE)
        if dtype.kind in "biu" and is_rounded.any():
            raise InvalidInput(
                f"X has dtype {dtype}, to which scikit-learn rounds results of the {self.name} "
                "down; give X.astype(np.float64)"
            )
        rows, columns = np.nonzero(array < self.refusals.least)
        if len(rows):
            found, column = array[rows[0], columns[0]], int(columns[0])
            raise InvalidInput(
                f"X has {found} in row {rows[0]}, column {column}, and the {self.name} takes no "
                f"number below {self.refusals.least[column]:g}; shift or clip X"
            )


def _of_few_rows(frame: Any) -> tuple[Array, Sequence[np.dtype[Any]]] | None:
    """A frame of few rows of plain numbers as pandas' array of it, in less time; else None.

    Behind it the dtypes of the columns.
    """
    if not hasattr(frame, "_get_column_array") or len(frame) > FEW_ROWS:
        return None
    columns = frame_columns(frame)
    kinds = [column.dtype for column in columns]
    found = set(kinds)
    if not found or not all(isinstance(kind, np.dtype) and kind.kind in "if" for kind in found):
        return None
    array = np.empty((len(frame), len(columns)), np.result_type(*found))
    for number, column in enumerate(columns):
        array[:, number] = column
    return array, kinds


def _dtype_of(X: Any) -> np.dtype[Any]:
    """The dtype in which scikit-learn has X, whose columns may have different ones."""
    kinds = [kind for kind in np.atleast_1d(getattr(X, "dtypes", ())) if hasattr(kind, "kind")]
    if kinds and all(isinstance(kind, np.dtype) for kind in kinds):
        return np.result_type(*kinds)
    return np.dtype(X.dtype if hasattr(X, "toarray") else np.asarray(X).dtype)


def word_columns_of(lifted: Lifted, chains: Sequence[Sequence[Any]]) -> WordColumns | None:
    """The columns of codes that are read with X; None where every feature is a number."""
    read = np.zeros(lifted.width, bool)
    for chain in chains:
        read[features_read(chain, np.arange(lifted.width))] = True
    for column in lifted.numbers:
        read[column.feature] = True
    is_read = read[: lifted.features]
    if is_read.all() and not lifted.words:
        return None
    return WordColumns(lifted.features, lifted.words, is_read, lifted.reads_codes)
