"""The plan of memory of a network: order of steps, liveness of values, their placement in one arena, its check."""
