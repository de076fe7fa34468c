"""Columns of texts of a ColumnTransformer, as columns of counts that follow X.

    ColumnTransformer of vectorisers of X    ->  ColumnTransformer of X and the counts of its texts

A part is a vectoriser, or a pipeline that begins with one, of one column of texts. Columns of codes
follow the counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sparsejit.errors import InvalidInput
from sparsejit.estimators.column_steps import parts_of
from sparsejit.estimators.lifting import joined, transformer_of, with_attributes
from sparsejit.estimators.parts import held, is_pipeline
from sparsejit.estimators.text import VECTORISERS, ReadText, TextColumn, text_of


def texts_of_columns(estimator: Any) -> tuple[Any, tuple[TextColumn, ...]]:
    """An estimator that reads counts behind X, and the columns of their texts; none for most.

    Raises InvalidInput for a vectoriser of several columns, or with code of its own.
    """
    found = held(estimator)
    first = held(found.steps[0][1]) if is_pipeline(found) else found
    if type(first).__name__ != "ColumnTransformer" or not hasattr(first, "transformers_"):
        return estimator, ()
    entries = [each for each in first.transformers_ if not isinstance(each[1], str)]
    if not any(_is_of_texts(step) for _, step, _ in entries):
        return estimator, ()
    features = int(first.n_features_in_)
    made, texts = [], []
    width = features
    for name, step, columns in first.transformers_:
        alone = with_attributes(first, transformers_=[(name, step, columns)])
        for part in parts_of(alone, features):
            if not _is_of_texts(step):
                inner = joined(list(part.steps)) if part.steps else "passthrough"
                made.append((name, inner, part.columns))
                continue
            read = _read(step, columns)
            texts.append(TextColumn(int(part.columns[0]), read.reader))
            places = np.arange(width, width + read.reader.width)
            made.append((name, _behind(read), places))
            width += len(places)
    listed = [(name, step, columns.tolist()) for name, step, columns in made]
    counted = transformer_of(listed, bool(first.sparse_output_), width)
    rest = [step for _, step in found.steps[1:]] if is_pipeline(found) else []
    return joined([counted, *rest]), tuple(texts)


def _is_of_texts(step: Any) -> bool:
    while is_pipeline(step):
        step = held(step.steps[0][1])
    return type(step).__name__ in VECTORISERS


def _read(step: Any, columns: Any) -> ReadText:
    if not isinstance(columns, str | int | np.integer):
        raise InvalidInput(
            f"the {type(step).__name__} of a ColumnTransformer reads the columns {columns}; give "
            "it one column by its name alone, such as 'text'"
        )
    read = text_of(step)
    if read is None:
        raise InvalidInput("a pipeline stands inside of a pipeline of texts; give it one pipeline")
    return read


def _behind(read: ReadText) -> Any:
    """The steps behind a vectoriser."""
    steps: Sequence[Any] = [step for _, step in read.estimator.steps]
    if all(type(step).__name__ == "FunctionTransformer" and step.func is None for step in steps):
        return "passthrough"
    return read.estimator
