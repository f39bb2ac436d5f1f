"""The task that the store's tests write records of."""

from autosched.store import Database, Finding, TargetRow, WorkloadRow

TASK = ("w" * 64, "cpu-x", 2)


def steps(n: int) -> str:
    return f'[["split", "C", {n}]]'


def start(database: Database) -> int:
    """A run of `TASK`."""
    return database.start_run(WorkloadRow(TASK[0], "w", "{}"), TargetRow(TASK[1], "{}"), TASK[2], 0)


def add(database: Database, run: int, n: int, seconds: float | None = 1e-3, failure: str | None = None) -> int:
    samples = () if seconds is None else (seconds, seconds)
    return database.append(
        run, "sketch0", steps(n), {"C.i": n}, 0, Finding(seconds, samples, failure, "" if seconds else "why")
    )
