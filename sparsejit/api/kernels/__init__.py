"""Compiled layers: one matrix as a callable."""
