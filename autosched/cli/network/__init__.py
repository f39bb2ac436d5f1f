"""Verbs on networks: tune, bench, plot, plan."""
