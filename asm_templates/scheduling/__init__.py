"""Which rows share an accumulator, which input comes next, and interleaving."""
