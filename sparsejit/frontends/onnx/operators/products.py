"""Products of matrices, and Einsum as such products.

bqhd,bkhd->bhqk:  batch b h (in both, and kept), rows q, columns k, summed d (in both, not kept)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from sparsejit.frontends.onnx.call import Call
from sparsejit.frontends.onnx.operators import quantisation
from sparsejit.frontends.writing import arranging, products, reductions
from sparsejit.frontends.writing.writer import Unmapped, Writer
from sparsejit.ir.values import Element, Value

# A letter for each axis; the axes of an ellipsis are numbered from its end.
Labels = list[str]


class _Term:
    """An operand and the labels of its axes."""

    def __init__(self, write: Writer, x: Value, labels: Labels) -> None:
        self.x, self.labels, self._write = x, labels, write

    def sizes(self, labels: Sequence[str]) -> list[int]:
        """The sizes of axes; 1 for labels that it does not have."""
        own = dict(zip(self.labels, self.x.shape, strict=True))
        return [own.get(each, 1) for each in labels]

    def summed(self, kept: Collection[str]) -> _Term:
        """The term summed over axes of other labels."""
        axes = [n for n, label in enumerate(self.labels) if label not in kept]
        if not axes:
            return self
        labels = [label for label in self.labels if label in kept]
        return _Term(self._write, reductions.sum_over(self._write, self.x, axes), labels)

    def without_ones(self, sizes: Mapping[str, int]) -> _Term:
        """The term without axes of one element that broadcast."""
        pairs = zip(self.labels, self.x.shape, strict=True)
        labels = [label for label, n in pairs if n == sizes[label]]
        x = arranging.reshaped(self._write, self.x, self.sizes(labels))
        return _Term(self._write, x, labels)

    def as_shape(self, order: Sequence[str], shape: Sequence[int]) -> Value:
        """The operand with its axes in this order of labels, reshaped."""
        axes = [self.labels.index(label) for label in order]
        known = self._write.known(self.x)
        if known is not None:
            array = np.ascontiguousarray(known.transpose(axes)).reshape(shape)
            return self._write.constant(array, self.x.origin.name)
        turned = arranging.permuted(self._write, self.x, axes)
        return arranging.reshaped(self._write, turned, shape)

    def as_axes_of(self, labels: Sequence[str]) -> Value:
        """The operand with an axis for each label, of one element for labels that it lacks."""
        own = [label for label in labels if label in self.labels]
        return self.as_shape(own, self.sizes(labels))


def einsum(write: Writer, call: Call) -> Value:
    """Sums of products over the axes that the equation does not keep, operand by operand."""
    operands = [write.floats(x) for x in call.values(write)]
    given, result = _labels(str(call.attribute("equation")), [len(x.shape) for x in operands])
    terms = [_Term(write, *pair) for pair in zip(operands, given, strict=True)]
    sizes = _sizes(terms)
    first, *others = (term.without_ones(sizes) for term in terms)
    for number, other in enumerate(others, 1):
        later = {label for term in others[number:] for label in term.labels}
        first = _product_of_terms(write, first, other, {*later, *result})
    return first.summed(result).as_axes_of(result)


def _labels(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of each operand and of the result. Raises Unmapped where they do not fit."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise Unmapped(f"its equation {equation} is not of {len(ranks)} operands")
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    found = [_spread(*pair) for pair in zip(terms, hidden, strict=True)]
    counts = Counter(label for labels in found for label in labels)
    if any(len(set(labels)) < len(labels) for labels in found):
        raise Unmapped(f"its equation {equation} repeats a label of one operand")
    most = max((n for term, n in zip(terms, hidden, strict=True) if "..." in term), default=0)
    once = sorted(label for label, count in counts.items() if count == 1 and label.isalpha())
    result = _spread(right, most) if arrow else [*_spread("...", most), *once]
    if not set(result) <= set(counts) or len(set(result)) < len(result):
        raise Unmapped(f"its equation {equation} gives a label twice or one of no operand")
    return found, result


def _spread(term: str, hidden: int) -> Labels:
    """The labels of a term whose ellipsis stands for `hidden` axes."""
    before, dots, after = term.partition("...")
    letters = before + after
    if hidden < 0 or (hidden and not dots) or not (letters.isalpha() or not letters):
        raise Unmapped(f"its term {term!r} does not fit its operand")
    return [*before, *(f".{n}" for n in range(hidden, 0, -1)), *after]


def _sizes(terms: Sequence[_Term]) -> dict[str, int]:
    """The size of every label. Raises Unmapped where operands do not broadcast."""
    found: dict[str, int] = {}
    for term in terms:
        for label, size in zip(term.labels, term.x.shape, strict=True):
            if found.setdefault(label, size) != size and 1 not in (size, found[label]):
                raise Unmapped(f"its axes {label} have {found[label]} and {size} elements")
            found[label] = max(found[label], size)
    return found


def _product_of_terms(write: Writer, a: _Term, b: _Term, kept: Collection[str]) -> _Term:
    """The product of two terms, summed over labels that are not kept."""
    a, b = a.summed({*kept, *b.labels}), b.summed({*kept, *a.labels})
    if write.known(a.x) is not None:  # weights are the second operand
        a, b = b, a
    both = [label for label in a.labels if label in b.labels]
    batch = [label for label in both if label in kept]
    summed = [label for label in both if label not in kept]
    rows, columns = ([each for each in term.labels if each not in both] for term in (a, b))
    labels = [*batch, *rows, *columns]
    if not summed:
        pair = (each.as_axes_of(labels) for each in (a, b))
        return _Term(write, write.pointwise("mul", *pair), labels)
    stack, length = a.sizes(batch), prod(a.sizes(summed))
    left = a.as_shape([*batch, *rows, *summed], [*stack, prod(a.sizes(rows)), length])
    right = b.as_shape([*batch, *summed, *columns], [*stack, length, prod(b.sizes(columns))])
    shape = [*stack, *a.sizes(rows), *b.sizes(columns)]
    product = products.matmul(write, left, right)
    return _Term(write, arranging.reshaped(write, product, shape), labels)


def matmul(write: Writer, call: Call) -> Value:
    """numpy's `a @ b`; a layer where b is known and has two axes."""
    return products.matmul(write, *call.values(write))


