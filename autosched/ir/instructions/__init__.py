"""Instructions beyond arithmetic of one element: dot products, products of matrices, tile copies, atomics."""
