"""Registry of the functions that lower operators; each registers beside its definition."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import walk_packages
from typing import TYPE_CHECKING, TypeAlias

from sparsejit.ir.graph import Node
from sparsejit.ir.ops.operator import Operator

if TYPE_CHECKING:
    from sparsejit.lowering.context import Lowering

# Appends the kernels of a node.
Lower: TypeAlias = "Callable[[Lowering, Node], None]"

_REGISTERED: dict[type[Operator], Lower] = {}


def lowers(*operators: type[Operator]) -> Callable[[Lower], Lower]:
    """Register a function that lowers these operators."""

    def register(lower: Lower) -> Lower:
        _REGISTERED.update(dict.fromkeys(operators, lower))
        return lower

    return register


@cache
def lowerings() -> dict[type[Operator], Lower]:
    """Import all submodules of `lowering`, and return the functions that they register."""
    package = import_module(__package__)
    for module in walk_packages(package.__path__, f"{__package__}."):
        import_module(module.name)
    return _REGISTERED
