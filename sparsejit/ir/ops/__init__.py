"""The operators of a graph: each a frozen record with its types and its float64 semantics."""
