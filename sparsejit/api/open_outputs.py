"""Outputs whose sizes depend on the inputs: arrays of the largest size, cut to the actual size."""

from __future__ import annotations

from collections.abc import Sequence

from sparsejit.errors import DamagedFile
from sparsejit.ir.graph import OpenAxis
from sparsejit.ir.values import Array, Element, TensorType, Value


def cut(results: Sequence[Array], axes: Sequence[OpenAxis]) -> list[Array]:
    """Return the outputs, cut to their actual sizes, which are further results of the call.

    An output that has its largest size is returned without a copy.
    """
    first_count = min((axis.size for axis in axes), default=len(results))
    found = list(results[:first_count])
    for output, axis, inner, count in axes:
        whole, size = found[output], inner * int(results[count])
        if size < whole.shape[axis]:
            found[output] = whole[(slice(None),) * axis + (slice(0, size),)].copy()
    return found


def check_open_axes(axes: Sequence[OpenAxis], outputs: Sequence[Value]) -> None:
    """Raise DamagedFile, without the file's name, for axes that the outputs do not have."""
    for output, axis, inner, count in axes:
        fits = output < count < len(outputs) and axis < len(outputs[output].shape) and inner
        if not fits or outputs[count].type != TensorType((), Element.INT64):
            raise DamagedFile(f"has an open axis {axis} of output {output} that is none")
