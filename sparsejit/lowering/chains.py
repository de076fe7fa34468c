"""Chains of elementwise functions and row reductions."""

from dataclasses import replace
from math import prod

from sparsejit.errors import InvalidInput
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.pointwise import Cast, Chain, Pointwise
from sparsejit.ir.values import Value
from sparsejit.lowering.context import Lowering, lowers
from sparsejit.lowering.feature_major import is_whole
from sparsejit.lowering.memory.storage import View
from sparsejit.lowering.recurrence.table_rows import is_scaled_column, only_gates_read
from sparsejit.passes.fuse_chains import as_chain
from sparsejit.whole_numbers import round_up


@lowers(Chain, Pointwise)
def lower_chain_node(low: Lowering, node: Node) -> None:
    """Append a step for a chain; a single function becomes a chain of one step.

    A sum that only a GRU's gates read is left to the gates' step.
    """
    if is_scaled_column(node) and only_gates_read(low, node):
        low.sums_for_gates[node.output] = node
        return
    chain = as_chain(node).op
    assert isinstance(chain, Chain)
    _lower(low, node, chain)


@lowers(Cast)
def lower_cast(low: Lowering, node: Node) -> None:
    """Append a chain without functions, which converts its operand to the result's type."""
    _lower(low, node, Chain(node.output.shape, 1, (), (0,), "cast"))


def _lower(low: Lowering, node: Node, chain: Chain) -> None:
    if 0 in chain.shape:  # elements are made of no elements: rows of length 0 are reduced
        raise InvalidInput(
            f"{chain.title} reduces empty rows of shape {chain.shape}; give rows of at least one "
            "element"
        )
    if node in low.feature_major.chains:
        _lower_by_column(low, node, chain)
        return
    reads = [low.view(value) for value in node.inputs]
    scalars = [low.scalar(value) for value in node.inputs]
    order = _common_order(low, node, chain)
    if order is not None:
        chain = replace(chain, shape=tuple(chain.shape[axis] for axis in order))
        reads = [view if view.type.size == 1 else view.permuted(order) for view in reads]
        writes = [low.result_in_order(value, order) for value in node.outputs]
    else:
        writes = [low.result(value) for value in node.outputs]
    low.add_chain(chain, reads, scalars, writes, node.outputs[0].origin)


def _lower_by_column(low: Lowering, node: Node, chain: Chain) -> None:
    """Append a chain on feature-major matrices (features, columns), padded to whole vectors."""
    columns, features = prod(chain.shape[:-1]), chain.shape[-1]
    whole = round_up(columns, low.target.lanes)

    def turned(matrix: View) -> View:
        """The view in which the chain walks a matrix: features last for a reduction, else first.

        With features first, parts for several threads are ranges of features, which lie far apart.
        """
        return matrix.permuted((1, 0)) if chain.reduces else matrix

    def read(value: Value) -> View:
        if is_whole(value, chain):
            return turned(low.by_feature(value).sliced(1, 0, whole))
        view = low.contiguous(value)
        by_feature = view.reshaped((view.type.size, 1))
        assert by_feature is not None
        return turned(by_feature)

    reads = [read(value) for value in node.inputs]
    scalars = [low.scalar(value) for value in node.inputs]
    matrices = [low.result_by_feature(value) for value in node.outputs]
    writes = [turned(matrix.sliced(1, 0, whole)) for matrix in matrices]
    shape = (whole, features) if chain.reduces else (features, whole)
    low.add_chain(replace(chain, shape=shape), reads, scalars, writes, node.outputs[0].origin)


def _common_order(low: Lowering, node: Node, chain: Chain) -> tuple[int, ...] | None:
    """The order of axes in memory that all operands except numbers share, None if row-major.

    None too if their orders differ, for reductions, and for results that have a destination.
    """
    images = [value for value in node.inputs if value.type.size > 1]
    if not images or chain.reduces or any(value in low.wanted for value in node.outputs):
        return None
    first, *others = (low.orders.get(low.view(value).buffer) for value in images)
    alike = all(len(value.shape) == len(chain.shape) for value in images)
    return first if alike and all(order == first for order in others) else None
