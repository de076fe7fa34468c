"""Dense products: a matrix by a matrix, and a matrix of few outputs by a vector."""
