"""Registry of the functions that lower operators; each registers beside its definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from sparsejit.ir.operator import Node, Operator

if TYPE_CHECKING:
    from sparsejit.lowering.context import Lowering

# Appends the kernels of a node.
Lower: TypeAlias = "Callable[[Lowering, Node], None]"

LOWERINGS: dict[type[Operator], Lower] = {}


def lowers(*operators: type[Operator]) -> Callable[[Lower], Lower]:
    """Register a function that lowers these operators."""

    def register(lower: Lower) -> Lower:
        LOWERINGS.update(dict.fromkeys(operators, lower))
        return lower

    return register
