"""Kernels that multiply an input, in all lanes, by weights of consecutive outputs; dense layers."""
