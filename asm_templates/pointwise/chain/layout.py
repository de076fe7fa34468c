"""Where a chain's elements lie: axes that every array walks alike become one, one is the vectors'.

    x (b, t, h, d), y (b, h, t, d)      loops over b, h, t; vectors along d
    x, y (n, c, h, w)                   no loop; vectors along n c h w
    x, y (f, t), sums over f            loop over t, as many as a vector has lanes at once
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sparsejit.asm_templates.pointwise.chain.typed import Strided
from sparsejit.errors import CompileError
from sparsejit.ir.graph import Element


@dataclass(frozen=True)
class ChainAxis:
    """So many elements; bytes from one to the next in every array."""

    length: int
    strides: tuple[int, ...]

    def outside(self, inner: "ChainAxis") -> bool:
        """Whether this axis goes on where `inner` ends, in every array."""
        pairs = zip(self.strides, inner.strides, strict=True)
        return all(outer == inner.length * step for outer, step in pairs)


@dataclass(frozen=True)
class IterationSpace:
    """Loops, outermost first, around the axis that is a row.

    Vectors lie along the row, or across so many rows as are `together`: those of the last loop.
    """

    loops: tuple[ChainAxis, ...]
    row: ChainAxis
    together: int = 1

    @property
    def rows(self) -> int:
        """How often the loops run."""
        count = 1
        for axis in self.loops:
            count *= axis.length
        return count

    @property
    def walks(self) -> int:
        """How often a row is walked along."""
        return self.rows // self.together


def lay_out(
    shape: Sequence[int],
    operands: Sequence[Strided],
    results: Sequence[Strided],
    reduces: bool,
    lanes: int,
) -> IterationSpace:
    """The space of a chain; where it `reduces`, its last axis is a row.

    Arrays are the operands, then the results. Raises CompileError for strides that do not fit the
    shape.
    """
    arrays = (*operands, *results)
    for array in arrays:
        if array.constant is None and len(array.strides) != len(shape):
            raise CompileError(
                f"strides {array.strides} do not fit shape {tuple(shape)}; give one for each axis"
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
    """Whether vectors lie along an axis of whole vectors, and not along rows, which are reduced."""
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
    """Elements a step along an axis: whole vectors where all strides are 1, else one by one."""
    scattered = sum(
        1 for step, size in zip(axis.strides[first_result:], elements[first_result:], strict=True)
        if step != size
    )
    gathered = sum(
        1 for step, size in zip(axis.strides[:first_result], elements, strict=False)
        if step not in (0, size)
    )
    return min(axis.length, 16) / (1 + 2 * gathered + 4 * scattered)
