"""A model as streams see it: without its states, which lie in a block of memory.

    StreamedModel   the parts of a compiled model that streams need
    layout_of       the places of its states in a block
    SteppedModel    the model without its states, with its native step, for one batch
    StateValues     the states of a stream by name, readable and settable
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from sparsejit.api.models.dtypes import ModelDtypes
from sparsejit.api.models.variant import Variant
from sparsejit.errors import InvalidInput, suggest
from sparsejit.frontends.nesting import TENSOR, Nest, NestKind, open_axes
from sparsejit.ir.state import NO_PACE, Pace, State, placed_states
from sparsejit.ir.values import Array, Value
from sparsejit.lowering.token_loop import TokenLoop
from sparsejit.runtime.array_checks import with_rows
from sparsejit.runtime.moved_call import MovedCall, type_of_call
from sparsejit.runtime.native_call import NativeCall, new_workspace
from sparsejit.runtime.program import Program
from sparsejit.runtime.python_objects import ArrayType
from sparsejit.runtime.state_step import StateLayout, places_of, step_function


class StreamedModel(NamedTuple):
    """The parts of a compiled model that streams need."""

    variant: Variant
    states: tuple[State, ...]
    inputs: Nest
    outputs: Nest
    pace: Pace = NO_PACE


class StepOperand(NamedTuple):
    """An input or output: its value, its batch axis in a call, and the type of the native array.

    The axis is None where it has no batch, or the batch is fixed.
    """

    value: Value
    axis: int | None
    kind: ArrayType

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the native array."""
        return tuple(length or 0 for length in self.kind.shape)

    @property
    def given(self) -> ArrayType:
        """The type of a call's array, in the model's layout."""
        return type_of_call(self.kind, self.axis)

    def for_samples(self, samples: int) -> StepOperand:
        """Return the operand of another batch."""
        if self.axis is None:
            return self
        return self._replace(kind=self.kind._replace(shape=(samples, *self.kind.shape[1:])))

    def sample(self, number: int) -> tuple[slice, ...]:
        """Return the index of one sample in the model's layout."""
        return (*[slice(None)] * (self.axis or 0), slice(number, number + 1))

    def placed(self, array: Array, leading: int = 0) -> Array:
        """Return a native array in the model's layout; `leading` axes stay where they are."""
        return np.moveaxis(array, leading, leading + self.axis) if self.axis else array

    def native(self, array: Array, leading: int = 0) -> Array:
        """Return an array in the model's layout as the native function reads it."""
        return np.moveaxis(array, leading + self.axis, leading) if self.axis else array


def _operands(
    values: Sequence[Value], axes: Sequence[int | None] | None, samples: int
) -> tuple[StepOperand, ...]:
    made = []
    for number, value in enumerate(values):
        axis = None if axes is None else axes[number]
        shape = value.shape if axis is None else (samples, *value.shape[1:])
        kind = ArrayType(value.type.element.value, shape, value.origin.name)
        made.append(StepOperand(value, axis, kind))
    return tuple(made)


def layout_of(
    variant: Variant, states: Sequence[State], room: int = 1, is_open: bool = False
) -> StateLayout:
    """Return the layout of a block for the states of `room` samples.

    If `is_open`, each call says how many of them run. Where the batch is fixed, `room` is 1. States
    of one sample lie in place where the graph allows.
    """
    axes = variant.batch_axes
    operands = _operands(variant.inputs, None if axes is None else axes.inputs, room)
    is_one = room == 1 and not is_open
    placed = set(placed_states(variant.graph, states)) if is_one else set()
    sizes = {state: operands[state.input].kind.bytes for state in states}
    places, half = places_of([0 if state in placed else size for state, size in sizes.items()])
    behind, placed_bytes = places_of([sizes[state] if state in placed else 0 for state in states])
    places = [
        half + later if state in placed else place
        for state, place, later in zip(states, places, behind, strict=True)
    ]
    read = {state.input: place for state, place in zip(states, places, strict=True)}
    written = {state.output: place for state, place in zip(states, places, strict=True)}
    return StateLayout(
        tuple(map(read.get, range(len(variant.inputs)))),
        tuple(map(written.get, range(len(variant.outputs)))),
        half,
        None if is_open else room,
        placed_bytes,
    )


