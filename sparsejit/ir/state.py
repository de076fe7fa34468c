"""States of a model: inputs that take a result of the call before.

A recurrent state, the past of a causal convolution, and a cache of keys and values are one thing:
an input and an output of the graph that are tied. Both keep their places among the flat lists of
inputs and outputs, whatever passes do between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.selection import PlacedRows
from sparsejit.ir.ops.views import Reshape
from sparsejit.ir.values import Array, Value


@dataclass(frozen=True, eq=False)
class State:
    """An input of a model that takes an output of the call before.

    A state of its own, such as a buffer that a torch module changes, has an input and an output
    beyond the tensors of the model's nests: a call does not give it.

    Attributes:
        name: the name under which a stream shows it
        input: number of the input in the flat list
        output: number of the output in the flat list
        initial: the value before the first call, with the input's shape and the graph's dtype, and
            one sample where the batch is free; None for zeros
        origin: the reason why the two are tied, for reports
    """

    name: str
    input: int
    output: int
    initial: Array | None = None
    origin: str = ""

    def __str__(self) -> str:
        """A line for reports."""
        return f"state {self.name}: {self.origin or f'takes output {self.output}'}"


class Pace(NamedTuple):
    """The frames and the axes of time of a model that was made of one for whole sequences.

    Attributes:
        step: frames of the first input in a call; None for any other model
        delay: frames of the input by which results are late
        axis: the axis of time in the first input
        axes: the axis of time in each output that is no state; None for an output without time
    """

    step: int | None
    delay: int = 0
    axis: int = 0
    axes: tuple[int | None, ...] = ()


NO_PACE = Pace(None)


_FIXED = "the batch is fixed"


def fixed_batch_note(why: str) -> str:
    """The note of a model with states whose batch is fixed, with the reason and a remedy."""
    return (
        f"{_FIXED}: {why}; write the model for any batch, with x.shape[0] in place of a number, or "
        "use stream() for each"
    )


def fixed_batch_of(notes: Sequence[str]) -> str:
    """The note of `fixed_batch_note` among the notes of a graph; empty where there is none."""
    return next((note for note in notes if note.startswith(_FIXED)), "")


def placed_states(graph: Graph, states: Sequence[State]) -> list[State]:
    """The states that a call may update in place: it replaces rows of them, and reads no old ones.

    The graph reads such a state once, as the tables of `PlacedRows` whose result is the state after
    the call.
    """
    made, readers = graph.producers(), graph.consumers()

    def is_placed(state: State) -> bool:
        value = _behind_reshapes(graph.outputs[state.output], made)
        node = made.get(value)
        if node is None or node.op != PlacedRows():
            return False
        *others, tables = node.inputs
        before = graph.inputs[state.input]
        if tables in others or _behind_reshapes(tables, made) is not before:
            return False
        while before is not tables:
            if before in graph.outputs or len(readers[before]) != 1:
                return False
            before = readers[before][0].output
        return tables not in graph.outputs and len(readers[tables]) == 1

    return [state for state in states if is_placed(state)]


def _behind_reshapes(value: Value, made: Mapping[Value, Node]) -> Value:
    while value in made and isinstance(made[value].op, Reshape):
        value = made[value].inputs[0]
    return value


def check_states(graph: Graph, states: Sequence[State], tile: int | None = None) -> None:
    """Raise InvalidInput for states that share an input or an output, or whose types differ.

    The graph is for a free batch in tiles of `tile` samples, or, where that is None, a fixed batch.
    """
    for side, values in (("input", graph.inputs), ("output", graph.outputs)):
        numbers = [getattr(state, side) for state in states]
        for state, number in zip(states, numbers, strict=True):
            if not 0 <= number < len(values):
                raise InvalidInput(
                    f"state {state.name} names {side} {number}; the model has {len(values)} {side}s"
                )
            if numbers.count(number) > 1:
                tied = dict.fromkeys(each.name for each in states if getattr(each, side) == number)
                raise InvalidInput(
                    f"{side} {number} belongs to two states ({', '.join(tied)}); tie each {side} "
                    "to one"
                )
    if len({state.name for state in states}) < len(states):
        names = ", ".join(state.name for state in states)
        raise InvalidInput(f"states have one name twice: {names}; name each differently")
    for state in states:
        _check_types(graph, state, tile)


def _check_types(graph: Graph, state: State, tile: int | None) -> None:
    before, after = graph.inputs[state.input].type, graph.outputs[state.output].type
    axes = graph.batch_axes
    axis = 0 if axes is None else axes.inputs[state.input]
    if before != after and axis is not None:
        raise InvalidInput(
            f"state {state.name} is {before} before a call and {after} after it; tie an input "
            "to an output of the same shape and dtype"
        )
    if tile is not None and axes is not None and axis != axes.outputs[state.output]:
        found = "has no batch" if axis is None else f"has the batch on axis {axis}"
        raise InvalidInput(
            f"state {state.name} {found} before a call, and on axis {axes.outputs[state.output]} "
            "after it; return it with the same axes, or compile with free_batch=False"
        )
    if state.initial is None:
        return
    shape = before.shape
    if tile is not None and axis is not None:
        shape = (*shape[1 : axis + 1], 1, *shape[axis + 1 :])
    if shape != state.initial.shape or state.initial.dtype.name != before.element.value:
        found = f"{state.initial.dtype.name} {list(state.initial.shape)}"
        raise InvalidInput(
            f"state {state.name} starts with {found}, and its input is {before.element.value} "
            f"{list(shape)}; give the input's"
        )
