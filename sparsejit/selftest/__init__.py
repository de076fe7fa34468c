"""Random kernels compared with the float64 reference, to test a new processor."""
