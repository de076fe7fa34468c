"""Types of an operator's operands and results, written in one line.

    x float32 [*rows, in], weights float32 [out, in], bias? float32 [out] -> float32 [*rows, out]

An element is a name of `Element`; `any`; X: any of these, but the same one
throughout; or a choice (float32|int64), the same one throughout as well. An axis is a number; a
name, which is one size throughout; a product of these (3*hidden); any number of axes (*rows); or
axes that broadcast (...). A name that is an attribute of the operator has its value. An operand
with a question mark may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from math import prod
from typing import Any

import numpy as np

from sparsejit.ir.values import Element, TensorType

_TENSOR = re.compile(r"(?:(?P<name>\w+)(?P<maybe>\??) )?(?P<element>[\w|]+) \[(?P<axes>[^]]*)\]")
BROADCAST, ALIKE = "...", "X"

_USUAL = tuple(Element)

# Sizes by the name of their axis (a tuple for *rows and ...), and the element of X or a choice.
Bound = dict[str, Any]


@dataclass(frozen=True)
class DeclaredTensor:
    """One operand or result: its name if it has one, element and axes as they are written."""

    name: str
    element: str
    axes: tuple[str, ...]
    may_lack: bool = False

    @cached_property
    def fixed(self) -> int:
        """Number of axes that are single ones, neither *rows nor ... ."""
        return len(self.axes) - sum(map(_is_many, self.axes))

    def labels(self, rank: int) -> list[tuple[str, int]]:
        """Label each axis of a tensor: its name, and its place among several axes of that name.

        Places among axes that broadcast are counted from the end.
        """
        free = rank - self.fixed
        labels: list[tuple[str, int]] = []
        for axis in self.axes:
            first = -free if axis == BROADCAST else 0
            places = range(first, first + free) if _is_many(axis) else (0,)
            labels += [(axis, place) for place in places]
        return labels


@dataclass(frozen=True)
class Signature:
    """The types of an operator's operands and results; `text` is their notation."""

    text: str
    operands: tuple[DeclaredTensor, ...]
    results: tuple[DeclaredTensor, ...]

    @property
    def wanted(self) -> str:
        """The part of `text` that has the operands, for error messages."""
        return self.text.partition(" -> ")[0]

    def match(self, found: Sequence[TensorType], op: object) -> Bound | None:
        """Sizes of named axes, and elements, as operands have them; None if they do not fit."""
        least = sum(not each.may_lack for each in self.operands)
        if not least <= len(found) <= len(self.operands):
            return None
        bound: Bound = {}
        left: list[tuple[str, int]] = []
        for declared, kind in zip(self.operands, found, strict=False):
            free = len(kind.shape) - declared.fixed
            if free < 0 or (free and declared.fixed == len(declared.axes)):
                return None
            wanted = getattr(op, declared.element, declared.element)
            if not _binds_element(bound, wanted, kind.element):
                return None
            sizes = iter(kind.shape)
            for axis in declared.axes:
                if not _is_many(axis):
                    left.append((axis, next(sizes)))
                elif not _binds_many(bound, axis, tuple(islice(sizes, free)), op):
                    return None
        return bound if _solves(bound, left, op) else None

    def made(self, bound: Mapping[str, Any], op: object) -> tuple[TensorType, ...]:
        """The types of the results, from known sizes by axis name."""
        return tuple(_made(each, bound, op) for each in self.results)


@cache
def signature(text: str) -> Signature:
    """Parse a line of this module's notation."""
    taken, _, made = text.partition(" -> ")
    return Signature(text, _tensors(taken), _tensors(made))


def _tensors(text: str) -> tuple[DeclaredTensor, ...]:
    assert not re.sub(", ", "", _TENSOR.sub("", text)), f"{text!r} is not a list of tensors"
    return tuple(
        DeclaredTensor(
            found["name"] or "",
            found["element"],
            tuple(found["axes"].split(", ")) if found["axes"] else (),
            bool(found["maybe"]),
        )
        for found in _TENSOR.finditer(text)
    )


def _is_many(axis: str) -> bool:
    return axis == BROADCAST or axis.startswith("*")


def _binds_element(bound: Bound, wanted: str, found: Element) -> bool:
    if wanted == ALIKE:
        return found in _USUAL and bound.setdefault(wanted, found) is found
    if "|" in wanted:
        return found.value in wanted.split("|") and bound.setdefault(wanted, found) is found
    return found in _USUAL if wanted == "any" else found.value == wanted


def _binds_many(bound: Bound, axis: str, sizes: tuple[int, ...], op: object) -> bool:
    if axis == BROADCAST:
        if bound.setdefault(axis, sizes) == sizes:
            return True
        try:
            bound[axis] = np.broadcast_shapes(bound[axis], sizes)
        except ValueError:
            return False
        return True
    known = getattr(op, axis[1:], None)
    return bool(bound.setdefault(axis, sizes if known is None else tuple(known)) == sizes)


def _solves(bound: Bound, left: list[tuple[str, int]], op: object) -> bool:
    """Solve `left`, axes with their sizes, for the names in them; add these to `bound`.

    Return whether all sizes agree and every name is determined.
    """
    while left:
        later = []
        for axis, size in left:
            known, unknown = _factors(axis, bound, op)
            if len(unknown) > 1 or (unknown and known == 0):
                later.append((axis, size))
            elif unknown and size % known == 0:
                bound[unknown[0]] = size // known
            elif unknown or size != known:
                return False
        if len(later) == len(left):
            return False
        left = later
    return True


def _factors(axis: str, bound: Mapping[str, Any], op: object) -> tuple[int, list[str]]:
    """The product of the known factors of an axis, and the names of the unknown ones."""
    known, unknown = [], []
    for factor in axis.split("*"):
        size = int(factor) if factor.isdigit() else bound.get(factor, getattr(op, factor, None))
        if size is None:
            unknown.append(factor)
        else:
            known.append(size)
    return prod(known), unknown


def _made(declared: DeclaredTensor, bound: Mapping[str, Any], op: object) -> TensorType:
    shape: list[int] = []
    for axis in declared.axes:
        if _is_many(axis):
            shape += bound[axis] if axis in bound else getattr(op, axis[1:])
        else:
            known, unknown = _factors(axis, bound, op)
            assert not unknown, f"{op} makes {axis}, whose size no operand or field gives"
            shape.append(known)
    name = declared.element
    element = bound[name] if name in bound else getattr(op, name, None) or Element(name)
    return TensorType(tuple(shape), element)
