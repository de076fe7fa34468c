"""Random kernels held to the float64 reference, for a processor that is new to us."""
