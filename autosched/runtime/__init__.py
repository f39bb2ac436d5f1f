"""Kernels in this process: compilation to machine code, loading, the thread pool, arrays, peak rates."""
