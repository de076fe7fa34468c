"""Named sizes of inputs, and code for further sizes."""
