"""Forests: one step for all trees, rows of x one after another or together."""

from sparsejit.asm_templates.forest.kernels import ForestKernel
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.forest import Forest, Trees
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.registry import lowers
from sparsejit.lowering.step import Facts, Locations, Step
from sparsejit.planner.forest_plan import plan_forest
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import rdx


@lowers(Forest)
def lower_forest(low: Lowering, node: Node) -> None:
    """Append the kernel predicted to be fastest. Raises InvalidInput as `Trees` does."""
    assert isinstance(node.op, Forest)
    x, *constants = node.inputs
    y_bytes = node.output.type.element.bytes
    trees = Trees(x.shape[1], node.op.scale, *map(low.constant, constants), y_bytes=y_bytes)
    chosen = plan_forest(trees, x.shape[0], low.target)
    kernel: ForestKernel = chosen.row.emitter
    lowered = chosen.work.lowered(kernel)

    def emit(asm: Assembler, at: Locations) -> None:
        at.point(asm)
        at.scratch.point(asm, rdx)
        lowered.emit(asm)

    heights = trees.tree_heights
    reason = (
        f"{len(heights)} trees of up to {heights.max(initial=0)} levels, {len(trees.nodes):,} "
        f"nodes: {kernel.about}"
    )
    facts = Facts(reason, chosen.price, weight_bytes=lowered.counts.data_bytes, bound="execution")
    into = low.dense_result(node.output)
    scratch = lowered.scratch_bytes
    origin = node.output.origin
    reads = (low.contiguous(x),)
    low.add(Step(kernel.name, origin, reads, (into,), emit, facts, scratch))
