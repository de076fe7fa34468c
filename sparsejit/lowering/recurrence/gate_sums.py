"""Sums that a GRU's gates compute themselves: a sum that only they read needs no step of its own.

    g = sum of rows        |        h' = gru_step(g, recurrent, h)   ->   one kernel
    g = column * x + rest  |

The operations and their order stay the same; their time hides behind the gates' arithmetic.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sparsejit.asm_templates.pointwise.row_sums import RowSum, ScaledColumn
from sparsejit.ir.operator import Node
from sparsejit.ir.ops.pointwise import Chain
from sparsejit.ir.ops.sampling import GruStep
from sparsejit.ir.values import Element
from sparsejit.lowering.context import Lowering
from sparsejit.lowering.memory.storage import View
from sparsejit.lowering.step import Locations
from sparsejit.x86.assembler import Assembler
from sparsejit.x86.operands import r8, r9, rdi


@dataclass(frozen=True, eq=False)
class GateSum:
    """Operands of a sum, which the gates' step reads first; `emit` loads their addresses.

    `words` describes the sum in reports; `bytes_of_tables`: bytes that it reads of tables.
    """

    reads: tuple[View, ...]
    emit: Callable[[Assembler, Locations], RowSum | ScaledColumn]
    words: str
    bytes_of_tables: int = 0


def only_gates_read(low: Lowering, node: Node) -> bool:
    """Whether only one GRU's gates read a node's result, and only as their first input."""
    value, readers = node.output, low.readers[node.output]
    return (
        value not in low.graph.outputs
        and [type(reader.op) for reader in readers] == [GruStep]
        and readers[0].inputs[0] is value
        and value not in readers[0].inputs[1:]
    )


def is_scaled_column(node: Node) -> bool:
    """Whether a chain is a vector times a number, plus a vector; all float32."""
    chain = node.op
    if not isinstance(chain, Chain) or [step.kind for step in chain.steps] != ["fma"]:
        return False
    shapes = [node.inputs[number].shape for number in _operands(chain) if number < 3]
    whole = node.outputs[0].shape
    return (
        len(node.outputs) == 1
        and len(whole) == 1
        and sorted(shapes[:2]) == [(), whole]
        and shapes[2:] == [whole]
        and all(value.type.element is Element.FLOAT32 for value in node.inputs)
    )


def scaled_column(low: Lowering, node: Node) -> GateSum:
    """The sum of a chain which `is_scaled_column`."""
    assert isinstance(node.op, Chain)
    *factors, rest = (node.inputs[number] for number in _operands(node.op))
    column, number = sorted(factors, key=lambda value: not value.shape)
    reads = tuple(low.contiguous(value) for value in (column, number, rest))

    def emit(asm: Assembler, at: Locations) -> ScaledColumn:
        registers = (r8, r9, rdi)
        for register, place in zip(registers, at.reads[:3], strict=True):
            place.point(asm, register)
        return ScaledColumn(*registers)

    return GateSum(reads, emit, "a column added")


def _operands(chain: Chain) -> tuple[int, ...]:
    return chain.steps[0].arguments
