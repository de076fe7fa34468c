"""Files that the compiler writes: models and kernels to load again, objects for C to link."""
