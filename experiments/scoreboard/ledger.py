"""The result file: a row for each case, written again after every one, and read by the next call."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autosched.errors import UsageError
from experiments.hostinfo import cpu_model
from experiments.scoreboard.bouts import label_of
from experiments.tuning import write_results

Row = dict[str, Any]


class Ledger:
    """Rows by label. Raises UsageError for a file that is none of ours, or of another processor."""

    def __init__(self, path: Path, totals: Callable[[Sequence[Row]], Mapping[str, Any]]) -> None:
        self.path, self._totals = path, totals
        self.rows: dict[str, Row] = {}
        if path.exists():
            self._read()

    def _read(self) -> None:
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            self.rows = {label_of(row): row for row in document["rows"]}
            processor = document["host"]["cpu_model"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{self.path} holds no scoreboard ({error}); choose another --out") from None
        if processor != cpu_model():
            raise UsageError(f"{self.path} holds results of {processor}, this is {cpu_model()}: choose another --out")

    def done(self, label: str) -> bool:
        """Whether the case has a result."""
        return label in self.rows and "error" not in self.rows[label]

    def record(self, row: Row) -> None:
        """Stores a row, replacing the one of the same case, and writes the file."""
        self.rows[label_of(row)] = row
        rows = list(self.rows.values())
        write_results(self.path, {"totals": self._totals(rows), "rows": rows})
