"""Claims of speed, and `sparsejit bench check`, which measures them on this machine."""
