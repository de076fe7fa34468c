"""The writer of graphs that frontends share, and mappings of functions of tensors."""
