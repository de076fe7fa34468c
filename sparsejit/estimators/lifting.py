"""Encoders of words and of numbers, replaced by columns of codes that follow X.

    [encoder, model] of X                  ->  [one-hot columns of codes, model] of X and codes
    encoder of words: "red", None, ...     ->  a `WordColumn`: codes are read with X
    encoder of numbers                     ->  a `NumberColumn`: codes are computed from X

A code is a small whole number, which float32 holds: the place of a OneHotEncoder's column that is
1, an OrdinalEncoder's result, or the rank of a TargetEncoder's result among all of the column. A
`Ranked` step turns ranks into results. It rises with the code, as scalers rise with x, so forests
need no other rule for it. Imputers before an encoder become part of its table.

`lifted` returns a copy of the estimator with such steps; the copy shares all models.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.column_steps import SELECTORS, is_identity, parts_of
from sparsejit.estimators.encoders import (
    ENCODERS,
    EncoderTable,
    Fill,
    filled,
    groups_rare,
    has_words,
    is_nan,
    tables_of,
)
from sparsejit.estimators.frame_categories import FrameCategories, frame_categories
from sparsejit.estimators.parts import (
    ADAPTIVE,
    BAGS,
    CALIBRATED,
    CHAINS,
    ENSEMBLES,
    MADE_OF,
    STACKS,
    held,
    is_pipeline,
    steps_of,
)
from sparsejit.estimators.ranked import Ranked
from sparsejit.estimators.words import WordColumn
from sparsejit.ir.values import Array

# Steps that others take the place of.
REPLACED = ENCODERS | {"FeatureUnion", "FunctionTransformer"}


@dataclass(frozen=True, eq=False)
class NumberColumn:
    """A column of codes computed from a feature: a code for each interval of its numbers.

    Interval i ends at bound i, which belongs to it. `missing` is the code of NaN, and with
    `refuses_nan` there is none. `known` are the only numbers that are taken, None for any. `short`
    is the code of NaN among float32, to which an imputer's number is rounded, if it differs.
    """

    feature: int
    bounds: Array
    codes: Array
    missing: float
    refuses_nan: bool
    known: Array | None
    short: float | None = None

    @property
    def all_codes(self) -> Array:
        """The codes of all numbers and of NaN that are not refused."""
        return self.codes if self.refuses_nan else np.append(self.codes, self.missing)

    def code_of_nan(self, is_short: bool) -> float:
        """The code of NaN, among float32 or float64."""
        return self.missing if self.short is None or not is_short else self.short


CodeColumn: TypeAlias = WordColumn | NumberColumn


@dataclass(frozen=True, eq=False)
class Lifted:
    """An estimator that reads X, then the columns of `words`, then the columns of `numbers`.

    With `reads_codes` words are categories of a frame, and an X without columns has their codes.
    """

    estimator: Any
    features: int
    words: tuple[WordColumn, ...] = ()
    numbers: tuple[NumberColumn, ...] = ()
    reads_codes: bool = False

    @property
    def width(self) -> int:
        """The number of columns that the estimator reads."""
        return self.features + len(self.words) + len(self.numbers)


def lifted(estimator: Any, features: int) -> Lifted:
    """The estimator without encoders that read words, or numbers that need a table.

    Raises InvalidInput for such encoders behind steps that are no imputers or selectors.
    """
    lifting = _Lifting()
    found = lifting.estimator(estimator, [_Raw(number) for number in range(features)])
    if not (lifting.columns or lifting.is_changed):
        return Lifted(estimator, features)
    words = tuple(each for each in lifting.columns if isinstance(each, WordColumn))
    numbers = tuple(each for each in lifting.columns if isinstance(each, NumberColumn))
    made = Lifted(found, features, words, numbers, lifting.reads_codes)
    places = {id(each): place for place, each in enumerate((*words, *numbers), features)}
    lifting.resolve(places, made.width)
    return made


@dataclass(frozen=True)
class _Raw:
    """A column that is a feature of X, behind imputers; `words`: an imputer read words there."""

    feature: int
    fills: tuple[Fill, ...] = ()
    words: bool = False


_Steps: TypeAlias = list[Any]
# The mark of a part that reads all columns, of X and of codes.
_EVERY = object()


@dataclass(frozen=True, eq=False)
class _Lift:
    """Steps that read columns of X or of codes, and the steps behind them."""

    steps: _Steps
    columns: list[Any]
    rest: _Steps
    is_sparse: bool = False


class _Lifting:
    """Rewrites an estimator, and collects the columns of codes that it reads instead."""

    def __init__(self) -> None:
        self.columns: list[CodeColumn] = []
        self.transformers: list[Any] = []
        self.is_changed = self.reads_codes = False

    def estimator(self, estimator: Any, columns: list[_Raw]) -> Any:
        """A copy of an estimator that reads these columns, with its encoders replaced."""
        estimator = held(estimator)
        before: _Steps = []
        last = estimator
        if is_pipeline(estimator):
            before, last = steps_of(estimator)
        steps = self._plain([*before, last])
        part = self._steps(steps, columns)
        if part is not None:
            return joined([*self._whole(part), *part.rest])
        if type(last).__name__ in ENSEMBLES and not before:
            return self._ensemble(last, columns)
        return estimator if steps == [*before, last] else joined(steps)

    def _plain(self, steps: Sequence[Any]) -> _Steps:
        """The steps, with unions of features as ColumnTransformers."""
        kept = [step for step in steps if not is_identity(step)]
        if not kept:
            features = int(steps[-1].n_features_in_)
            kept = [transformer_of([("own", "passthrough", [*range(features)])], False, features)]
        self.is_changed |= len(kept) < len(steps) or is_identity(steps[-1])
        return [
            self._union(step) if type(step).__name__ == "FeatureUnion" else step for step in kept
        ]

    def _union(self, union: Any) -> Any:
        """A FeatureUnion as a ColumnTransformer whose parts each read all columns."""
        if union.transformer_weights:
            raise InvalidInput("the FeatureUnion has transformer_weights; fit it without them")
        self.is_changed = True
        every = list(range(int(union.n_features_in_)))
        entries = [(name, step, every) for name, step in union.transformer_list if step != "drop"]
        is_sparse = any(_is_sparse(step) for _, step, _ in entries)
        return transformer_of(entries, is_sparse, len(every))

    def _whole(self, part: _Lift) -> _Steps:
        """A part's steps as steps that read all columns."""
        if part.columns == [_EVERY]:
            return part.steps
        return [self._transformer([(part.steps, part.columns)], part.is_sparse)]

    def _ensemble(self, ensemble: Any, columns: list[_Raw]) -> Any:
        """A copy of an ensemble whose parts have their encoders replaced.

        Parts of bags, chains and AdaBoost* read columns that these take: their encoders stay.
        """
        kind = type(ensemble).__name__
        if kind in ADAPTIVE | BAGS | CHAINS:
            return ensemble
        found, count = copy.copy(ensemble), len(self.columns)
        if kind in CALIBRATED:
            found.calibrated_classifiers_ = [
                with_attributes(each, estimator=self.estimator(each.estimator, columns))
                for each in ensemble.calibrated_classifiers_
            ]
            return found
        parts = getattr(ensemble, MADE_OF[kind])
        if isinstance(parts, list | tuple):
            made: Any = [self.estimator(each, columns) for each in parts]
        else:
            made = self.estimator(parts, columns)
        setattr(found, MADE_OF[kind], made)
        if kind in STACKS and ensemble.passthrough and len(self.columns) > count:
            raise InvalidInput(
                f"the {kind} passes X on to its final estimator, and encoders "
                "stand inside of it; put them before it, or give passthrough=False"
            )
        return found

    def _steps(self, steps: _Steps, columns: list[_Raw]) -> _Lift | None:
        """The steps with encoders replaced, None where none needs that."""
        for place, step in enumerate(steps):
            kind, rest = type(step).__name__, steps[place + 1 :]
            if kind in ENCODERS and _is_lifted(step, columns):
                return self._encoder(step, columns, rest)
            if (categories := frame_categories(step)) is not None:
                return self._categories(categories, columns)
            if kind == "KBinsDiscretizer" and step.encode != "ordinal":
                return self._bins(step, columns, rest)
            if kind == "ColumnTransformer":
                found = self._in_parts(step, columns)
                return None if found is None else _Lift([found], [_EVERY], rest)
            if kind == "SimpleImputer" and _is_plain(step):
                columns = _imputed(step, columns)
            elif kind in SELECTORS:
                columns = [columns[number] for number in step.get_support(indices=True)]
            else:
                break
        if any(column.words for column in columns):
            raise InvalidInput(
                "a SimpleImputer fills in words, and no encoder follows; encode them with "
                "OneHotEncoder, OrdinalEncoder or TargetEncoder"
            )
        return None

    def _in_parts(self, transformer: Any, columns: list[_Raw]) -> Any:
        """A copy of a ColumnTransformer that reads codes, None where no part needs them."""
        count = len(self.columns)
        parts: list[tuple[_Steps, list[Any]]] = []
        for part in parts_of(transformer, len(columns)):
            own = [columns[number] for number in part.columns.tolist()]
            steps = self._plain(part.steps) if part.steps else []
            made = self._steps(steps, own)
            if made is None:
                parts.append((steps, own))
            else:
                parts.append(([*made.steps, *made.rest], made.columns))
        if len(self.columns) == count and not self.is_changed:
            return None
        return self._transformer(parts, bool(transformer.sparse_output_))

    def _transformer(self, parts: list[tuple[_Steps, list[Any]]], is_sparse: bool) -> Any:
        """A ColumnTransformer of parts, each its steps and columns: features or codes."""
        entries = []
        for number, (steps, columns) in enumerate(parts):
            step = joined(steps) if steps else "passthrough"
            places = [_feature_of(each) if isinstance(each, _Raw) else each for each in columns]
            entries.append((f"part{number}", step, places))
        made = transformer_of(entries, is_sparse)
        self.transformers.append(made)
        return made

    def resolve(self, places: dict[int, int], width: int) -> None:
        """Replace columns of codes, in all parts, by their numbers."""
        for transformer in self.transformers:
            transformer.n_features_in_ = width
            for _, _, columns in transformer.transformers_:
                whole = list(range(width)) if columns == [_EVERY] else columns
                columns[:] = [places.get(id(each), each) for each in whole]

    def _encoder(self, encoder: Any, columns: list[_Raw], rest: _Steps) -> _Lift:
        """The columns of an encoder, made of codes."""
        tables = tables_of(encoder, [column.fills for column in columns])
        made, codes = [], []
        for number, (table, column) in enumerate(zip(tables, columns, strict=True)):
            is_words = column.words or has_words(encoder, number)
            for each in _codes_of(encoder, table):
                made.append(self._column(encoder, is_words, column.feature, table, each))
                codes.append(each)
        write = _one_hot if type(encoder).__name__ == "OneHotEncoder" else _ranked
        is_sparse = bool(getattr(encoder, "sparse_output", False))
        return _Lift(write(encoder, codes), made, rest, is_sparse)

    def _categories(self, categories: FrameCategories, columns: list[_Raw]) -> _Lift:
        """The columns of boosted trees, with codes where they read categories of a frame."""
        read: list[Any] = list(columns)
        kind = type(categories.estimator).__name__
        self.reads_codes |= categories.reads_codes
        for number, codes in categories.codes.items():
            feature = _feature_of(columns[number])
            read[number] = WordColumn(feature, codes, np.nan, categories.others, kind)
            self.columns.append(read[number])
        return _Lift([], read, [categories.estimator])

    def _bins(self, step: Any, columns: list[_Raw], rest: _Steps) -> _Lift:
        """The columns of a KBinsDiscretizer: a code is the place of a bin."""
        made, counts = [], [int(count) for count in step.n_bins_]
        for edges, column in zip(step.bin_edges_, columns, strict=True):
            inner = np.asarray(edges[1:-1], np.float64)
            codes = np.arange(len(inner) + 1, dtype=np.float64)
            fill = filled(np.nan, column.fills)
            if column.words or any(not is_nan(missing) for missing, _ in column.fills):
                raise InvalidInput(
                    "a SimpleImputer that replaces other values than NaN stands before a "
                    "KBinsDiscretizer; fit it with missing_values=nan"
                )
            missing, short = (
                float(np.searchsorted(inner, number, side="right"))
                for number in (fill, np.float64(np.float32(fill)))
            )
            bounds = np.nextafter(inner, -np.inf)
            refuses = is_nan(fill)
            made.append(
                NumberColumn(column.feature, bounds, codes, missing, refuses, None, short)
            )
        self.columns += made
        is_sparse = step.encode == "onehot"
        return _Lift(_places(counts, is_sparse), [*made], rest, is_sparse)

    def _column(
        self, encoder: Any, is_words: bool, feature: int, table: EncoderTable, codes: _Codes
    ) -> CodeColumn:
        column: CodeColumn
        if is_words:
            known = {
                value: float(code)
                for value, code in zip(table.values, codes.known, strict=True)
                if not is_nan(value)
            }
            kind = type(encoder).__name__
            column = WordColumn(feature, known, codes.of_nan, codes.unknown, kind)
        else:
            column = _number_column(feature, table, codes)
        self.columns.append(column)
        return column


