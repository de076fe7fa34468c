"""A loop in a model: its body runs several times, each turn from the states of the turn before.

    states = initial
    for t in range(count):
        states, parts[t] = body(states, sequences[t], others)
    return states, parts
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from sparsejit.ir.graph import Graph, GraphBuilder
from sparsejit.ir.operator import BatchPlace, Follower, Node, Operator, SamplesMixed
from sparsejit.ir.signature import Signature, signature
from sparsejit.ir.time_rules import Carried, TimeRule, Whole
from sparsejit.ir.values import Array, Origin, TensorType, Value


@dataclass(frozen=True)
class BodyNode:
    """An operator of a body, and the numbers of its operands."""

    op: Operator
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Turns(Operator):
    """`count` turns of a body.

    Operands: the initial states; sequences (count, ...), of which each turn reads its part; and
    values that all turns read. Values of the body have numbers: operands first, a part in place of
    each sequence, then the results of its nodes. `results` are the numbers of the next states, then
    of the parts that are stacked. Results: the last states, then the stacks (count, ...).
    """

    count: int
    states: int
    sequences: int
    nodes: tuple[BodyNode, ...]
    results: tuple[int, ...]

    mixing: ClassVar[str] = "runs over the batch as over turns"

    def __str__(self) -> str:
        return f"{self.count} turns of {len(self.nodes)} operators"

    def signature(self, operands: int) -> Signature:
        """A signature of this many operands of any types; `infer` checks them by the body."""
        taken = ", ".join(f"x{number} any [*axes{number}]" for number in range(operands))
        return signature(taken)

    def infer(self, *operands: TensorType) -> tuple[TensorType, ...]:
        lead = self.states + self.sequences
        if min(self.count, self.states + 1, self.sequences + 1) < 1 or len(operands) < lead:
            raise self.refusal(operands)
        if any(kind.shape[:1] != (self.count,) for kind in operands[self.states : lead]):
            raise self.refusal(operands)
        types = [self._part(number, kind) for number, kind in enumerate(operands)]
        for node in self.nodes:
            if not all(0 <= number < len(types) for number in node.inputs):
                raise self.refusal(operands)
            types += node.op.infer(*(types[number] for number in node.inputs))
        if not all(0 <= number < len(types) for number in self.results):
            raise self.refusal(operands)
        made = [types[number] for number in self.results]
        if made[: self.states] != types[: self.states]:
            raise self.refusal(operands)
        stacked = (TensorType((self.count, *k.shape), k.element) for k in made[self.states :])
        return (*made[: self.states], *stacked)

    def _part(self, number: int, kind: TensorType) -> TensorType:
        is_sequence = self.states <= number < self.states + self.sequences
        return TensorType(kind.shape[1:], kind.element) if is_sequence else kind

    def reference(self, *operands: Array) -> tuple[Array, ...]:
        states, lead = list(operands[: self.states]), self.states + self.sequences
        sequences, others = operands[self.states : lead], operands[lead:]
        parts: list[list[Array]] = [[] for _ in self.results[self.states :]]
        for turn in range(self.count):
            values = [*states, *(np.asarray(each[turn]) for each in sequences), *others]
            for node in self.nodes:
                values += node.op.reference(*(values[number] for number in node.inputs))
            states = [values[number] for number in self.results[: self.states]]
            for rows, number in zip(parts, self.results[self.states :], strict=True):
                rows.append(values[number])
        return (*states, *map(np.stack, parts))

    def body(self, node: Node, constants: Mapping[Value, Array]) -> Graph:
        """The body as a graph of one turn, whose inputs are the operands that are not constants.

        Constants are the model's own values; states and sequences are inputs in any case.
        """
        build, values = GraphBuilder(), list[Value]()
        for number, value in enumerate(node.inputs):
            if number >= self.states + self.sequences and value in constants:
                if not build.is_constant(value):
                    build.adopt(value, constants[value])
                values.append(value)
            else:
                values.append(build.input(self._part(number, value.type), value.origin))
        origin = node.outputs[0].origin if node.outputs else Origin("body")
        for each in self.nodes:
            values += build.add(each.op, *(values[n] for n in each.inputs), origin=origin)
        return build.finish([values[number] for number in self.results])

    def follow_batch(self, follow: Follower, node: Node) -> None:
        """Set the batch's place in the results, found by following one turn of the body.

        An initial state that all samples share gets the place at which a turn leaves the batch in
        the next state. Raises SamplesMixed where the places of a state before and after a turn
        differ, and where the batch is the axis of the turns.
        """
        body = self.body(node, {})
        known = [follow.places.get(value) for value in node.inputs]
        lead = range(self.states, self.states + self.sequences)
        places = [
            place._replace(axis=place.axis - 1) if place is not None and number in lead else place
            for number, place in enumerate(known)
        ]
        if any(place is not None and place.axis < 0 for place in places):
            raise SamplesMixed(self.mixing)
        found = self._places(follow, body, node, places)
        for number, place in enumerate(places[: self.states]):
            left = found[number]
            if left == place:
                continue
            if place is not None or left is None:
                raise SamplesMixed(self.mixing)
            places[number] = left
            follow.check_shared(node.inputs[number], left)
        found = self._places(follow, body, node, places)
        if found[: self.states] != places[: self.states]:
            raise SamplesMixed(self.mixing)
        for number, (value, place) in enumerate(zip(node.outputs, found, strict=True)):
            if place is None:  # the same for all samples, such as a counter
                follow.given.add(value)
                continue
            moved = place.axis + (number >= self.states)
            follow.places[value] = place._replace(axis=moved)

    def _places(
        self, follow: Follower, body: Graph, node: Node, places: list[BatchPlace | None]
    ) -> list[BatchPlace | None]:
        """The batch's place in each result of a turn, from its `places` in the body's operands.

        None for a result that is the same for all samples.
        """
        inside = body.follower(follow.batch)
        for value, place, outer in zip(body.inputs, places, node.inputs, strict=True):
            if place is not None:
                inside.places[value] = place
            elif outer in follow.given:
                inside.given.add(value)
            else:
                inside.know(value, follow.array(outer))
        for each in body.nodes:
            if any(value in inside.places for value in each.inputs):
                each.op.follow_batch(inside, each)
            elif not inside.given.isdisjoint(each.inputs):
                inside.given.update(each.outputs)
        for value, place in inside.shared.items():
            if value in body.inputs:
                follow.shared.setdefault(node.inputs[body.inputs.index(value)], place)
        return [inside.places.get(value) for value in body.outputs]

    def time_rule(
        self, node: Node, places: Sequence[BatchPlace | None], length: int
    ) -> TimeRule:
        lead = range(self.states, self.states + self.sequences)
        found = {number: place for number, place in enumerate(places) if place is not None}
        if any(n not in lead or place != BatchPlace(0) for n, place in found.items()):
            return Whole("has time inside of a turn", "make a turn of each frame")
        return Carried(tuple((n, n) for n in range(self.states)))

    def resized(self, node: Node, place: BatchPlace, length: int) -> Operator:
        return replace(self, count=length)

    def of_any_size(self) -> Operator:
        nodes = tuple(replace(node, op=node.op.of_any_size()) for node in self.nodes)
        return replace(self, nodes=nodes)
