"""Memory planning of a network: order of steps, liveness of values, placement in an arena, verification of storage."""
