"""What lowers every operator: functions that register beside their code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from sparsejit.ir.graph import Node
from sparsejit.ir.ops.operator import Operator

if TYPE_CHECKING:
    from sparsejit.lowering.context import Lowering

# Appends the kernels of a node to what is lowered.
Lower: TypeAlias = "Callable[[Lowering, Node], None]"

LOWERINGS: dict[type[Operator], Lower] = {}


def lowers(*operators: type[Operator]) -> Callable[[Lower], Lower]:
    """Registers a function as what lowers these operators."""

    def register(lower: Lower) -> Lower:
        LOWERINGS.update(dict.fromkeys(operators, lower))
        return lower

    return register
