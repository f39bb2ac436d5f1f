"""The result file: what is done, written again after every step, and read by the next call."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autosched.errors import UsageError
from experiments.tuning import write_results

Row = dict[str, Any]


class GpuLedger:
    """`checks` and `cases` by label. Raises UsageError for a file that is none of ours, or of another device."""

    def __init__(self, path: Path, target: str, device: str) -> None:
        self.path = path
        self._head: Row = {"target": target, "device": device}
        self.facts: Row = {}
        self.checks: dict[str, Row] = {}
        self.cases: dict[str, Row] = {}
        self.runs: list[Row] = []
        if path.exists():
            self._read()

    def _read(self) -> None:
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            known = {name: document[name] for name in self._head}
            self.checks, self.cases, self.runs = dict(document["checks"]), dict(document["cases"]), document["runs"]
            self.facts = dict(document["facts"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{self.path} holds no results of this script ({error}); choose another --out") from None
        if known != self._head:
            raise UsageError(
                f"{self.path} holds results of {known['device']}, but this is {self._head['device']}: "
                "choose another --out"
            )

    def record(self, section: str, label: str, row: Mapping[str, Any]) -> None:
        """Stores a row under `section` ("checks" or "cases"), replacing what was there, and writes the file."""
        {"checks": self.checks, "cases": self.cases}[section][label] = dict(row)
        self.write()

    def write(self) -> None:
        content = {**self._head, "facts": self.facts, "checks": self.checks, "cases": self.cases, "runs": self.runs}
        write_results(self.path, content)
