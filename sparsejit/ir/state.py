"""States of a model: inputs that take a result of the call before.

A recurrent state, the past of a causal convolution, and a cache of keys and values are one thing:
an input and an output of the graph that are tied. Both keep their places among the flat lists of
inputs and outputs, whatever passes do between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.values import Array


@dataclass(frozen=True, eq=False)
class State:
    """An input of a model that takes an output of the call before.

    Attributes:
        name: the name under which a stream shows it
        input: number of the input in the flat list
        output: number of the output in the flat list
        initial: the value before the first call, of the input's shape and dtype; None for zeros
    """

    name: str
    input: int
    output: int
    initial: Array | None = None


class Pace(NamedTuple):
    """The frames of a call's input, None without an axis of time, and those that results are late.

    Both are frames of the model's input.
    """

    step: int | None
    delay: int


NO_PACE = Pace(None, 0)


def check_states(graph: Graph, states: Sequence[State]) -> None:
    """Raise InvalidInput for states that share an input or an output, or whose types differ."""
    for side, values in (("input", graph.inputs), ("output", graph.outputs)):
        numbers = [getattr(state, side) for state in states]
        for state, number in zip(states, numbers, strict=True):
            if not 0 <= number < len(values):
                raise InvalidInput(
                    f"state {state.name} names {side} {number}; the model has {len(values)} {side}s"
                )
            if numbers.count(number) > 1:
                raise InvalidInput(
                    f"{side} {number} belongs to two states; tie each {side} to one state"
                )
    for state in states:
        before, after = graph.inputs[state.input].type, graph.outputs[state.output].type
        if before != after:
            raise InvalidInput(
                f"state {state.name} is {before} before a call and {after} after it; tie an input "
                "to an output of the same shape and dtype"
            )