class SteppedModel:
    """The model without its states, for one batch; all streams of the batch share it.

    Attributes:
        streamed: the parts of the model
        batch: the number of samples, or the most of them
        variant: the model's code
        layout: the layout of a block
        bytes: bytes of a block with the workspace behind it
        inputs, outputs: the operands that are no states
        given, made: the nests of arguments and results without the states
        dtypes: the converter of the arrays of a call
        step: `int step(inputs, outputs, memory, samples)`
    """

    def __init__(self, streamed: StreamedModel, batch: int, is_open: bool = False) -> None:
        """Make the native step. Raises InvalidInput for a model that has no streams."""
        _check_streams(streamed, batch)
        self.streamed, self.batch = streamed, batch
        self.variant, states = streamed.variant, streamed.states
        axes = self.variant.batch_axes or (None, None)
        inputs = _operands(self.variant.inputs, axes[0], batch)
        outputs = _operands(self.variant.outputs, axes[1], batch)
        self.layout = layout_of(self.variant, states, batch, is_open)
        self.bytes = self.layout.bytes + self.variant.workspace_bytes
        read, written = {s.input for s in states}, {s.output for s in states}
        self.inputs = [each for n, each in enumerate(inputs) if n not in read]
        self.outputs = [each for n, each in enumerate(outputs) if n not in written]
        self.states = {state.name: inputs[state.input] for state in states}
        self.given = _arguments_without(streamed.inputs, read)
        self.made = _results_without(streamed.outputs, written)
        self.dtypes = ModelDtypes([each.value for each in self.inputs], self.given, self.made)
        own = dict(enumerate(_leaves(streamed.inputs)))
        # A state of the model's own has no tensor there.
        nests = [own.get(state.input, TENSOR) for state in states]
        self.state_dtypes = {
            state.name: ModelDtypes([inputs[state.input].value], nest, nest)
            for state, nest in zip(states, nests, strict=True)
        }
        self.initial = [_initial(s, inputs[s.input], self.variant.tile) for s in states]
        self.step = step_function(self.variant.program, self.layout, self.variant.options.target)
        self._steps: dict[Hashable, Callable[..., int]] = {}
        self._rest: dict[int | None, list[Array]] = {}

    @property
    def names(self) -> str:
        """The names of the inputs, for messages."""
        return ", ".join(each.kind.name for each in self.inputs)

    def new_block(self) -> Array:
        """Return a block with a workspace behind it, its states the initial ones."""
        block = new_workspace(self.bytes)[: self.bytes]
        self.fill(block)
        return block

    def fill(self, block: Array, values: Sequence[Array] | None = None) -> None:
        """Set all states to these native values, by default the initial ones; the parity to 0."""
        block[:8] = 0
        for view, value in zip(self.views(block), values or self.initial, strict=True):
            view[...] = value

    def parity(self, block: Array) -> int:
        """The half that holds the states now."""
        return int(block[0])

    def views(self, block: Array, half: int | None = None) -> list[Array]:
        """Return the states in a half, by default the current one, as native arrays."""
        parity = self.parity(block) if half is None else half
        views = []
        for state, operand in zip(self.streamed.states, self.states.values(), strict=True):
            start = self.layout.start(self.layout.inputs[state.input] or 0, parity)
            kind = operand.kind
            part = block[start : start + kind.bytes].view(kind.dtype)
            views.append(part.reshape(operand.shape))
        return views

    def call_of(self, block: Array) -> tuple[NativeCall, NativeCall | MovedCall]:
        """Return calls of a block's step: with native arrays, and with the model's arrays."""
        moves = self.batch > 1 and any(each.axis for each in (*self.inputs, *self.outputs))
        # An array of one sample has the same layout in memory for any batch axis.
        taken, made = (
            [each.kind if moves else each.given for each in side]
            for side in (self.inputs, self.outputs)
        )
        native = NativeCall(self.step.memory, taken, made, self.bytes, block)
        if not moves:
            return native, native
        axes = [each.axis for each in self.inputs], [each.axis or 0 for each in self.outputs]
        return native, MovedCall(native, taken, made, *axes)

    def steps(self, advances: tuple[int, ...]) -> Callable[..., int]:
        """Return `int steps(inputs, outputs, memory, n)`, made at the first call."""
        if advances not in self._steps:
            target, run = self.variant.options.target, self.variant.program
            made: Program = step_function(run, self.layout, target, advances)
            self._steps[advances] = made.memory.function(4, with_status=True)
        return self._steps[advances]

    def token_steps(self, advances: tuple[int, ...], loop: TokenLoop) -> Callable[..., int]:
        """Return `int steps(inputs, outputs, memory, n, draw)`, which draws a token in each step.

        It is made at the first call.
        """
        key = advances, loop
        if key not in self._steps:
            target, run = self.variant.options.target, self.variant.program
            made = step_function(run, self.layout, target, advances, loop.emit)
            self._steps[key] = made.memory.function(5, with_status=True)
        return self._steps[key]

    def rest(self, most: int | None) -> list[Array]:
        """Return the states after silence: zeros in all inputs for `most` steps.

        Where that is None, until the states change by 1e-6 of their largest value or less, at
        most 1,000 steps.
        """
        if most not in self._rest:
            self._rest[most] = self._rested(most)
        return self._rest[most]

    def _rested(self, most: int | None) -> list[Array]:
        block = self.new_block()
        call, _ = self.call_of(block)
        silence = [np.zeros(with_rows(k.shape, 0), k.dtype) for k in call.checked.taken]
        before = [view.copy() for view in self.views(block)]
        for _ in range(_MOST_STEPS if most is None else most):
            call.run(*silence)
            now = [view.copy() for view in self.views(block)]
            if most is None and all(map(_is_same, before, now)):
                break
            before = now
        return [view.copy() for view in self.views(block)]

    def require_numbers(self, block: Array) -> None:
        """Raise InvalidInput, naming the state, where a state holds NaN."""
        for name, view in zip(self.states, self.views(block), strict=True):
            if view.dtype.kind == "f" and np.isnan(view).any():
                raise InvalidInput(
                    f"state {name} became NaN in this step; look at its inputs, then call reset()"
                )


