"""Dense products: a matrix by a matrix, and by a vector of which few outputs are wanted."""
