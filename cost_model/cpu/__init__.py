"""Processors: instructions, analytic latency, features and legality."""
