"""Loops of a chain: axes that all arrays step through alike are merged; vectors lie along one axis.

    x (b, t, h, d), y (b, h, t, d)      loops over b, h, t; vectors along d
    x, y (n, c, h, w)                   no loop; vectors along n c h w
    x, y (f, t), sums over f            loop over t, a vector of them at a time
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sparsejit.asm_templates.pointwise.row_chain.typed import Strided
from sparsejit.errors import CompileError
from sparsejit.ir.values import Element


@dataclass(frozen=True)
class ChainAxis:
    """An axis of `length` elements; `strides`: bytes from one to the next in every array."""

    length: int
    strides: tuple[int, ...]

    def outside(self, inner: "ChainAxis") -> bool:
        """Whether `inner` and this axis around it are one evenly strided axis in every array."""
        pairs = zip(self.strides, inner.strides, strict=True)
        return all(outer == inner.length * step for outer, step in pairs)


@dataclass(frozen=True)
class IterationSpace:
    """Loops over a chain's arrays, outermost first, and the innermost axis, the row.

    Vectors lie along the row, or if `together` exceeds 1, across that many rows of the last loop.
    """

    loops: tuple[ChainAxis, ...]
    row: ChainAxis
    together: int = 1

    @property
    def rows(self) -> int:
        """Number of rows: the turns of all loops."""
        count = 1
        for axis in self.loops:
            count *= axis.length
        return count

    @property
    def walks(self) -> int:
        """Number of walks along a row, each of which handles `together` rows."""
        return self.rows // self.together


def lay_out(
    shape: Sequence[int],
    operands: Sequence[Strided],
    results: Sequence[Strided],
    reduces: bool,
    lanes: int,
) -> IterationSpace:
    """Choose the loops and the row of a chain; if it `reduces`, its last axis is the row.

    Arrays are the operands, then the results. Raises CompileError for strides that do not fit the
    shape.
    """
    arrays = (*operands, *results)
    for array in arrays:
        if array.constant is None and len(array.strides) != len(shape):
            raise CompileError(
                f"strides {array.strides} do not fit shape {tuple(shape)}; "
                "give one stride for each axis"
            )
    axes = [
        ChainAxis(length, tuple(0 if a.constant is not None else a.strides[n] for a in arrays))
        for n, length in enumerate(shape)
    ]
    last = axes.pop() if reduces else None
    axes = [axis for axis in axes if axis.length > 1]
    first_result = len(operands)
    axes.sort(key=lambda axis: -abs(axis.strides[first_result]))
    axes = _collapsed(axes)
    if last is not None:
        across = bool(axes) and _lie_across(axes[-1], last, arrays, first_result, lanes)
        return IterationSpace(tuple(axes), last, lanes if across else 1)
    if not axes:
        return IterationSpace((), ChainAxis(1, (0,) * len(arrays)))
    elements = [array.element.bytes for array in arrays]
    row = max(axes, key=lambda axis: _merit(axis, elements, first_result))
    return IterationSpace(tuple(axis for axis in axes if axis is not row), row)


def _lie_across(
    axis: ChainAxis, row: ChainAxis, arrays: Sequence[Strided], first_result: int, lanes: int
) -> bool:
    """Whether vectors may lie along `axis`, so that each lane reduces a row of its own.

    The axis must be dense in all results and hold whole vectors of float32.
    """
    size = Element.FLOAT32.bytes
    dense = axis.strides[first_result:] == (size,) * (len(arrays) - first_result)
    fits = dense and set(axis.strides) <= {0, size} and size not in row.strides[first_result:]
    floats = all(array.element is Element.FLOAT32 for array in arrays)
    return fits and floats and axis.length % lanes == 0


def _collapsed(axes: list[ChainAxis]) -> list[ChainAxis]:
    done: list[ChainAxis] = []
    for axis in axes:
        if done and done[-1].outside(axis):
            done[-1] = ChainAxis(done[-1].length * axis.length, axis.strides)
        else:
            done.append(axis)
    return done


def _merit(axis: ChainAxis, elements: list[int], first_result: int) -> float:
    """Estimate of elements per step along an axis: 16 if all arrays are dense, less otherwise."""
    scattered = sum(
        1 for step, size in zip(axis.strides[first_result:], elements[first_result:], strict=True)
        if step != size
    )
    gathered = sum(
        1 for step, size in zip(axis.strides[:first_result], elements, strict=False)
        if step not in (0, size)
    )
    return min(axis.length, 16) / (1 + 2 * gathered + 4 * scattered)