@dataclass(frozen=True, eq=False)
class _Codes:
    """A column of codes: of the values that a table has, of NaN, and of others; None: refused.

    `ranked` are the results by code, None where codes are results.
    """

    known: Array
    of_nan: float | None
    unknown: float | None
    ranked: Array | None = None
    count: int = 0


def _codes_of(encoder: Any, table: EncoderTable) -> list[_Codes]:
    """The columns of codes of one column of an encoder: one, or one for each class."""
    of_nan, unknown = table.result_of_nan(), table.unknown
    if type(encoder).__name__ == "OneHotEncoder":
        count = table.results.shape[1]
        if not count:
            return []

        def place(result: Array | None) -> float | None:
            if result is None:
                return None
            return float(np.argmax(result)) if result.any() else -1.0

        known = np.array([place(result) for result in table.results])
        return [_Codes(known, place(of_nan), place(unknown), count=count)]
    return [
        _codes_of_numbers(
            table.results[:, number],
            None if of_nan is None else float(of_nan[number]),
            None if unknown is None else float(unknown[number]),
        )
        for number in range(table.results.shape[1])
    ]


def _codes_of_numbers(results: Array, of_nan: float | None, unknown: float | None) -> _Codes:
    """Codes of results, which are numbers or NaN: the results themselves where float32 has them."""
    every = np.array([*results, *(each for each in (of_nan, unknown) if each is not None)])
    if np.array_equal(every, every.astype(np.float32), equal_nan=True):
        return _Codes(results, of_nan, unknown)
    ranked = np.unique(every[~np.isnan(every)])

    def rank(result: Any) -> Any:
        return np.where(np.isnan(result), np.nan, np.searchsorted(ranked, result))

    return _Codes(
        rank(results),
        None if of_nan is None else float(rank(of_nan)),
        None if unknown is None else float(rank(unknown)),
        ranked,
    )


