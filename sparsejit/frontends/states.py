"""States of a model from the user's names: `state={"h": "hn"}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Graph
from sparsejit.ir.state import State, check_states

# Inputs by the outputs that they take: names, or numbers in the flat lists of both.
GivenStates = Mapping[str | int, str | int]


def given_states(
    given: GivenStates, graph: Graph, inputs: Sequence[str], outputs: Sequence[str]
) -> tuple[State, ...]:
    """The states that a user gives, where the inputs and outputs have these names.

    Raises InvalidInput for names and numbers that the model lacks, and for types that differ.
    """
    states = []
    for before, after in given.items():
        place = _place(before, inputs, "input"), _place(after, outputs, "output")
        states.append(State(inputs[place[0]], *place))
    check_states(graph, states)
    return tuple(states)


def _place(key: str | int, names: Sequence[str], side: str) -> int:
    if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(names):
        return key
    if key in names:
        return list(names).index(str(key))
    raise InvalidInput(
        f"state names {side} {key!r}; the model has {', '.join(names)}: give one of these, or its "
        f"number from 0 to {len(names) - 1}"
    )
