"""Layout passes: channels last, merging of reshapes and transposes, slices as views, layouts of weights."""
