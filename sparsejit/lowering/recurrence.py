"""Recurrent layers: a loop over time around the planner's kernel and the gates behind it.

    recurrent = W_hh h[t-1] + b_hh                  the planner's kernel
    h[t]      = cell(gates[t], recurrent, h[t-1])   one pass, written where h[t] is wanted

Registers held across a step: r12 gates[t], r13 where h[t] goes, r14 h[t-1], r15 c, rbx steps left.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from sparsejit.asm_templates.pointwise.gru_gates import emit_gru_update
from sparsejit.asm_templates.pointwise.lstm_gates import emit_lstm_update
from sparsejit.asm_templates.pointwise.rnn_gates import emit_rnn_update
from sparsejit.asm_templates.shared.location import Location
from sparsejit.ir.graph import Node, Value
from sparsejit.ir.ops.recurrent import Recurrence, RecurrentCell
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import (
    Activation,
    GruUpdate,
    Layer,
    LstmUpdate,
    MatMul,
    MatVec,
    RnnUpdate,
)
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.products import plan_layer, product_facts
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.lowering.storage import View
from sparsejit.machine.target import Target
from sparsejit.planner.plan import Plan
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Register,
    r8,
    r9,
    r10,
    r12,
    r13,
    r14,
    r15,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
)
from sparsejit.x86.stack import pop, push

_SAVED = (rbx, r12, r13, r14, r15)
_FLOAT = 4
_Results = tuple[Register, ...]
_UPDATES: dict[RecurrentCell, Callable[[Assembler, int, _Results], None]] = {
    RecurrentCell.GRU: lambda asm, n, to: emit_gru_update(asm, GruUpdate(n), to),
    RecurrentCell.LSTM: lambda asm, n, to: emit_lstm_update(asm, LstmUpdate(n), to),
    RecurrentCell.RNN_TANH: lambda asm, n, to: emit_rnn_update(
        asm, RnnUpdate(n, Activation.TANH), to
    ),
    RecurrentCell.RNN_RELU: lambda asm, n, to: emit_rnn_update(
        asm, RnnUpdate(n, Activation.RELU), to
    ),
}


def lower_recurrence(low: Lowering, node: Node) -> None:
    """One kernel for all time steps; the last states are views of what it leaves."""
    op = node.op
    assert isinstance(op, Recurrence)
    gates, *initial, weights, bias = node.inputs
    every, *last = node.outputs
    layer, matrix = _layer(low, op, weights, bias, gates.shape[1])
    given = low.view(gates)
    given = given if given.strides[2] == _FLOAT else low.contiguous(gates)
    into = low.result(every, lambda view: view.strides[2] == _FLOAT)
    reads = (_in_order(given, op.reverse), *map(low.contiguous, initial))
    writes = [_in_order(into, op.reverse)]
    low.bind(last[0], _last(writes[0]))
    for value in last[1:]:
        writes.append(low.dense_result(value))
    choice = plan_layer(layer, matrix, low.options)
    loop = _TimeLoop(op.cell, choice, reads[0], writes[0])
    product = product_facts(layer, matrix, choice, weights.origin.name)
    facts = _facts(product, loop, low.target)
    kernel = f"{op.cell.value} {choice.chosen.template.name}"
    origin = every.origin
    low.add(Step(kernel, origin, reads, tuple(writes), loop.emit, facts, loop.scratch_bytes))


def _layer(
    low: Lowering, op: Recurrence, weights: Value, bias: Value, batch: int
) -> tuple[Layer, SparseMatrix]:
    """The product of a step."""
    matrix = SparseMatrix(low.constant(weights))
    values = low.constant(bias)
    out_features, in_features = weights.shape
    each = MatVec(out_features, in_features, values if values.any() else None, dtype=op.dtype)
    each.check_weights(matrix.dense)
    return each if batch == 1 else MatMul(each, batch), matrix


def _in_order(view: View, reverse: bool) -> View:
    """A view (time, ...) in the order in which its steps run."""
    return view.sliced(0, view.shape[0] - 1, -1, -1) if reverse else view


def _last(view: View) -> View:
    """The last step of a view (time, batch, hidden), without its axis."""
    time = view.shape[0]
    step = view.sliced(0, time - 1, time).reshaped(view.shape[1:])
    assert step is not None
    return step


def _facts(product: Facts, loop: "_TimeLoop", target: Target) -> Facts:
    """Those of the product in every step, and of the gates."""
    time, batch, hidden = loop.into.shape
    assert product.predicted_ns is not None
    core = target.core
    cycles = core.gate_cycles[loop.cell.value, target.isa] * batch * hidden
    gates_ns = cycles / core.rates.cycles_per_ns
    return replace(
        product,
        reason=f"{time} steps of: {product.reason}",
        predicted_ns=time * (product.predicted_ns + gates_ns),
        effective_flops=time * product.effective_flops,
        flops=time * product.flops,
    )


@dataclass(frozen=True)
class _TimeLoop:
    """The loop; `given` (time, batch, gates * hidden) and `into` (time, batch, hidden) in order.

    The product wants the rows of h[t-1] side by side. Where they do not lie so in `into`, a copy
    is kept behind the product in the scratch memory.
    """

    cell: RecurrentCell
    choice: Plan
    given: View
    into: View

    @property
    def batch(self) -> int:
        return self.into.shape[1]

    @property
    def hidden(self) -> int:
        return self.into.shape[2]

    @property
    def keeps_copy(self) -> bool:
        """Of the state."""
        return self.batch > 1 and self.into.strides[1] != _FLOAT * self.hidden

    @property
    def state_offset(self) -> int:
        """Of the copy, in the scratch memory."""
        return -(-self.given.type.bytes // self.given.shape[0] // 64) * 64

    @property
    def scratch_bytes(self) -> int:
        copied = _FLOAT * self.batch * self.hidden if self.keeps_copy else 0
        return self.state_offset + copied

    def emit(self, asm: Assembler, at: Locations) -> None:
        """Append all steps."""
        push(asm, _SAVED)
        starts = (r12, at.reads[0]), (r13, at.writes[0]), (r14, at.reads[1])
        for register, start in starts:
            start.point(asm, register)
        if self.cell is RecurrentCell.LSTM:
            at.reads[2].point(asm, r15)
        asm.emit("mov", rbx, self.into.shape[0])
        again = asm.label("next time step")
        asm.bind(again)
        self._step(asm, at)
        asm.emit("sub", rbx, 1)
        asm.jump("jnz", again)
        pop(asm, _SAVED)

    def _step(self, asm: Assembler, at: Locations) -> None:
        asm.emit("mov", rdi, r14)
        at.scratch.point(asm, rsi)
        self.choice.emit(asm)
        self._update(asm, at)
        if self.keeps_copy:
            self._point_to_copy(asm, at.scratch, r14)
        else:
            asm.emit("mov", r14, r13)
        if self.cell is RecurrentCell.LSTM:
            at.writes[1].point(asm, r15)
        asm.emit("add", r12, self.given.strides[0])
        asm.emit("add", r13, self.into.strides[0])

    def _point_to_copy(self, asm: Assembler, scratch: Location, register: Register) -> None:
        scratch.point(asm, register)
        asm.emit("add", register, self.state_offset)

    def _update(self, asm: Assembler, at: Locations) -> None:
        """The gates, row by row of the batch."""
        is_lstm, row = self.cell is RecurrentCell.LSTM, _FLOAT * self.hidden
        results = (r8, r9) if self.keeps_copy else (r8,)
        steps = {rdi: self.given.strides[1], rsi: row * self.cell.gates, rdx: row}
        steps[r8] = self.into.strides[1]
        asm.emit("mov", rdi, r12)
        at.scratch.point(asm, rsi)
        asm.emit("mov", rdx, r15 if is_lstm else r14)
        asm.emit("mov", r8, r13)
        if is_lstm:
            at.writes[1].point(asm, rcx)
            steps[rcx] = row
        if self.keeps_copy:
            self._point_to_copy(asm, at.scratch, r9)
            steps[r9] = row
        if self.batch == 1:
            _UPDATES[self.cell](asm, self.hidden, results)
            return
        asm.emit("mov", r10, self.batch)
        again = asm.label("next row")
        asm.bind(again)
        _UPDATES[self.cell](asm, self.hidden, results)
        for register, step in steps.items():
            asm.emit("add", register, step)
        asm.emit("sub", r10, 1)
        asm.jump("jnz", again)
