"""GPUs: a protocol of devices, its drivers, compilation, and kernels as Python functions."""
