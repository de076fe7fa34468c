"""Tensors without elements: nothing computes them; few operators take them."""

from sparsejit.errors import InvalidInput
from sparsejit.ir.graph import Node
from sparsejit.lowering.context import Lowering


def is_empty(low: Lowering, node: Node) -> bool:
    """Whether a node makes no elements at all; then its results have their places.

    Raises InvalidInput for one that makes elements out of an empty operand.
    """
    if all(0 in value.type.shape for value in node.outputs):
        for value in node.outputs:
            low.bind(value, low.temporary(value.type))
        return True
    for value in node.inputs:
        if 0 in value.type.shape and not node.op.takes_empty:
            raise InvalidInput(
                f"{node.outputs[0].origin.name} reads {value.origin.name}, which has shape "
                f"{value.shape}; give it elements, or leave it out"
            )
    return False
