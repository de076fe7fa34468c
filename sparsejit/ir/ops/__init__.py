"""The operators of a graph, each registered by its own file (`ir/operator.py`)."""

from importlib import import_module
from pkgutil import iter_modules

from sparsejit.ir.operator import OPERATORS

__all__ = ["OPERATORS"]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
