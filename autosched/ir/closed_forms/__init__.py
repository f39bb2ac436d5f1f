"""Integer expressions over parameters, evaluated for a whole population at a time."""
