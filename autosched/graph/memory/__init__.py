"""Memory planning of a network: order of steps, liveness of values, placement in arena and weights, verification."""
