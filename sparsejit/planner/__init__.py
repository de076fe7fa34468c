"""Predicted costs, the choice among kernels, and the measurements behind both."""
