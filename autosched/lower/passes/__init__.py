"""Passes over a concrete nest; `lower/pipeline.py` has their order."""
