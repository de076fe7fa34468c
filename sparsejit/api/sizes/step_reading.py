"""The graph of a step, from a model that is read at two lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from math import lcm
from typing import Any, NamedTuple

import numpy as np

from sparsejit.errors import InvalidInput, UnsupportedOperator
from sparsejit.frontends.batch_axis import (
    PROBES,
    InputAxes,
    SizedBatch,
    batch_first,
    follow_from_inputs,
)
from sparsejit.frontends.nesting import Nest
from sparsejit.frontends.onnx import ImportedModel
from sparsejit.frontends.torch_export import Exported
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import SamplesMixed
from sparsejit.ir.state import Pace
from sparsejit.passes.steps import StepGraph, UnevenStep, step_graph
from sparsejit.whole_numbers import ceil_div

# Reads the model for arguments; the batch may be free if the flag says so.
ReadAt = Callable[[tuple[Any, ...], bool], Exported | ImportedModel]


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
    """A step, and the nests of the model's arguments and results; states lie behind these.

    Attributes:
        inputs: the nest of the arguments
        outputs: the nest of the results
        made: the step, for the batch of the example, or for several samples if that is free
        sized: the graphs of the step for any batch; None where the batch is fixed
        batch: the samples of the example
        why_fixed: the reason why the batch is fixed, where a free one was wanted; else empty
    """

    inputs: Nest
    outputs: Nest
    made: StepGraph
    sized: SizedBatch | None
    batch: int
    why_fixed: str = ""

    def graph(self, samples: int) -> Graph:
        """The step for a number of samples, which lie on axis 0. The batch must be free."""
        assert self.sized is not None
        axes = self.sized.axes
        return replace(batch_first(self.sized.graph(samples), axes), batch_axes=axes)


def read_step(
    read: ReadAt, args: tuple[Any, ...], size: StepSize, free_batch: bool = False
) -> ReadStep:
    """Return the step of a model, with `free_batch` for any batch where samples are apart.

    Raises InvalidInput where its size is no multiple of strides.
    """
    why = ""
    try:
        if free_batch:
            try:
                return _read(read, args, size, free_batch=True)
            except (SamplesMixed, UnsupportedOperator) as error:
                why = str(error)
        return _read(read, args, size)._replace(why_fixed=why)
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


def _read(
    read: ReadAt, args: tuple[Any, ...], size: StepSize, free_batch: bool = False
) -> ReadStep:
    """Return the step. With `free_batch` raise SamplesMixed unless samples are apart."""
    lengths = size.lengths(args)
    try:
        found, other = (read(size.example(args, length), free_batch) for length in lengths)
    except UnsupportedOperator:
        raise
    except InvalidInput as error:
        raise InvalidInput(
            f"step reads the model at {lengths[0]} and {lengths[1]} frames, and it takes no such "
            f"sequence: {error}; give a model of any length, or a longer example"
        ) from error
    if changed := found.interface.own_states:
        raise InvalidInput(
            f"the model changes buffers ({', '.join(state.name for state in changed)}); a step is "
            "made of a model of whole sequences, which keeps nothing: leave out step"
        )
    samples = PROBES[0] if free_batch else None
    if free_batch and not (found.batch_is_free and other.batch_is_free):
        raise SamplesMixed(found.why_not_free or other.why_not_free)
    long, short = found.graph(samples), other.graph(samples)
    batch = long.batch_axes
    if batch is not None and batch.are_moved:
        raise SamplesMixed("a step takes samples on axis 0")
    own = None if not free_batch else _input_axes(long)
    follow = None if own is None else partial(follow_from_inputs, batch=PROBES[0], axes=own)
    made = step_graph(long, short, size.step, _axes(long, short), size.window, follow)
    sized = None if own is None else SizedBatch(made.graph, (*own, *made.samples))
    nests = found.input_tree, found.output_tree
    return ReadStep(*nests, made, sized, found.example_batch or 1)


def _input_axes(graph: Graph) -> InputAxes:
    """The axis of samples in each input: 0, or None for an input without batch."""
    return [None if graph.is_shared(number) else 0 for number in range(len(graph.inputs))]


def _axes(long: Graph, short: Graph) -> list[int | None]:
    """The axis of time in each input: the one whose length differs."""
    axes: list[int | None] = []
    for one, other in zip(long.inputs, short.inputs, strict=True):
        pairs = enumerate(zip(one.shape, other.shape, strict=True))
        axes.append(next((axis for axis, (own, less) in pairs if own != less), None))
    return axes
