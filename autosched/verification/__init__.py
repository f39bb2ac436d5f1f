"""Networks against the reference: outputs and each kernel, on sample inputs, within tolerances, in a forked process."""
