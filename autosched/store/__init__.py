"""The record database: every measured candidate as data, in one SQLite file that survives `kill -9`."""

from autosched.store.database import Database, Health
from autosched.store.records import Record, Run, Workload
from autosched.store.schema import absolute_path, command, default_path, named_path

__all__ = ["Database", "Health", "Record", "Run", "Workload", "absolute_path", "command", "default_path", "named_path"]
