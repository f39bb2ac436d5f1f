"""The passes over a concrete nest; `lower/pipeline.py` says in which order they run."""
