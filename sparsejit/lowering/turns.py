"""Turns: the kernels of a body, in a loop within the model's function, with their own workspace.

    states                       swap buffers: a turn reads the states that the last one wrote
    sequences, stacked results   advance by the part of one turn
    other operands               stay where they are

The body's workspace lies in the scratch memory of the step. Registers held across a turn: rbp: the
body's workspace; r12: the model's; rbx: turns left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sparsejit.asm_templates.shared.location import WORKSPACE
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.turns import Turns
from sparsejit.ir.values import Value
from sparsejit.lowering.context import Lowering, lowers
from sparsejit.lowering.lowered_model import POINTER, LoweredModel
from sparsejit.lowering.memory.storage import View
from sparsejit.lowering.model import ModelCode, lower_model
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.passes.default import run_passes
from sparsejit.planner.choice import record_all
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, dword, r12, r13, rax, rbx, rcx
from sparsejit.x86.stack import pop, push

_SAVED = (rbx, WORKSPACE, r12, r13)
_OUTSIDE, _INSIDE = r12, r13


@lowers(Turns)
def lower_turns(low: Lowering, node: Node) -> None:
    """Append copies of the initial states, then one step that contains the body's kernels."""
    op = node.op
    assert isinstance(op, Turns)
    body = run_passes(op.body(node, low.graph.constants))
    options = replace(low.options, threads=1, shares_tiles=False)
    inside = lower_model(body, options, kept=low.kept)
    record_all(inside.decisions)
    given, lead = _inputs(low, op, node), op.states + op.sequences
    pairs = [_state(low, value) for value in given[: op.states]]
    stacked = [low.dense_result(value) for value in node.outputs[op.states :]]
    for value, pair in zip(node.outputs, pairs, strict=False):
        low.bind(value, pair[op.count % 2])
    firsts, seconds = [first for first, _ in pairs], [second for _, second in pairs]
    reads = (*firsts, *map(low.contiguous, given[op.states :]))
    writes = (*seconds, *stacked, *firsts)
    parts = [value.type.bytes // op.count for value in given[op.states : lead]]
    parts_made = [view.type.bytes // op.count for view in stacked]
    code = _BodyCode(inside, op, tuple(parts), tuple(parts_made))
    origin, facts = node.outputs[0].origin, _facts(op, inside)
    low.add(Step("turns", origin, reads, writes, code.emit, facts, inside.workspace_bytes))


def _inputs(low: Lowering, op: Turns, node: Node) -> list[Value]:
    """The operands that are inputs of the body: states, sequences and others not constant."""
    lead, known = op.states + op.sequences, low.graph.constants
    pairs = enumerate(node.inputs)
    return [value for number, value in pairs if number < lead or value not in known]


def _state(low: Lowering, value: Value) -> tuple[View, View]:
    """Two buffers for a state; the initial state is copied to the first."""
    first, second = low.temporary(value.type), low.temporary(value.type)
    low.copy(low.view(value), first, value.origin)
    return first, second


def _facts(op: Turns, inside: LoweredModel) -> Facts:
    """Facts of the kernels of all turns."""
    each = [step.facts for step in inside.steps]
    kernels = ", ".join(step.kernel for step in inside.steps)
    return Facts(
        f"{op.count} turns of: {kernels}",
        predicted_ns=op.count * inside.ns,
        nnz=sum(one.nnz for one in each),
        weights=sum(one.weights for one in each),
        weight_bytes=sum(one.weight_bytes for one in each),
        code_bytes=sum(one.code_bytes for one in each),
        effective_flops=op.count * sum(one.effective_flops for one in each),
        flops=op.count * sum(one.flops for one in each),
    )


@dataclass(frozen=True)
class _BodyCode:
    """The loop. `parts`, `parts_made`: bytes of each sequence, and stacked result, for one turn."""

    inside: LoweredModel
    op: Turns
    parts: tuple[int, ...]
    parts_made: tuple[int, ...]

    def emit(self, asm: Assembler, at: Locations) -> None:
        """Append the loop over all turns."""
        code = ModelCode(self.inside, None)
        push(asm, _SAVED)
        at.scratch.point(asm, _INSIDE)
        inputs = len(self.inside.graph.inputs)
        operands = (*at.reads, *at.writes[: len(self.inside.graph.outputs)])
        for number, place in enumerate(operands):
            place.point(asm, rax)
            asm.emit("mov", Memory(_INSIDE, POINTER * number), rax)
        asm.emit("xor", dword(rax), dword(rax))
        asm.emit("mov", Memory(_INSIDE, self.inside.status_offset), rax)
        asm.emit("mov", _OUTSIDE, WORKSPACE)
        asm.emit("mov", WORKSPACE, _INSIDE)
        with counted_down(asm, rbx, self.op.count):
            code.run_steps(asm)
            for state in range(self.op.states):
                _swap(asm, state, inputs + state)
            for number, size in enumerate(self.parts, self.op.states):
                _move(asm, number, size)
            for number, size in enumerate(self.parts_made, inputs + self.op.states):
                _move(asm, number, size)
        asm.emit("mov", rcx, Memory(WORKSPACE, self.inside.status_offset))
        asm.emit("mov", WORKSPACE, _OUTSIDE)
        at.status.report_where(asm, rcx)
        pop(asm, _SAVED)


def _swap(asm: Assembler, one: int, other: int) -> None:
    places = [Memory(WORKSPACE, POINTER * number) for number in (one, other)]
    asm.emit("mov", rax, places[0])
    asm.emit("mov", rcx, places[1])
    asm.emit("mov", places[1], rax)
    asm.emit("mov", places[0], rcx)


def _move(asm: Assembler, number: int, size: int) -> None:
    place = Memory(WORKSPACE, POINTER * number)
    asm.emit("mov", rax, place)
    asm.emit("add", rax, size)
    asm.emit("mov", place, rax)
