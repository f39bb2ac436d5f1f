"""Processors: microarchitectures, analytic latency, features and legality."""
