"""Schedules and rates by structure for common networks' kernels, shipped with the package.

table           lookup of the decisions for a processor's class and number of threads
*.json.xz       the decisions for a class, written by `python -m experiments.shipped_table`
"""