def gemm(write: Writer, call: Call) -> Value:
    """alpha A B + beta C, with both factors applied separately; a layer where B is known."""
    a, b, c = call.value(write, 0), call.value(write, 1), call.optional(write, 2)
    if call.flag("transA"):
        a = arranging.swapped(write, a, 0, 1)
    weights, is_turned = write.known(b), call.flag("transB")
    if weights is None or write.dtype(a).kind != "f":
        product = products.matmul(write, a, arranging.swapped(write, b, 0, 1) if is_turned else b)
    else:
        turned = b if is_turned else write.constant(np.ascontiguousarray(weights.T), b.origin.name)
        product = products.linear(write, a, turned)
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    return products.scaled_sum(write, 0.0 if c is None else c, product, beta if c else 0, alpha)


def matmul_integer(write: Writer, call: Call) -> Value:
    """(a - its zero point) @ (b - its zero point) of bytes, as floats if these are exact."""
    given, b = call.value(write, 0), quantisation.centred_weights(write, call, 1, 3)
    if call.is_read_as_float:
        return quantisation.product_of_steps(write, call, 0, 2, b)
    if quantisation.largest_sum(write, b, given.shape[-1]) <= quantisation.WHOLE_IN_FLOAT32:
        if write.known(b) is None:
            return quantisation.product_of_steps(write, call, 0, 2, b)
        found = quantisation.product_of_bytes(write, given, call.operand(2), b)
        if found is not None:
            return found
    rank = len(given.shape)
    a = quantisation.centred(write, call, 0, 2, -2 if rank > 1 else -1, rank)
    return products.matmul(write, *(write.cast(each, Element.INT64) for each in (a, b)))


OPERATORS: dict[str, Callable[[Writer, Call], Any]] = {
    "Einsum": einsum,
    "Gemm": gemm,
    "MatMul": matmul,
    "MatMulInteger": matmul_integer,
}
