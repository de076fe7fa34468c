"""Recurrent layers: a loop over time around the planner's kernel and the gates.

    recurrent = W_hh h[t-1] + b_hh                  the planner's kernel
    h[t]      = cell(gates[t], recurrent, h[t-1])   one pass, which writes h[t] to its destination

A GRU that resets first has two products a step: of h[t-1] to r and z, then of r h[t-1] to n.
For samples with lengths, states lie at the destination of the last states (`sample_lengths`).

Registers held across a step: r12: gates[t]; r13: h[t]; r14: h[t-1]; r15: c; rbx: steps left.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from sparsejit.asm_templates.gather.int8_boundary import int8_sums
from sparsejit.asm_templates.pointwise.gates import (
    emit_gru_reset,
    emit_gru_update,
    emit_lstm_update,
    emit_rnn_update,
)
from sparsejit.asm_templates.pointwise.row_quantisation import (
    PAIR_BYTES,
    RowQuantisation,
    emit_from_own_steps,
    emit_row_quantisation,
)
from sparsejit.asm_templates.pointwise.sample_lengths import (
    emit_copy,
    emit_length_check,
    emit_within_length,
)
from sparsejit.asm_templates.shared.location import Location
from sparsejit.asm_templates.shared.loops import counted_down
from sparsejit.errors import CompileError
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.recurrent import Recurrence, RecurrentCell
from sparsejit.ir.sparse_matrix import SparseMatrix
from sparsejit.ir.spec import (
    Activation,
    DType,
    GruUpdate,
    Layer,
    LstmUpdate,
    MatMul,
    MatVec,
    Quantisation,
    RnnUpdate,
)
from sparsejit.ir.values import TensorType, Value
from sparsejit.lowering.context import Lowering, lowers
from sparsejit.lowering.memory.storage import ConstantBuffer, View
from sparsejit.lowering.products.linear import product_facts
from sparsejit.lowering.products.product_parts import emit_plan
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.machine.target import Target
from sparsejit.planner.cost import gates_ns, own_steps_ns
from sparsejit.planner.kernel_choice import Plan
from sparsejit.whole_numbers import ceil_div, round_up
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Register,
    r8,
    r9,
    r10,
    r11,
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
from sparsejit.x86.routines import pop, push

_SAVED = (rbx, r12, r13, r14, r15)
_FLOAT, _INDEX = 4, 8
_Results = tuple[Register, ...]
_UPDATES: dict[RecurrentCell, Callable[[Assembler, int, _Results], None]] = {
    RecurrentCell.GRU: lambda asm, n, to: emit_gru_update(asm, GruUpdate(n), to),
    RecurrentCell.GRU_RESET_FIRST: lambda asm, n, to: emit_gru_update(
        asm, GruUpdate(n), to, is_reset=True
    ),
    RecurrentCell.LSTM: lambda asm, n, to: emit_lstm_update(asm, LstmUpdate(n), to),
    RecurrentCell.RNN_TANH: lambda asm, n, to: emit_rnn_update(
        asm, RnnUpdate(n, Activation.TANH), to
    ),
    RecurrentCell.RNN_RELU: lambda asm, n, to: emit_rnn_update(
        asm, RnnUpdate(n, Activation.RELU), to
    ),
}


@lowers(Recurrence)
def lower_recurrence(low: Lowering, node: Node) -> None:
    """Append one kernel for all time steps; without lengths, the last h is a view of the result."""
    op = node.op
    assert isinstance(op, Recurrence)
    gates, *initial, weights, bias = node.inputs
    every, *last = node.outputs
    products = _products(low, op, weights, bias, gates.shape[1])
    given = low.view(gates)
    given = given if given.strides[2] == _FLOAT else low.contiguous(gates)
    into = low.result(every, lambda view: view.strides[2] == _FLOAT)
    reads = [_in_order(given, op.reverse), *map(low.contiguous, initial)]
    takes_integers = op.rounds_state and op.dtype is DType.INT8
    if takes_integers:
        reads.append(View.whole(*_sums_and_bias(low, weights, bias)))
    writes = [_in_order(into, op.reverse)]
    if not op.with_lengths:
        low.bind(last[0], _last(writes[0]))
    for value in last if op.with_lengths else last[1:]:
        writes.append(low.dense_result(value))
    choices = tuple(choice for _, _, choice in products)
    rounding = RowQuantisation(weights.shape[1], takes_integers) if op.rounds_state else None
    loop = _TimeLoop(op, choices, reads[0], writes[0], rounding)
    facts = _facts([product_facts(*one, weights.origin.name) for one in products], loop, low.target)
    kernel = f"{op.cell.value} {choices[0].chosen.template.name}"
    origin = every.origin
    low.add(Step(kernel, origin, tuple(reads), tuple(writes), loop.emit, facts, loop.scratch_bytes))


def _products(
    low: Lowering, op: Recurrence, weights: Value, bias: Value, batch: int
) -> list[tuple[Layer, SparseMatrix, Plan]]:
    """The products of a time step, which write rows of one matrix (batch, gates * hidden)."""
    matrix, values = low.matrix(weights), low.constant(bias)
    rows, hidden = weights.shape
    whole = MatVec(rows, hidden, dtype=op.dtype)
    if op.rounds_state and op.dtype is DType.INT8:
        whole, values = replace(whole, x_steps=Quantisation(1.0, 0)), np.zeros_like(values)
    matrix.check_fits(whole)
    ends = [rows]
    if op.cell is RecurrentCell.GRU_RESET_FIRST:
        if op.rounds_state:
            raise CompileError(
                "a GRU that resets first has no quantised state; leave rounds_state at False"
            )
        ends = [2 * hidden, rows]
    found, first = [], 0
    for end in ends:
        part, own = matrix.rows(first, end), values[first:end]
        each = replace(whole, out_features=end - first, bias=own if own.any() else None)
        layer: Layer = each
        if batch > 1:
            of = MatMul(whole, batch) if len(ends) > 1 else None
            layer = MatMul(each, batch, part_of=of)
        found.append((layer, part, low.options.planner.alone.plan(layer, part)))
        first = end
    return found


def _sums_and_bias(
    low: Lowering, weights: Value, bias: Value
) -> tuple[ConstantBuffer, TensorType]:
    """Array (2, rows): the sum of each row of weights as int8 holds them, and the bias."""
    scales, sums = int8_sums(low.matrix(weights))
    array = np.stack([scales.astype(np.float64) * sums, low.constant(bias)]).astype(np.float32)
    return ConstantBuffer.of(array), TensorType(array.shape)


def _in_order(view: View, reverse: bool) -> View:
    """A view (time, ...) in the order in which its steps run."""
    return view.sliced(0, view.shape[0] - 1, -1, -1) if reverse else view


def _last(view: View) -> View:
    """The last step of a view (time, batch, hidden), without its axis."""
    time = view.shape[0]
    step = view.sliced(0, time - 1, time).reshaped(view.shape[1:])
    assert step is not None
    return step


def _facts(products: list[Facts], loop: "_TimeLoop", target: Target) -> Facts:
    """Facts of all time steps: products and gates; `layer` is None for several products."""
    time, batch, hidden = loop.into.shape
    cell, first = RecurrentCell.GRU if loop.resets_first else loop.cell, products[0]
    ns = gates_ns(cell, batch * hidden, target) + sum(one.predicted_ns or 0.0 for one in products)
    if loop.rounding is not None:
        ns += batch * own_steps_ns(hidden, loop.op.gates * hidden, target)
    return replace(
        first,
        reason=f"{time} steps of: {first.reason}",
        predicted_ns=time * ns,
        nnz=sum(one.nnz for one in products),
        weights=sum(one.weights for one in products),
        weight_bytes=sum(one.weight_bytes for one in products),
        effective_flops=time * sum(one.effective_flops for one in products),
        flops=time * sum(one.flops for one in products),
        layer=first.layer if len(products) == 1 else None,
        zeros=b"".join(one.zeros for one in products),
    )


@dataclass(frozen=True)
class _TimeLoop:
    """The loop; `given` (time, batch, gates * hidden) and `into` (time, batch, hidden) in order.

    The product reads the rows of h[t-1] side by side. If `into` has gaps between them, a copy is
    kept behind the product in the scratch memory.
    """

    op: Recurrence
    choices: tuple[Plan, ...]
    given: View
    into: View
    rounding: RowQuantisation | None = None

    @property
    def cell(self) -> RecurrentCell:
        return self.op.cell

    @property
    def with_lengths(self) -> bool:
        return self.op.with_lengths

    @property
    def lengths_place(self) -> int:
        """The number of the read that has lengths."""
        return 1 + self.cell.states

    @property
    def batch(self) -> int:
        return self.into.shape[1]

    @property
    def hidden(self) -> int:
        return self.into.shape[2]

    @property
    def keeps_copy(self) -> bool:
        """Whether there is a copy of the state in the scratch memory."""
        if self.with_lengths:
            return False
        return self.batch > 1 and self.into.strides[1] != _FLOAT * self.hidden

    @property
    def state_offset(self) -> int:
        """Offset of the copy in the scratch memory."""
        return round_up(ceil_div(self.given.type.bytes, self.given.shape[0]), 64)

    @property
    def resets_first(self) -> bool:
        return self.cell is RecurrentCell.GRU_RESET_FIRST

    @property
    def reset_offset(self) -> int:
        """Offset of the reset or rounded states, (batch, hidden), in the scratch memory."""
        copied = _FLOAT * self.batch * self.hidden if self.keeps_copy else 0
        return self.state_offset + round_up(copied, 64)

    @property
    def scratch_bytes(self) -> int:
        if self.rounding is not None:
            return self.pairs_offset + round_up(PAIR_BYTES * self.batch, 64)
        reset = _FLOAT * self.batch * self.hidden if self.resets_first else 0
        return self.reset_offset + reset

    @property
    def pairs_offset(self) -> int:
        """Offset of each rounded row's pair of floats: scale, and scale * (128 - zero)."""
        return self.reset_offset + round_up(_FLOAT * self.batch * self.hidden, 64)

    def emit(self, asm: Assembler, at: Locations) -> None:
        """Append the loop over all time steps."""
        push(asm, _SAVED)
        states = at.reads[1 : 1 + self.cell.states]
        if self.with_lengths:
            states = at.writes[1:]
            self._begin_lengths(asm, at)
        starts = (r12, at.reads[0]), (r13, at.writes[0]), (r14, states[0])
        for register, start in starts:
            start.point(asm, register)
        if self.cell is RecurrentCell.LSTM:
            states[1].point(asm, r15)
        with counted_down(asm, rbx, self.into.shape[0]):
            self._step(asm, at)
        pop(asm, _SAVED)

    def _step(self, asm: Assembler, at: Locations) -> None:
        asm.emit("mov", rdi, r14)
        if self.rounding is not None:
            self._round(asm, at, self.rounding)
        at.scratch.point(asm, rsi)
        emit_plan(asm, self.choices[0])
        if self.rounding is not None and self.rounding.as_integers:
            self._scale(asm, at)
        if self.resets_first:
            self._reset(asm, at)
            self._point_behind(asm, at.scratch, rdi, self.reset_offset)
            self._point_behind(asm, at.scratch, rsi, 2 * _FLOAT * self.hidden)
            emit_plan(asm, self.choices[1])
        self._update(asm, at)
        if self.keeps_copy:
            self._point_behind(asm, at.scratch, r14, self.state_offset)
        elif not self.with_lengths:
            asm.emit("mov", r14, r13)
        if self.cell is RecurrentCell.LSTM:
            at.writes[-1].point(asm, r15)
        asm.emit("add", r12, self.given.strides[0])
        asm.emit("add", r13, self.into.strides[0])

    def _point_behind(
        self, asm: Assembler, scratch: Location, register: Register, offset: int
    ) -> None:
        scratch.point(asm, register)
        asm.emit("add", register, offset)

    def _round(self, asm: Assembler, at: Locations, spec: RowQuantisation) -> None:
        """Quantise each row of the state at rdi with a scale of its own; rdi = the result."""
        row = _FLOAT * self.hidden
        self._point_behind(asm, at.scratch, rsi, self.reset_offset)
        self._point_behind(asm, at.scratch, rdx, self.pairs_offset)
        self._by_row(
            asm, {rdi: row, rsi: row, rdx: PAIR_BYTES}, lambda: emit_row_quantisation(asm, spec)
        )
        self._point_behind(asm, at.scratch, rdi, self.reset_offset)

    def _scale(self, asm: Assembler, at: Locations) -> None:
        """Apply each row's scale and zero point to the product of rounded rows; add the bias."""
        rows = self.op.gates * self.hidden
        at.scratch.point(asm, rdi)
        at.reads[-1].point(asm, rsi)
        self._point_behind(asm, at.scratch, rdx, self.pairs_offset)
        steps = {rdi: _FLOAT * rows, rdx: PAIR_BYTES}
        self._by_row(asm, steps, lambda: emit_from_own_steps(asm, rows))

    def _reset(self, asm: Assembler, at: Locations) -> None:
        """Compute r h[t - 1], row by row of the batch."""
        row = _FLOAT * self.hidden
        asm.emit("mov", rdi, r12)
        at.scratch.point(asm, rsi)
        asm.emit("mov", rdx, r14)
        self._point_behind(asm, at.scratch, r8, self.reset_offset)
        steps = {rdi: self.given.strides[1], rsi: row * self.cell.gates, rdx: row, r8: row}
        self._by_row(asm, steps, lambda: emit_gru_reset(asm, GruUpdate(self.hidden), r8))

    def _by_row(self, asm: Assembler, steps: dict[Register, int], body: Callable[[], None]) -> None:
        """Append `body` for each row of the batch; `steps` advance registers. Clobbers r10."""
        if self.batch == 1:
            body()
            return
        with counted_down(asm, r10, self.batch):
            body()
            for register, step in steps.items():
                asm.emit("add", register, step)

    def _update(self, asm: Assembler, at: Locations) -> None:
        """Compute the gates, row by row of the batch."""
        is_lstm, row = self.cell is RecurrentCell.LSTM, _FLOAT * self.hidden
        results = (r8, r9) if self.keeps_copy or self.with_lengths else (r8,)
        steps = {rdi: self.given.strides[1], rsi: row * self.cell.gates, rdx: row}
        steps[r8] = self.into.strides[1]
        asm.emit("mov", rdi, r12)
        at.scratch.point(asm, rsi)
        asm.emit("mov", rdx, r15 if is_lstm else r14)
        asm.emit("mov", r8, r13)
        if is_lstm:
            at.writes[-1].point(asm, rcx)
            steps[rcx] = row
        if self.keeps_copy:
            self._point_behind(asm, at.scratch, r9, self.state_offset)
            steps[r9] = row
        if self.with_lengths:
            asm.emit("mov", r9, r14)
            at.reads[self.lengths_place].point(asm, r11)
            steps |= {r9: row, r11: _INDEX}

        def update() -> None:
            _UPDATES[self.cell](asm, self.hidden, results)

        if self.with_lengths:
            time = None if self.op.reverse else self.into.shape[0]
            self._by_row(asm, steps, lambda: emit_within_length(asm, time, self.hidden, update))
        else:
            self._by_row(asm, steps, update)

    def _begin_lengths(self, asm: Assembler, at: Locations) -> None:
        """Check all lengths, and copy initial states to the destination of the last states."""
        at.reads[self.lengths_place].point(asm, r11)
        emit_length_check(asm, self.batch, self.into.shape[0])
        at.status.report_where(asm, r10)
        for before, after in zip(at.reads[1:], at.writes[1:], strict=False):
            before.point(asm, rdi)
            after.point(asm, rsi)
            emit_copy(asm, self.batch * self.hidden)
