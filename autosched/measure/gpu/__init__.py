"""Workers of GPUs: builder, runner and data on the device; the check in the simulator."""
