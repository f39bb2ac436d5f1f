"""Record database: every measured candidate as data, in one SQLite file that survives `kill -9`."""

from autosched.runtime.data_files import default_path, named_path
from autosched.store.database import Database, Health
from autosched.store.records import Finding, FusionDecision, Record, Run, TargetRow, WorkloadRow
from autosched.store.schema import absolute_path, command

__all__ = [
    "Database", "Finding", "FusionDecision", "Health", "Record", "Run", "TargetRow", "WorkloadRow", "absolute_path",
    "command", "default_path", "named_path",
]  # fmt: skip
