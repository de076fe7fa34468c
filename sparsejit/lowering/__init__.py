"""Lower a graph to one native function: kernels in order, one workspace, one image.

`registry.py` imports all submodules, so that all their lowering functions are registered.
"""
