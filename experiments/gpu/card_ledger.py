"""What the steps saw, in one file that is written again after each row: a killed run loses nothing that was printed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autosched.artifacts.linking import write_whole
from experiments.gpu.steps import Row
from experiments.hostinfo import host_facts
from experiments.tuning import SCHEMA_VERSION


class CardLedger:
    """`steps` by name: prediction, rows by label, summary, how it ended, seconds. Steps of earlier calls stay."""

    def __init__(self, path: Path, is_dry: bool) -> None:
        self.path = path
        self.steps: dict[str, Row] = {}
        begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._head: Row = {"schema_version": SCHEMA_VERSION, "is_dry": is_dry, "begun": begun}
        try:
            self._head["host"] = host_facts()
        except Exception as error:  # what is said of the host must not cost the run
            self._head["host"] = {"error": f"{type(error).__name__}: {error}"}
        if path.exists():
            try:
                self.steps = dict(json.loads(path.read_text(encoding="utf-8"))["steps"])
            except (OSError, ValueError, KeyError, TypeError):
                path.rename(path.with_suffix(".unreadable"))

    def begin(self, step: str) -> None:
        before = self.steps.get(step, {})
        self.steps[step] = {"rows": dict(before.get("rows", {}))}

    def take(self, step: str, line: str, say: Callable[[str], None]) -> None:
        """A line of the step's process."""
        try:
            message: dict[str, Any] = json.loads(line)
            kind = next(iter(message))
        except (ValueError, StopIteration, TypeError):
            return say(f"   ? {line[:200]}")
        entry = self.steps[step]
        if kind == "label":
            entry["rows"][message["label"]] = message["row"]
        else:
            entry[kind] = message[kind]
            say("\n".join(f"   {text}" for text in str(message[kind]).splitlines()))
        return self.write()

    def rows(self, step: str) -> dict[str, Row]:
        return dict(self.steps[step]["rows"])

    def has_summary(self, step: str) -> bool:
        return "summary" in self.steps[step]

    def end(self, step: str, how: str, seconds: float) -> None:
        self.steps.setdefault(step, {"rows": {}}).update(end=how, seconds=round(seconds, 2))
        self.write()

    def write(self) -> None:
        write_whole(self.path, json.dumps({**self._head, "steps": self.steps}, indent=1).encode())

    def report(self, names: Sequence[str]) -> str:
        """A short table: each step, what came of it, and its summary."""
        lines = []
        for name in names:
            entry = self.steps.get(name, {})
            lines.append(f"{name}: {entry.get('end', 'not begun')}, {len(entry.get('rows', {}))} rows")
            lines += [f"  {line}" for line in str(entry.get("summary", "")).splitlines()]
        return "\n".join(lines)
