"""What is to be computed: specs, matrices, and the float64 reference of each."""
