from autosched.lower.pipeline import concretise, lower

__all__ = ["concretise", "lower"]