def _one_hot(encoder: Any, codes: Sequence[_Codes]) -> _Steps:
    return _places([each.count for each in codes], bool(encoder.sparse_output))


def _places(counts: Sequence[int], is_sparse: bool) -> _Steps:
    """A OneHotEncoder of the codes from 0 on, as many of each column as `counts` says."""
    from sklearn.preprocessing import OneHotEncoder

    places = [np.arange(count, dtype=np.float64) for count in counts]
    made = OneHotEncoder(categories=places, handle_unknown="ignore", sparse_output=is_sparse)
    return [made.fit(np.zeros((1, len(places))))]


def transformer_of(entries: list[Any], is_sparse: bool, features: int = 0) -> Any:
    """A ColumnTransformer that looks fitted."""
    from sklearn.compose import ColumnTransformer

    made = ColumnTransformer(entries)
    made.transformers_, made.sparse_output_ = entries, is_sparse
    made.n_features_in_ = features
    return made


def _is_sparse(step: Any) -> bool:
    """Whether a step may return a sparse matrix for a dense one."""
    kind = type(step).__name__
    if kind == "Pipeline":
        return _is_sparse(step.steps[-1][1])
    if kind == "ColumnTransformer":
        return bool(step.sparse_output_)
    if kind == "KBinsDiscretizer":
        return bool(step.encode == "onehot")
    return bool(getattr(step, "sparse_output", False))


