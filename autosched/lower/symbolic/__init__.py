"""From a schedule to its symbolic nest, once for each sketch."""
