"""Calls whose arrays have the batch on any axis, of functions that take and make it on axis 0.

    given (2, batch, 128)  ->  copied to (batch, 2, 128)  ->  the function  ->  copied back

Nothing is copied where only axes of one element lie before the batch. One sample lies in memory as
the function has it: a stub takes it as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from sparsejit.runtime.array_checks import (
    Array,
    check_in_place,
    check_outputs,
    checked_array,
    free_length,
    require_number,
    with_rows,
)
from sparsejit.runtime.call_stub import call_stub
from sparsejit.runtime.native_call import NativeCall
from sparsejit.runtime.python_objects import ArrayType

# How axes are put in order; None: they are.
_Order = tuple[int, ...] | None


class MovedCall:
    """As `NativeCall`, with the batch on these axes of inputs and outputs; None: an input has none.

    `input_types` and `output_types` are those of the native call.
    """

    def __init__(
        self,
        call: NativeCall,
        input_types: Sequence[ArrayType],
        output_types: Sequence[ArrayType],
        input_axes: Sequence[int | None],
        output_axes: Sequence[int],
    ) -> None:
        self._call = call
        self._taken = list(map(_type_of_call, input_types, input_axes))
        self._made = list(map(_type_of_call, output_types, output_axes))
        self._before = list(map(_to_first, input_types, input_axes))
        self._after = list(map(_to_first, output_types, output_axes))

    @cached_property
    def run(self) -> Callable[..., Any]:
        """`run(*inputs)`, the outputs, contiguous. Raises InvalidInput as `NativeCall.run` does."""
        moved = _MovedArrays(self._call.run, self._taken, self._before, self._after)
        checked = self._call.checked
        taken, made = (list(map(_of_one_sample, kinds)) for kinds in (self._taken, self._made))
        return call_stub(checked.memory, taken, made, checked.workspaces, moved)

    def __call__(self, inputs: Iterable[Array]) -> list[Array]:
        results: list[Array] = self.run(*inputs)
        return results

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """As `NativeCall.bind`; arrays that do not lie as the function has them are copied."""
        rows = _checked_batch(inputs, self._taken)
        require_number("outputs", len(outputs), self._made)
        check_in_place(inputs, self._taken)
        check_outputs(outputs, self._made, inputs, rows)
        given, before = _in_order(inputs, self._before)
        made, after = _in_order(outputs, self._after)
        run = self._call.bind(given, made)
        if not before and not after:
            return run

        def bound() -> None:
            for array, own in before:
                np.copyto(own, array)
            run()
            for array, own in after:
                np.copyto(array, own)

        return bound


class _MovedArrays:
    """`call(*inputs)` that moves axes before and after."""

    def __init__(
        self,
        run: Callable[..., Any],
        taken: Sequence[ArrayType],
        before: Sequence[_Order],
        after: Sequence[_Order],
    ) -> None:
        self._run, self._taken, self._before = run, taken, before
        self._back = [order and tuple(map(order.index, range(len(order)))) for order in after]

    def __call__(self, *inputs: Array) -> list[Array]:
        try:
            pairs = zip(inputs, self._before, strict=True)
            results = self._run(*[_arranged(array, order) for array, order in pairs])
        except (AttributeError, ValueError):  # it is said of arrays as the call gives them
            _checked_batch(inputs, self._taken)
            raise
        made = zip(results, self._back, strict=True)
        return [_arranged(array, order) for array, order in made]


def _checked_batch(inputs: Sequence[Array], taken: Sequence[ArrayType]) -> int:
    """The batch of inputs that fit."""
    require_number("inputs", len(inputs), taken)
    rows = free_length(inputs, taken)
    for array, kind in zip(inputs, taken, strict=True):
        checked_array(array, kind, rows)
    return rows


def _type_of_call(kind: ArrayType, axis: int | None) -> ArrayType:
    """The type of an array as a call has it, whose first axis goes to that place."""
    if not axis:
        return kind
    batch, *others = kind.shape
    return kind._replace(shape=(*others[:axis], batch, *others[axis:]))


def _of_one_sample(kind: ArrayType) -> ArrayType:
    return kind._replace(shape=with_rows(kind.shape, 1))


def _to_first(kind: ArrayType, axis: int | None) -> _Order:
    """What puts that axis of a call's array first, the others as they were."""
    if not axis:
        return None
    return (axis, *(each for each in range(len(kind.shape)) if each != axis))


def _arranged(array: Array, order: _Order) -> Array:
    return array if order is None else np.ascontiguousarray(array.transpose(order))


def _in_order(
    arrays: Sequence[Array], orders: Sequence[_Order]
) -> tuple[list[Array], list[tuple[Array, Array]]]:
    """Arrays that the function can use, and which of them are copies, each with what it copies."""
    used: list[Array] = []
    copies: list[tuple[Array, Array]] = []
    for array, order in zip(arrays, orders, strict=True):
        view = array if order is None else array.transpose(order)
        if view.flags.c_contiguous:
            used.append(view)
            continue
        used.append(np.empty(view.shape, view.dtype))
        copies.append((view, used[-1]))
    return used, copies
