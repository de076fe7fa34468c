"""Chains of elementwise functions and row reductions."""

from sparsejit.ir.graph import Node
from sparsejit.ir.ops.pointwise import Chain, ChainStep, Pointwise
from sparsejit.lowering.context import Lowering


def lower_chain_node(low: Lowering, node: Node) -> None:
    """One kernel from strided operands to strided results."""
    assert isinstance(node.op, Chain)
    _lower(low, node, node.op)


def lower_pointwise(low: Lowering, node: Node) -> None:
    """A chain of one function."""
    assert isinstance(node.op, Pointwise)
    count = len(node.inputs)
    step = ChainStep(node.op.kind, tuple(range(count)))
    shape = node.output.shape
    _lower(low, node, Chain(shape, count, (step,), (count,), node.op.kind))


def lower_cast(low: Lowering, node: Node) -> None:
    """A chain without functions, whose result is converted."""
    _lower(low, node, Chain(node.output.shape, 1, (), (0,), "cast"))


def _lower(low: Lowering, node: Node, chain: Chain) -> None:
    reads = [low.view(value) for value in node.inputs]
    scalars = [low.scalar(value) for value in node.inputs]
    writes = [low.result(value) for value in node.outputs]
    low.add_chain(chain, reads, scalars, writes, node.outputs[0].origin)
