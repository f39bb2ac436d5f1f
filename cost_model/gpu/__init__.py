"""GPUs: kernels, analytic latency, features and legality."""
