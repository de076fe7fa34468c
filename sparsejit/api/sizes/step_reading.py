"""The graph of a step, from a model that is read at two lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import lcm
from typing import Any, NamedTuple

import numpy as np

from sparsejit.errors import InvalidInput, UnsupportedOperator
from sparsejit.frontends.nesting import Nest
from sparsejit.frontends.onnx import ImportedModel
from sparsejit.frontends.torch_export import Exported
from sparsejit.ir.graph import Graph
from sparsejit.ir.state import Pace
from sparsejit.passes.steps import StepGraph, UnevenStep, step_graph
from sparsejit.whole_numbers import ceil_div

ReadAt = Callable[[tuple[Any, ...]], Exported | ImportedModel]


@dataclass(frozen=True)
class StepSize:
    """The frames of a step, and the axis of time in the first argument and those as long.

    `window`: the frames that attention keeps, where the model attends to all earlier ones.
    """

    step: int
    axis: int
    window: int | None = None

    def check(self, args: tuple[Any, ...]) -> None:
        """Raise InvalidInput for a step without frames, or an axis that the argument lacks."""
        if type(self.step) is not int or self.step < 1:
            raise InvalidInput(f"step={self.step!r}; give the frames of a step, at least 1")
        if self.window is not None and (type(self.window) is not int or self.window < 1):
            raise InvalidInput(f"window={self.window!r}; give a number of frames, at least 1")
        shape = tuple(getattr(args[0], "shape", ())) if args else ()
        if not args:
            raise InvalidInput("step needs example_inputs; give a tuple with a whole sequence")
        if type(self.axis) is not int or not -len(shape) <= self.axis < len(shape):
            raise InvalidInput(
                f"axis={self.axis!r}; give the axis of time in the first argument, whose shape is "
                f"{shape}"
            )

    def lengths(self, args: tuple[Any, ...]) -> tuple[int, int]:
        """A long and a short length, both as far from a multiple of the step as the example's.

        The long one has at least twice the frames: sums over all time by doubling then have more
        operators.
        """
        given = args[0].shape[self.axis]
        short = given if given >= 2 * self.step else given + self.step
        return short + ceil_div(short, self.step) * self.step, short

    def example(self, args: tuple[Any, ...], length: int) -> tuple[Any, ...]:
        """The arguments with another number of frames, repeated from the example."""
        given = args[0].shape[self.axis]
        return tuple(
            _of_length(each, self.axis, length) if self._has_time(each, given) else each
            for each in args
        )

    def pace(self, made: StepGraph, args: tuple[Any, ...]) -> Pace:
        """The pace of a step that was made of a model with these arguments."""
        return Pace(self.step, made.delay, self.axis % len(args[0].shape), made.axes)

    def _has_time(self, argument: Any, length: int) -> bool:
        shape = tuple(getattr(argument, "shape", ()))
        return -len(shape) <= self.axis < len(shape) and shape[self.axis] == length


def step_size(
    step: int | None, axis: int, window: int | None, *others: Any
) -> StepSize | None:
    """The step that arguments ask for, or None. Raises InvalidInput where they exclude each other.

    `others` are arguments that have no place beside a step.
    """
    if step is None:
        if window is not None or axis != -1:
            name, value = ("axis", axis) if window is None else ("window", window)
            raise InvalidInput(f"{name}={value} says how a step is made; give step too")
        return None
    if any(others):
        raise InvalidInput(
            "step makes a function of one size that keeps its own states; leave out "
            "dynamic_shapes, free_shapes, state and fallback"
        )
    return StepSize(step, axis, window)


def _of_length(array: Any, axis: int, length: int) -> Any:
    places = np.arange(length) % array.shape[axis]
    return array[(slice(None),) * (axis % len(array.shape)) + (places,)]


class ReadStep(NamedTuple):
    """A step, and the nests of the model's arguments and results; states lie behind these."""

    inputs: Nest
    outputs: Nest
    made: StepGraph


def read_step(read: ReadAt, args: tuple[Any, ...], size: StepSize) -> ReadStep:
    """Return the step of a model. Raises InvalidInput where its size is no multiple of strides."""
    try:
        return _read(read, args, size)
    except UnevenStep as error:
        whole = error.whole
    while True:
        try:
            _read(read, args, replace(size, step=whole))
        except UnevenStep as error:
            whole = lcm(whole, error.whole)
            continue
        raise InvalidInput(
            f"step={size.step} is no whole number of frames behind the strides of the model; give "
            f"a multiple of {whole}"
        )


def _read(read: ReadAt, args: tuple[Any, ...], size: StepSize) -> ReadStep:
    lengths = size.lengths(args)
    try:
        found, other = (read(size.example(args, length)) for length in lengths)
    except UnsupportedOperator:
        raise
    except InvalidInput as error:
        raise InvalidInput(
            f"step reads the model at {lengths[0]} and {lengths[1]} frames, and it takes no such "
            f"sequence: {error}; give a model of any length, or a longer example"
        ) from error
    long, short = found.graph(None), other.graph(None)
    if changed := found.interface.own_states:
        raise InvalidInput(
            f"the model changes buffers ({', '.join(state.name for state in changed)}); a step is "
            "made of a model of whole sequences, which keeps nothing: leave out step"
        )
    if long.batch_axes is not None and long.batch_axes.are_moved:
        raise InvalidInput("a step takes a model whose batch is axis 0; transpose its inputs")
    made = step_graph(long, short, size.step, _axes(long, short), size.window)
    return ReadStep(found.input_tree, found.output_tree, made)


def _axes(long: Graph, short: Graph) -> list[int | None]:
    """The axis of time in each input: the one whose length differs."""
    axes: list[int | None] = []
    for one, other in zip(long.inputs, short.inputs, strict=True):
        pairs = enumerate(zip(one.shape, other.shape, strict=True))
        axes.append(next((axis for axis, (own, less) in pairs if own != less), None))
    return axes
