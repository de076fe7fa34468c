"""From a graph to one native function: kernels in order, one workspace, one image.

All of it is imported at once, so that what lowers an operator is registered (`registry.py`).
"""

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