def _ranked(encoder: Any, codes: Sequence[_Codes]) -> _Steps:
    if all(each.ranked is None for each in codes):
        return []
    largest = max(float(np.nanmax(each.known, initial=0)) for each in codes)
    whole = np.arange(largest + 1)
    return [Ranked([whole if each.ranked is None else each.ranked for each in codes])]


def _number_column(feature: int, table: EncoderTable, codes: _Codes) -> NumberColumn:
    pairs = [
        (float(value), float(code))
        for value, code in zip(table.values, codes.known, strict=True)
        if not is_nan(value)
    ]
    values, known = np.array(sorted(pairs)).reshape(-1, 2).T
    refused = codes.of_nan is None
    missing = np.nan if codes.of_nan is None else codes.of_nan
    if codes.unknown is None:
        return NumberColumn(feature, values[:-1], known, missing, refused, values)
    bounds = np.stack([np.nextafter(values, -np.inf), values], axis=1).ravel()
    inside = np.stack([np.full(len(values), codes.unknown), known], axis=1).ravel()
    return NumberColumn(
        feature, bounds, np.append(inside, codes.unknown), missing, refused, None
    )


def _is_lifted(encoder: Any, columns: list[_Raw]) -> bool:
    """Whether an encoder needs codes: comparisons of x with numbers are not enough."""
    if type(encoder).__name__ != "OneHotEncoder" or groups_rare(encoder):
        return True
    if any(has_words(encoder, number) for number in range(len(columns))):
        return True
    return any(np.isnan(np.asarray(each, float)).any() for each in encoder.categories_)


