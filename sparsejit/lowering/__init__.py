"""From a graph to one native function: kernels in order, one workspace, one image."""
