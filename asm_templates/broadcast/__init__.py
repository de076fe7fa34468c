"""Blocks of consecutive outputs, and dense: one input for a whole vector."""
