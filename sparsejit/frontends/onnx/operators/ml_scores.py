"""Scores and class labels of ai.onnx.ml's models, computed from sums as in ONNX Runtime.

    transformed   applies a post_transform to scores
    Labels        the labels of classes, whole numbers or strings
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.onnx.words import Texts
from sparsejit.frontends.writing import arranging, selection
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.ops.row_chains import softmax
from sparsejit.ir.ops.selection import ArgMax
from sparsejit.ir.values import Array, Value

TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
# Scores up to this size are left as zeros by SOFTMAX_ZERO.
_NO_SCORE = 1e-7
# Winitzki's approximation of the inverse of erf, with the digits that ONNX Runtime has.
_PI, _WINITZKI = 3.14159, 0.147


def _softmax_zero(write: Writer, scores: Value) -> Value:
    """Softmax over the scores that are not 0.

    A score of 0 adds nothing to the sum, and is scaled like the powers: by exp(-largest) / sum.
    """
    f = write.formula("softmax_zero")
    largest = f("row_max", scores)
    is_score = f("greater", f("abs", scores), _NO_SCORE)
    power = f("exp", f("sub", scores, largest))
    powers = f("where", is_score, power, 0.0)
    rest = f("mul", scores, f("exp", f("neg", largest)))
    found = f("div", f("where", is_score, power, rest), f("row_sum", powers))
    return f.finish(found, shape=scores.shape)


def _probit(write: Writer, scores: Value) -> Value:
    """The inverse of the normal distribution function, approximately: sqrt(2) erfinv(2 p - 1)."""
    f = write.formula("probit")
    x = f("sub", f("mul", scores, 2.0), 1.0)
    log = f("log", f("mul", f("sub", 1.0, x), f("add", x, 1.0)))
    half = f("add", f("mul", log, 0.5), 2.0 / (_PI * _WINITZKI))
    inner = f("sub", f("mul", half, half), f("mul", log, 1.0 / _WINITZKI))
    size = f("sqrt", f("sub", f("sqrt", inner), half))
    signed = f("where", f("less", x, 0.0), f("neg", size), size)
    return f.finish(f("mul", signed, sqrt(2.0)))


_FUNCTIONS: Mapping[str, Callable[[Writer, Value], Value]] = {
    "NONE": lambda write, scores: scores,
    "LOGISTIC": lambda write, scores: write.pointwise("sigmoid", scores),
    "SOFTMAX": lambda write, scores: write.one(softmax(scores.shape), scores),
    "SOFTMAX_ZERO": _softmax_zero,
    "PROBIT": _probit,
}


def transformed(write: Writer, scores: Value, kind: str) -> Value:
    """Apply a post_transform to scores (rows, n); PROBIT alone changes a single score."""
    is_single = scores.shape[1] == 1
    return scores if is_single and kind != "PROBIT" else _FUNCTIONS[kind](write, scores)


def of_two(write: Writer, score: Value, kind: str, is_share: bool) -> Value:
    """Return the scores (rows, 2) of two classes from the second's score s, (rows, 1).

    With `is_share` the first's score is 1 - s, else -s; LOGISTIC is applied to -s and s. Raises
    Unmapped for PROBIT, which leaves one score.
    """
    if kind == "PROBIT":
        raise Unmapped("has post_transform PROBIT with one score for two classes")
    negative = write.pointwise("neg", score)
    if kind == "LOGISTIC":
        return write.pointwise("sigmoid", arranging.joined(write, [negative, score], 1))
    other = write.pointwise("add", negative, 1.0) if is_share else negative
    return arranging.joined(write, [other, score], 1)


@dataclass(frozen=True)
class Labels:
    """The labels of classes: whole numbers, which are numbers of strings with `is_text`."""

    numbers: Array
    is_text: bool

    @classmethod
    def of(cls, call: Call, names: tuple[str, ...]) -> Labels:
        """Read labels, strings or whole numbers, from the first attribute that has some."""
        for name in names:
            given = call.attribute(name)
            if given:
                is_text = isinstance(given[0], str | bytes)
                numbers = call.numbers_of(given) if is_text else np.array(given, np.int64)
                return cls(numbers, is_text)
        raise Unmapped("has no labels of classes")

    def __len__(self) -> int:
        return len(self.numbers)

    def at(self, write: Writer, places: Value) -> Value | Texts:
        """Look up the labels of class indices (rows,)."""
        table = self.numbers
        if not np.array_equal(table, np.arange(len(table))):
            places = selection.looked_up(write, write.constant(table, "labels"), 0, places)
        return Texts(places) if self.is_text else places

    def of_largest(self, write: Writer, scores: Value) -> Value | Texts:
        """The label of each row's largest score; among equal scores the first wins."""
        return self.at(write, write.one(ArgMax(), scores))

    def of_second(self, write: Writer, score: Value, bound: float) -> Value | Texts:
        """The second of two labels if the score (rows, 1) is above a bound, else the first."""
        flat = arranging.reshaped(write, score, score.shape[:1])
        is_second = write.pointwise("greater", flat, bound)
        first, second = (write.constant(np.asarray(n), "label") for n in self.numbers)
        chosen = write.pointwise("where", is_second, second, first)
        return Texts(chosen) if self.is_text else chosen


def rows_of(write: Writer, x: Value) -> Value:
    """x as rows: a vector is one row. Raises Unmapped for other numbers of axes."""
    if len(x.shape) == 1:
        return arranging.reshaped(write, x, (1, *x.shape))
    if len(x.shape) != 2:
        raise Unmapped(f"reads {len(x.shape)} axes; give samples of features, (rows, columns)")
    return x