def _is_plain(imputer: Any) -> bool:
    """Whether an imputer appends no marks."""
    return imputer.indicator_ is None


def _imputed(imputer: Any, columns: list[_Raw]) -> list[_Raw]:
    """The columns behind an imputer, without columns that it drops."""
    found = []
    for column, fill in zip(columns, _fills_of(imputer), strict=True):
        if is_nan(fill) and not imputer.keep_empty_features:
            continue
        is_words = not isinstance(fill, int | float)
        fills = (*column.fills, (imputer.missing_values, fill))
        found.append(replace(column, fills=fills, words=column.words or is_words))
    return found


def _fills_of(imputer: Any) -> list[Any]:
    """The values that an imputer fills in, in the dtype to which it was fitted."""
    statistics = np.asarray(imputer.statistics_)
    dtype = np.dtype(getattr(imputer, "_fill_dtype", statistics.dtype))
    if statistics.dtype.kind == "f" and dtype.kind == "f":
        statistics = statistics.astype(dtype).astype(np.float64)
    return list(statistics.tolist())


def _feature_of(column: _Raw) -> int:
    """The feature that a step without codes reads. Raises InvalidInput behind an imputer."""
    if column.fills:
        raise InvalidInput(
            "a SimpleImputer stands before a ColumnTransformer that encodes words; put it into "
            "the ColumnTransformer's parts"
        )
    return column.feature


def joined(steps: _Steps) -> Any:
    """Steps as one estimator."""
    from sklearn.pipeline import Pipeline

    if len(steps) == 1:
        return steps[0]
    return Pipeline([(f"step{number}", step) for number, step in enumerate(steps)])


def with_attributes(thing: Any, **attributes: Any) -> Any:
    copied = copy.copy(thing)
    copied.__dict__.update(attributes)
    return copied
