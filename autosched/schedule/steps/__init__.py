"""The schedule steps: one frozen record for each primitive."""
