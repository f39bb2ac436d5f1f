"""Commands on networks: tune, bench, plot, and tune --no-run (plan)."""
