"""Graph rewrites of tensor expressions; `collapse.py` has their list in order."""
