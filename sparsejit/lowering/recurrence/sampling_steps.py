"""Steps of a network that makes a signal sample by sample: gates, draws, levels and predictions.

    lower_gru_step                       the pointwise half of a GRU step
    lower_uniform, lower_draw            a random number, and a class drawn by it
    lower_quantise                       the level of a sample
    lower_predict, lower_reconstruct     linear prediction and the signal
    lower_uniform_row, lower_tree_draw   random numbers, and a walk through a binary tree: each
                                         level's comparison sets the carry flag
"""

from collections.abc import Callable

from sparsejit.asm_templates.pointwise.class_draw import (
    emit_categorical_draw,
    emit_random_uniform,
    emit_random_uniforms,
    scratch_floats,
)
from sparsejit.asm_templates.pointwise.gates import emit_gru_update
from sparsejit.asm_templates.pointwise.signal import Quantiser, emit_prediction
from sparsejit.asm_templates.shared.activation import COARSE, FINE
from sparsejit.asm_templates.shared.location import Location
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.sampling import (
    Draw,
    GruStep,
    Predict,
    Quantise,
    Reconstruct,
    SumOfRows,
    TreeDraw,
    Uniform,
    UniformRow,
)
from sparsejit.ir.spec import DType, GruUpdate
from sparsejit.ir.values import Value
from sparsejit.lowering.context import Lowering, lowers
from sparsejit.lowering.recurrence.table_rows import (
    GateSum,
    emit_row_of,
    scaled_column,
    sum_of_rows_for_gates,
)
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import (
    Literal,
    Memory,
    Register,
    dword,
    r8,
    r11,
    rax,
    rbx,
    rcx,
    rdi,
    rdx,
    rsi,
    xmm,
)
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


_FLOAT = 4


@lowers(Uniform)
def lower_uniform(low: Lowering, node: Node) -> None:
    """Append one number of the counter-based generator."""

    def emit(asm: Assembler, at: Locations) -> None:
        _load(asm, at.reads[0], rdi)
        _load(asm, at.reads[1], rsi)
        emit_random_uniform(asm)
        at.writes[0].point(asm, rdi)
        asm.emit("vmovss", Memory(rdi), xmm(0))

    _add(low, node, "uniform", "a random number", emit)


@lowers(Draw)
def lower_draw(low: Lowering, node: Node) -> None:
    """Append a draw: weights of all classes, partial sums, the count of sums below the number."""
    assert isinstance(node.op, Draw)
    spec = node.op.spec(node.inputs[0].shape[0])

    def emit(asm: Assembler, at: Locations) -> None:
        at.reads[1].point(asm, rax)
        asm.emit("vmovss", xmm(0), Memory(rax))
        at.point(asm)
        at.scratch.point(asm, rdx)
        emit_categorical_draw(asm, spec)

    scratch = _FLOAT * scratch_floats(low.target, spec)
    _add(low, node, "draw", f"one of {spec.classes} classes", emit, scratch)


@lowers(Quantise)
def lower_quantise(low: Lowering, node: Node) -> None:
    """Append the search for a number's level, by two comparisons with vectors of thresholds."""
    number, thresholds = node.inputs
    table = low.constant(thresholds)

    def emit(asm: Assembler, at: Locations) -> None:
        at.reads[0].point(asm, rax)
        asm.emit("vmovss", xmm(3), Memory(rax))
        Quantiser(asm, table).emit(rdx, xmm(3), rcx)
        at.writes[0].point(asm, rdi)
        asm.emit("mov", Memory(rdi), rdx)

    into = low.dense_result(node.output)
    facts = Facts(f"one of {len(table) + 1} levels")
    low.add(Step("level", node.output.origin, (low.view(number),), (into,), emit, facts))


@lowers(Predict)
def lower_predict(low: Lowering, node: Node) -> None:
    """Append a linear prediction: products of samples and weights, and a tree of additions."""

    def emit(asm: Assembler, at: Locations) -> None:
        at.reads[0].point(asm, rcx)
        at.reads[1].point(asm, rdx)
        emit_prediction(asm, xmm(0), Memory(rcx), Memory(rdx))
        at.writes[0].point(asm, rdi)
        asm.emit("vmovss", Memory(rdi), xmm(0))

    _add(low, node, "predict", "a prediction from past samples", emit)


