"""The pointwise half of a GRU step."""

from sparsejit.asm_templates.pointwise.gates import emit_gru_update
from sparsejit.asm_templates.shared.activation import COARSE, FINE
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.sampling import GruStep, SumOfRows
from sparsejit.ir.spec import DType, GruUpdate
from sparsejit.ir.values import Value
from sparsejit.lowering.context import Lowering, lowers
from sparsejit.lowering.recurrence.table_rows import GateSum, scaled_column, sum_of_rows_for_gates
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import rbx, rcx, rdi, rdx, rsi
from sparsejit.x86.routines import pop, push


@lowers(GruStep)
def lower_gru_step(low: Lowering, node: Node) -> None:
    """Append a GRU's gates; they also compute the sum that is their input, if only they read it."""
    op, spec = node.op, GruUpdate(node.output.shape[0])
    assert isinstance(op, GruStep)
    tanh = COARSE if op.dtype is DType.INT8 else FINE
    gates, recurrent, state = node.inputs
    added = _sum_for_gates(low, gates)
    reads = added.reads if added else (low.contiguous(gates),)

    def emit(asm: Assembler, at: Locations) -> None:
        push(asm, (rbx,))
        if added is None:
            at.reads[0].point(asm, rdi)
        summed = added.emit(asm, at) if added else None
        at.reads[-2].point(asm, rsi)
        at.reads[-1].point(asm, rdx)
        at.writes[0].point(asm, rcx)
        emit_gru_update(asm, spec, (rcx,), summed, tanh)
        pop(asm, (rbx,))

    into = low.dense_result(node.output)
    reason = f"gates of {spec.hidden} units"
    facts = Facts(reason)
    if added is not None:
        facts = Facts(f"{reason}, {added.words}", weight_bytes=added.bytes_of_tables)
    reads = (*reads, low.contiguous(recurrent), low.contiguous(state))
    low.add(Step("gru-step", node.output.origin, reads, (into,), emit, facts))


def _sum_for_gates(low: Lowering, gates: Value) -> GateSum | None:
    node = low.sums_for_gates.get(gates)
    if node is None:
        return None
    return (sum_of_rows_for_gates if isinstance(node.op, SumOfRows) else scaled_column)(low, node)
