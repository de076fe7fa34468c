"""Columns of x in float64: rounded, compared and scaled by one operator."""

from __future__ import annotations

import numpy as np

from sparsejit.frontends.writing.writer import Writer
from sparsejit.ir.ops.columns import CENTRE, HIGH, IS_CATEGORY, LOW, SCALE, SHIFT, ScaledColumns
from sparsejit.ir.values import Array, Element, Value

_ROWS = 6


def in_float32(write: Writer, x: Value) -> Value:
    """x (batch, columns) rounded to float32."""
    if x.type.element is Element.FLOAT32:
        return x
    return scaled(write, x, 0.0, 1.0)


def scaled(write: Writer, x: Value, centre: Array | float, scale: Array | float) -> Value:
    """(x - centre) * scale of each column, in float64, rounded to float32."""
    numbers = _neutral(x.shape[1])
    numbers[CENTRE], numbers[SCALE] = centre, scale
    return _made(write, x, np.arange(x.shape[1]), numbers)


def equals(write: Writer, x: Value, categories: Array) -> Value:
    """1 where a column equals a category, else 0: (batch, columns * categories); NaN of NaN."""
    count = x.shape[1]
    numbers = _neutral(count * len(categories))
    numbers[CENTRE], numbers[IS_CATEGORY] = np.tile(categories, count), 1.0
    return _made(write, x, np.repeat(np.arange(count), len(categories)), numbers)


def _neutral(count: int) -> Array:
    numbers = np.zeros((_ROWS, count))
    numbers[SCALE], numbers[LOW], numbers[HIGH] = 1.0, -np.inf, np.inf
    numbers[SHIFT] = 0.0
    return numbers


def _made(write: Writer, x: Value, columns: Array, numbers: Array) -> Value:
    operands = (
        write.constant(columns, "columns"),
        write.constant(numbers, "columns.numbers", Element.FLOAT64),
    )
    return write.one(ScaledColumns(x.type.element, Element.FLOAT32), x, *operands)
