"""Random tensor programs through random schedules, against the reference: `python -m tests.fuzz`."""