_MOST_STEPS, _CHANGE = 1000, 1e-6


def _is_same(before: Array, now: Array) -> bool:
    most = np.abs(before).max(initial=0)
    return bool((np.abs(now - before) <= _CHANGE * most).all())


def _check_streams(streamed: StreamedModel, batch: int) -> None:
    """Raise InvalidInput for a model without states, or without streams of this batch."""
    variant = streamed.variant
    if not streamed.states:
        raise InvalidInput(
            'the model has no states; compile it with state={"input": "output"}, names of the '
            "inputs that take an output of the call before"
        )
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise InvalidInput(f"batch={batch!r}; give a whole number from 1 on")
    if open_axes(streamed.outputs):
        raise InvalidInput(
            "an output has a size that depends on the inputs; streams take models whose outputs "
            "have fixed sizes: carry the states by hand"
        )
    if batch == 1:
        return
    if variant.batch_axes is None:
        raise InvalidInput(f"batch={batch}: the batch of this model is fixed; leave batch out")
    for state in streamed.states:
        if variant.batch_axes.inputs[state.input] is None:
            raise InvalidInput(
                f"batch={batch}: state {state.name} has no batch; use a stream for each sample"
            )


def _initial(state: State, operand: StepOperand, tile: int | None) -> Array:
    """Return a state's first value, a native array that broadcasts over samples, or a number."""
    shape, dtype = operand.shape, operand.kind.dtype
    value = np.zeros((), dtype) if state.initial is None else np.asarray(state.initial, dtype)
    if value.size == 1:
        return value.reshape(())
    if operand.axis is None:
        return value.reshape(shape)
    each = prod(shape[1:])
    if value.size == each:  # one sample lies in memory alike for any axis of the batch
        return value.reshape(1, *shape[1:])
    return operand.native(value)[:1] if tile is not None else value


def _leaves(nest: Nest) -> list[Nest]:
    """Return the tensors of a nest, in order."""
    if nest.kind is NestKind.TENSOR:
        return [nest]
    return [leaf for item in nest.items for leaf in _leaves(item)]


