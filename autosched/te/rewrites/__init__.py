"""Rewrites of graphs; `collapse.py` has the list of them in order."""
