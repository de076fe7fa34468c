"""Rewrites of a graph into one that means the same and runs faster; one rewrite a file."""
