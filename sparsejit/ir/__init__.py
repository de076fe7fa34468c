"""Descriptions of computations: graphs, specs, matrices, and float64 references."""
