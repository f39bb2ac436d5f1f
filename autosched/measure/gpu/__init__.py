"""Workers of GPUs: what builds, runs and times candidates there, and the simulator's check."""
