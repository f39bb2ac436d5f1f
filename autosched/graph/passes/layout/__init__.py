"""Passes over how values are stored: channels last, reshapes and transposes, slices, layouts of weights."""
