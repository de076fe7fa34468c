"""The page and pictures of `sparsejit demo`."""
