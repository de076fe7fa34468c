"""Tensors without elements: no kernel computes them, and few operators take them."""

from sparsejit.errors import InvalidInput
from sparsejit.ir.operator import Node
from sparsejit.lowering.context import Lowering


def is_empty(low: Lowering, node: Node) -> bool:
    """Whether a node's results have no elements; if so, bind each to an empty view.

    Raises InvalidInput for an operator that makes elements but does not take empty operands.
    """
    if all(0 in value.type.shape for value in node.outputs):
        for value in node.outputs:
            low.bind(value, low.temporary(value.type))
        return True
    for value in node.inputs:
        if 0 in value.type.shape and not node.op.takes_empty:
            raise InvalidInput(
                f"{node.outputs[0].origin.name} reads {value.origin.name}, which has shape "
                f"{value.shape} and no elements; give it elements, or leave out the operator"
            )
    return False
