"""Kernels and networks as files that need no autosched: objects, shared libraries, headers, weights, sources."""
