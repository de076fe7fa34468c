"""Overlap of two views: whether they share bytes, so steps may not run at once, and how many."""

from dataclasses import replace
from functools import lru_cache

from sparsejit.ir.values import TensorType
from sparsejit.lowering.memory.storage import View
from sparsejit.whole_numbers import ceil_div

# Most positions of an axis to search; in row-major tensors, at most two cover any byte.
_MOST_PLACES = 4
_LINE = 64  # bytes
# Pairs of views that are remembered: a schedule on threads asks for each pair many times.
_REMEMBERED = 1 << 12

_Lengths = dict[int, int]  # of axes, by their strides


def overlap(one: View, other: View) -> bool:
    """Whether two views share bytes; also True where that takes too long to find out."""
    return _shared_elements(one, other) != 0


def shared_bytes(one: View, other: View) -> int:
    """Bytes of a view that another shares; all its bytes where that takes too long to find out."""
    elements = _shared_elements(one, other)
    return one.type.bytes if elements is None else elements * one.type.element.bytes


def torn_lines(before: View, view: View) -> int:
    """Number of cache lines that hold the end of a row of `before` and the start of one of `view`.

    Buffers begin at the start of a line.
    """
    size, run = view.type.element.bytes, view.type.element.bytes
    is_torn = view.offset % _LINE != 0
    for stride, length in sorted(_lengths(view.type, view.strides).items()):
        if stride == run:
            run *= length
        else:
            is_torn |= stride % _LINE != 0
    if not is_torn:
        return 0
    return shared_bytes(replace(view, offset=view.offset - size), before) // size


def _shared_elements(one: View, other: View) -> int | None:
    """Number of elements that two views share; None where that takes too long to find out."""
    if one.buffer is not other.buffer:
        return 0
    places = (one.type, one.strides), (other.type, other.strides)
    return _elements_at_distance(other.offset - one.offset, *places)


_Place = tuple[TensorType, tuple[int, ...]]  # type and strides of a view


@lru_cache(_REMEMBERED)
def _elements_at_distance(distance: int, one: _Place, other: _Place) -> int | None:
    """Number of elements that two views share, the second `distance` bytes behind the first.

    None where that takes too long to find out.
    """
    if not one[0].size or not other[0].size:
        return 0
    (first, end), (other_first, other_end) = _extent(0, *one), _extent(distance, *other)
    if end <= other_first or other_end <= first:
        return 0
    if one[0].element is not other[0].element:
        return None
    mine, theirs = _lengths(*one), _lengths(*other)
    strides = sorted({*mine, *theirs}, reverse=True)
    mine, theirs = _split(mine, strides), _split(theirs, strides)
    axes = [(stride, mine.get(stride, 1), theirs.get(stride, 1)) for stride in strides]
    return _elements_at(other_first - first, axes)


def _extent(offset: int, kind: TensorType, strides: tuple[int, ...]) -> tuple[int, int]:
    """Offsets of a view's first byte, and of the byte behind its last."""
    reach = [(n - 1) * stride for n, stride in zip(kind.shape, strides, strict=True)]
    first = offset + sum(min(0, each) for each in reach)
    return first, first + sum(map(abs, reach)) + kind.element.bytes


def _lengths(kind: TensorType, strides: tuple[int, ...]) -> _Lengths:
    """Lengths of the axes with a stride; two axes with the same stride count as one longer axis."""
    lengths: _Lengths = {}
    for length, stride in zip(kind.shape, strides, strict=True):
        if length > 1 and stride:
            lengths[abs(stride)] = lengths.get(abs(stride), 1) + length - 1
    return lengths


def _split(lengths: _Lengths, strides: list[int]) -> _Lengths:
    """The same elements with more axes: one is divided where a longer stride divides it evenly."""
    found: _Lengths = {}
    for stride, length in lengths.items():
        rest = length
        for longer in strides:
            each = longer // stride
            if longer <= stride or longer in lengths or longer % stride or rest % each:
                continue
            found[longer], rest = rest // each, each
        found[stride] = rest
    return found


def _elements_at(distance: int, axes: list[tuple[int, int, int]]) -> int | None:
    """Number of elements shared by two views, the second `distance` bytes behind the first.

    axes: strides, the longest first, and the lengths of both views along them.
    """
    if not axes:
        return int(distance == 0)
    (stride, here, there), *inner = axes
    most = sum(step * (length - 1) for step, length, _ in inner)
    least = -sum(step * (length - 1) for step, _, length in inner)
    first = max(1 - there, ceil_div(distance - most, stride))
    last = min(here - 1, (distance - least) // stride)
    if last - first >= _MOST_PLACES:
        return None
    found = 0
    for place in range(first, last + 1):
        elements = _elements_at(distance - place * stride, inner)
        if elements is None:
            return None
        found += elements * (min(here, there + place) - max(0, place))
    return found