@lowers(Reconstruct)
def lower_reconstruct(low: Lowering, node: Node) -> None:
    """Append the step that makes a sample from its prediction, by scalar instructions."""
    op = node.op
    assert isinstance(op, Reconstruct)
    level, levels, *numbers = node.inputs
    count, shape = levels.shape[0], (levels.shape[0], _FLOAT)

    def emit(asm: Assembler, at: Locations) -> None:
        value = xmm(0)
        asm.emit("xor", dword(r11), dword(r11))
        emit_row_of(asm, rdi, (at.reads[0], at.reads[1]), shape)
        at.status.report_where(asm, r11)
        asm.emit("vmovss", value, Memory(rdi))
        for number, place in enumerate(at.reads[2:], 1):
            place.point(asm, rdi)
            asm.emit("vmovss", xmm(number), Memory(rdi))
        asm.emit("vmulss", value, value, xmm(1))
        asm.emit("vaddss", value, value, xmm(2))
        asm.emit("vminss", value, value, _constant(asm, op.limit))
        asm.emit("vmaxss", value, value, _constant(asm, -op.limit))
        at.writes[0].point(asm, rdi)
        asm.emit("vmovss", Memory(rdi), value)
        asm.emit("vmulss", xmm(3), xmm(3), _constant(asm, op.emphasis))
        asm.emit("vaddss", value, value, xmm(3))
        at.writes[1].point(asm, rdi)
        asm.emit("vmovss", Memory(rdi), value)

    writes = tuple(map(low.dense_result, node.outputs))
    reads = (*map(low.contiguous, (level, levels)), *map(low.view, numbers))
    facts = Facts(f"a sample from one of {count} levels")
    low.add(Step("reconstruct", node.outputs[0].origin, reads, writes, emit, facts))


def _constant(asm: Assembler, value: float) -> Literal:
    """Operand of a float32 in the pool."""
    return Literal(asm.constant(value).offset)


def _load(asm: Assembler, place: Location, register: Register) -> None:
    """register = the 64 bits at a location."""
    place.point(asm, register)
    asm.emit("mov", register, Memory(register))


def _add(
    low: Lowering,
    node: Node,
    kernel: str,
    reason: str,
    emit: Callable[[Assembler, Locations], None],
    scratch_bytes: int = 0,
) -> None:
    """Append a step from row-major operands to a row-major result."""
    into = low.dense_result(node.output)
    reads = tuple(map(low.contiguous, node.inputs))
    origin = node.output.origin
    low.add(Step(kernel, origin, reads, (into,), emit, Facts(reason), scratch_bytes))


@lowers(UniformRow)
def lower_uniform_row(low: Lowering, node: Node) -> None:
    """Append the generator's key once, then one number after another."""
    op = node.op
    assert isinstance(op, UniformRow)

    def emit(asm: Assembler, at: Locations) -> None:
        for place, register in zip(at.reads, (rdi, rsi), strict=True):
            place.point(asm, register)
            asm.emit("mov", register, Memory(register))
        at.writes[0].point(asm, r8)
        emit_random_uniforms(asm, r8, op.count)

    into = low.dense_result(node.output)
    reads = tuple(map(low.contiguous, node.inputs))
    facts = Facts(f"{op.count} random numbers")
    low.add(Step("uniform", node.output.origin, reads, (into,), emit, facts))


@lowers(TreeDraw)
def lower_tree_draw(low: Lowering, node: Node) -> None:
    """Append the walk through a binary tree that draws a class, bit by bit.

    A bit takes one load, one comparison and one addition; there are no branches.
    """
    op = node.op
    assert isinstance(op, TreeDraw)

    def emit(asm: Assembler, at: Locations) -> None:
        at.reads[0].point(asm, rdi)
        at.reads[1].point(asm, rcx)
        asm.emit("mov", dword(rax), 1)
        for bit in range(op.bits):
            asm.emit("vmovss", xmm(0), Memory(rcx, _FLOAT * bit))
            asm.emit("vcomiss", xmm(0), Memory(rdi, 0, index=rax, scale=_FLOAT))
            asm.emit("adc", rax, rax)
        asm.emit("sub", rax, 1 << op.bits)
        at.writes[0].point(asm, rdi)
        asm.emit("mov", Memory(rdi), rax)

    into = low.dense_result(node.output)
    reads = tuple(map(low.contiguous, node.inputs))
    facts = Facts(f"{op.bits} bits of a tree")
    low.add(Step("tree-draw", node.output.origin, reads, (into,), emit, facts))
