"""A walk through a binary tree: each level's comparison sets the carry flag; random numbers."""

from sparsejit.asm_templates.pointwise.random_uniform import emit_random_uniforms
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.tree_draw import TreeDraw, UniformRow
from sparsejit.lowering.context import Lowering, lowers
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, dword, r8, rax, rcx, rdi, rsi, xmm

_FLOAT = 4


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
    """Append one load, one comparison and one addition per bit; there are no branches."""
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
