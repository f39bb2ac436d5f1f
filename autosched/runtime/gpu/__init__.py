"""Devices that are not processors: one small protocol, its drivers, compilation, and kernels as Python functions."""