def _pruned(nest: Nest, dropped: Iterator[bool], kept_depth: int = 0) -> Nest | None:
    """Return a nest without the tensors for which `dropped` is true; None where none is left.

    Containers within `kept_depth` levels stay, without items.
    """
    if nest.kind is NestKind.TENSOR:
        return None if next(dropped) else nest
    pairs = [(n, _pruned(item, dropped, kept_depth - 1)) for n, item in enumerate(nest.items)]
    left = [(number, item) for number, item in pairs if item is not None]
    if len(left) == len(pairs):
        return nest if [item for _, item in left] == list(nest.items) else _of_items(nest, left)
    if kept_depth <= 0 and not any(_leaves(item) for _, item in left):
        return None
    return _of_items(nest, left)


def _of_items(nest: Nest, items: Sequence[tuple[int, Nest]]) -> Nest:
    """Return the container with these of its items, by number, of no class of the user's."""
    numbers = [number for number, _ in items]
    keys = tuple(nest.keys[number] for number in numbers) if nest.keys else ()
    rebuild = nest.rebuild if len(items) == len(nest.items) else None
    return replace(nest, items=tuple(item for _, item in items), keys=keys, rebuild=rebuild)


def _without(nest: Nest, numbers: set[int], kept_depth: int = 0) -> Nest | None:
    """Return the nest without the tensors of these numbers."""
    dropped = (number in numbers for number in range(len(_leaves(nest))))
    return _pruned(nest, dropped, kept_depth)


def _arguments_without(nest: Nest, numbers: set[int]) -> Nest:
    """Return the nest (args, kwargs) without these tensors."""
    return _without(nest, numbers, kept_depth=2) or nest


def _results_without(nest: Nest, numbers: set[int]) -> Nest:
    """Return the nest of results without these tensors; a single tensor alone."""
    left = _without(nest, numbers)
    if left is None:
        return Nest(NestKind.TUPLE)
    found = _leaves(left)
    return found[0] if len(found) == 1 else left


class StateValues(MutableMapping[str, Any]):
    """The states of a stream by name, as in a dict: numpy arrays that are copies.

    An assignment to an item sets the state of the stream, as `update` does. Arrays have the
    model's shapes and dtypes.
    """

    def __init__(self, shared: SteppedModel, at: Callable[[], Any]) -> None:
        """Take the model, and a context manager that gives native views of the states."""
        self._shared, self._at = shared, at

    def __getitem__(self, name: str) -> Array:
        number, operand = self._number(name), self._shared.states[name]
        with self._at() as views:
            value = operand.placed(views[number]).copy()
        found: Array = self._shared.state_dtypes[name].narrowed([value])[0]
        return found

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def update(self, given: Mapping[str, Any], /) -> None:  # type: ignore[override]
        """Set states by name, all of them or none."""
        numbers = {self._number(name): self._checked(name, value) for name, value in given.items()}
        with self._at() as views:
            for number, value in numbers.items():
                if value.shape != views[number].shape:
                    name = list(self)[number]
                    wanted = self._shared.states[name].placed(views[number]).shape
                    raise InvalidInput(f"state {name} has another shape; give {wanted}")
            for number, value in numbers.items():
                views[number][...] = value

    def __delitem__(self, name: str) -> None:
        raise InvalidInput(f"state {name} cannot be deleted; call reset() for its first value")

    def __iter__(self) -> Iterator[str]:
        return iter(self._shared.states)

    def __len__(self) -> int:
        return len(self._shared.states)

    def __repr__(self) -> str:
        return repr(dict(self))

    def _number(self, name: str) -> int:
        names = list(self)
        if name not in names:
            raise InvalidInput(f"there is no state {name!r}; {suggest(name, names)}")
        return names.index(name)

    def _checked(self, name: str, value: Any) -> Array:
        """Return a native array of a state's dtype. Raises InvalidInput for another dtype."""
        operand = self._shared.states[name]
        (array,) = self._shared.state_dtypes[name].arrays([value])
        if array.dtype != operand.kind.dtype:
            raise InvalidInput(f"state {name} is {array.dtype}; give {operand.kind.dtype}")
        if array.ndim != len(operand.kind.shape):
            raise InvalidInput(f"state {name} has shape {array.shape}; give {operand.given.shape}")
        return operand.native(array)
