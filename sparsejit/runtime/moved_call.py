"""Calls whose arrays have the batch on any axis, of functions that have it on axis 0.

    given (2, batch, 128)  ->  copied to (batch, 2, 128)  ->  the function  ->  copied back

Nothing is copied where only axes of one element precede the batch. The array of a single sample has
the same layout in memory for any batch axis, so the native stub takes it directly.
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
    is_free,
    require_number,
    with_rows,
)
from sparsejit.runtime.call_stub import call_stub, direct_stub
from sparsejit.runtime.native_call import NativeCall
from sparsejit.runtime.python_objects import ArrayType

# Permutation of axes that puts the batch first; None where it is first.
_Order = tuple[int, ...] | None


class MovedCall:
    """A `NativeCall` with the batch on other axes of inputs and outputs.

    `input_types` and `output_types` are the types of the native call; the batch may be a number. An
    axis is None for an input without a batch.
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
        self._taken = list(map(type_of_call, input_types, input_axes))
        self._made = list(map(type_of_call, output_types, output_axes))
        self._is_free = any(map(is_free, self._taken))
        self._before = list(map(_to_first, input_types, input_axes))
        self._after = list(map(_to_first, output_types, output_axes))

    @cached_property
    def run(self) -> Callable[..., Any]:
        """`run(*inputs) -> outputs`, contiguous. Raises InvalidInput as `NativeCall.run` does."""
        moved = _MovedArrays(self._call.run, self._taken, self._before, self._after)
        checked = self._call.checked
        if not self._is_free:
            return moved
        return call_stub(checked.memory, *self._of_one_sample, checked.workspaces, moved)

    def direct(self, is_single: bool, torch: Any = None) -> Callable[..., Any] | None:
        """Return a built-in `run(*inputs)` for one sample, as from `direct_stub`; else None."""
        if not self._is_free:
            return None
        checked = self._call.checked
        kinds = self._of_one_sample
        return direct_stub(checked.memory, *kinds, checked.workspaces, is_single, torch)

    @property
    def _of_one_sample(self) -> tuple[list[ArrayType], list[ArrayType]]:
        """Types of the inputs and outputs of a call for one sample."""
        return [*map(_of_one_sample, self._taken)], [*map(_of_one_sample, self._made)]

    def __call__(self, inputs: Iterable[Array]) -> list[Array]:
        results: list[Array] = self.run(*inputs)
        return results

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], None]:
        """Bind as `NativeCall.bind` does; arrays with axes to be moved are copied in each call."""
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
    """`call(*inputs)` that moves the axes of inputs before, and of outputs after the call."""

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
        except (AttributeError, ValueError):  # the message must have the shapes of the caller
            _checked_batch(inputs, self._taken)
            raise
        made = zip(results, self._back, strict=True)
        return [_arranged(array, order) for array, order in made]


def _checked_batch(inputs: Sequence[Array], taken: Sequence[ArrayType]) -> int:
    """Return the batch. Raises InvalidInput for inputs that do not fit."""
    require_number("inputs", len(inputs), taken)
    rows = free_length(inputs, taken)
    for array, kind in zip(inputs, taken, strict=True):
        checked_array(array, kind, rows)
    return rows


def type_of_call(kind: ArrayType, axis: int | None) -> ArrayType:
    """Return the type of a call's array: `kind` with its first axis moved to `axis`."""
    if not axis:
        return kind
    batch, *others = kind.shape
    return kind._replace(shape=(*others[:axis], batch, *others[axis:]))


def _of_one_sample(kind: ArrayType) -> ArrayType:
    return kind._replace(shape=with_rows(kind.shape, 1))


def _to_first(kind: ArrayType, axis: int | None) -> _Order:
    """Return the permutation that puts `axis` of a call's array first; None where it is first."""
    if not axis:
        return None
    return (axis, *(each for each in range(len(kind.shape)) if each != axis))


def _arranged(array: Array, order: _Order) -> Array:
    return array if order is None else np.ascontiguousarray(array.transpose(order))


def _in_order(
    arrays: Sequence[Array], orders: Sequence[_Order]
) -> tuple[list[Array], list[tuple[Array, Array]]]:
    """Return arrays with their axes permuted and contiguous, and a pair (view, copy) for each copy.

    Orders are permutations of axes, or None. Copies are not initialised.
    """
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
