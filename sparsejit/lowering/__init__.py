"""From a graph to one native function: kernels in order, one workspace, one image.

All of it is imported at once, so that what lowers an operator is registered (`table.py`).
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
