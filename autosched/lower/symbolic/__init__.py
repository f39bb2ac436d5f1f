"""Symbolic lowering: from a schedule to its nest with open parameters, once for each sketch."""
