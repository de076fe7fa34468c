"""Grouping of rows by accumulator, choice of each step's inputs, and interleaving of sums."""
