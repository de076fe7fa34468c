"""Fitted estimators: readers, graphs, and their compiled form; the compiler does not know them."""
