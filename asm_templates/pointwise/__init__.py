"""Elementwise kernels: activations, gates, the draw, random numbers, signals."""
