"""What users look at: records, kernels' times against the limits of the device, networks as text."""
