"""Fusion of nodes into kernels: their properties, the cost of computing a node again, and the partition."""
