"""A body, written by a writer of its own, as turns of a loop within the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sparsejit.frontends.writing.missing import Unmapped
from sparsejit.frontends.writing.writer import Writer
from sparsejit.ir.graph import Graph
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.selection import TruePlaces
from sparsejit.ir.ops.turns import BodyNode, Turns
from sparsejit.ir.values import Array, Value

# Operators that a body may not have.
_REFUSED = {Turns: "a loop", TruePlaces: "a size that values decide"}
_MOST_TURNS = 1 << 16  # that are evaluated, where the body computes a condition


def write_turns(
    write: Writer,
    body: Graph,
    count: int,
    states: Sequence[Value],
    sequences: Sequence[Value],
    others: Sequence[Value],
) -> tuple[Value, ...]:
    """The last states, and the body's other outputs, stacked to (count, ...).

    The body's inputs are states, parts of sequences (count, ...), and others, in this order; its
    first outputs are the next states. Raises Unmapped where a state changes its type.
    """
    for kind, words in _REFUSED.items():
        if any(isinstance(node.op, kind) for node in body.nodes):
            raise Unmapped(f"has {words} in its body")
    pairs = zip(states, body.outputs, strict=False)
    for before, after in pairs:
        if before.type != after.type:
            raise Unmapped(f"a state changes from {before.type} to {after.type}")
    constants = [write.builder.adopt(value, array) for value, array in body.constants.items()]
    numbers = {value: number for number, value in enumerate(body.values())}
    nodes = tuple(
        BodyNode(node.op, tuple(numbers[value] for value in node.inputs)) for node in body.nodes
    )
    results = tuple(numbers[value] for value in body.outputs)
    op = Turns(count, len(states), len(sequences), nodes, results)
    return write.many(op, *states, *sequences, *others, *constants)


def turns_before(
    body: Graph, truth: Value, initial: Sequence[Array | None], most: int | None
) -> int:
    """The number of turns until a condition that the body computes is false, `most` at most.

    `initial` has the first states, None for unknown ones. Raises Unmapped where the condition
    depends on anything else, or is still true after many turns.
    """
    needed = _needed(body, truth, len(initial))
    lacking = [n for n in needed.states if n >= len(initial) or initial[n] is None]
    if lacking:
        raise Unmapped("may end at any turn: a call decides")
    states = {number: initial[number] for number in needed.states}
    limit = _MOST_TURNS if most is None else min(most, _MOST_TURNS)
    for turn in range(limit):
        known: dict[Value, Any] = {**body.constants}
        known.update((body.inputs[number], array) for number, array in states.items())
        for node in needed.nodes:
            results = node.op.reference(*(known[value] for value in node.inputs))
            known.update(zip(node.outputs, results, strict=True))
        if not np.all(known[truth]):
            return turn + 1
        states = {number: known[body.outputs[number]] for number in states}
    if limit != most:
        raise Unmapped(f"has not ended after {limit} turns")
    return limit


class _Needed(NamedTuple):
    """Nodes, in order, and numbers of states that a value of a body depends on."""

    nodes: list[Node]
    states: set[int]


def _needed(body: Graph, value: Value, states: int) -> _Needed:
    """Nodes and states that a value depends on in a turn and in all turns before it."""
    wanted, numbers = {value}, dict(zip(body.inputs, range(len(body.inputs)), strict=True))
    while True:
        nodes: list[Node] = []
        for node in reversed(body.nodes):
            if wanted.intersection(node.outputs):
                wanted.update(node.inputs)
                nodes.append(node)
        read = {numbers[each] for each in wanted if each in numbers}
        before = {body.outputs[number] for number in read if number < states}
        if before <= wanted:
            return _Needed(nodes[::-1], read)
        wanted |= before
