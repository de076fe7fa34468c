"""Lower a graph to one native function: kernels in order, one workspace, one image.

`context.lowerings` imports all submodules, so that all their lowering functions are registered.
"""
