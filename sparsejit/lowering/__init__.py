"""Lower a graph to one native function: kernels in order, one workspace, one image.

All submodules are imported at once, so that all lowering functions are registered (`registry.py`).
"""

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
