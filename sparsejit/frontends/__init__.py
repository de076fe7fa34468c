"""Weights as people have them: tensors, sparse matrices, layers, state dicts and files."""
