"""Attention under a mask that is known when the code is written."""
