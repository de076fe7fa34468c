"""A walk through a binary tree: a comparison a level, the carry flag its bit."""

from sparsejit.ir.graph import Node
from sparsejit.ir.ops.tree_draw import TreeDraw
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import Memory, dword, rax, rcx, rdi, xmm

_FLOAT = 4


def lower_tree_draw(low: Lowering, node: Node) -> None:
    """One load, one comparison and one addition a bit; nothing is predicted."""
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
