"""Fused elementwise functions with reductions over rows: one loop nest for a whole chain."""

from sparsejit.asm_templates.pointwise.row_chain.emit_chain import (
    MOST_ARRAYS,
    MOST_OPERANDS,
    LoweredChain,
    emit_chain,
    lower_chain,
)
from sparsejit.asm_templates.pointwise.row_chain.typed import Strided

__all__ = [
    "MOST_ARRAYS",
    "MOST_OPERANDS",
    "LoweredChain",
    "Strided",
    "emit_chain",
    "lower_chain",
]
