"""Unstructured sparsity: every lane picks its own input."""
