"""A result file, and what a table says of where its figures are from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from autosched.errors import UsageError
from experiments.tuning import SCHEMA_VERSION

Row: TypeAlias = Mapping[str, Any]
Lines: TypeAlias = "list[str]"

PACKAGES = {"torch": "PyTorch", "numpy": "NumPy"}  # peers whose version a caption may name


@dataclass(frozen=True)
class Results:
    """The content of `experiments/results/NAME.json`."""

    name: str
    content: Mapping[str, Any]

    @property
    def rows(self) -> list[Row]:
        """Those with a result."""
        return [row for row in self.content["rows"] if "error" not in row]

    @property
    def processor(self) -> str:
        return str(self.content["host"]["llvm_cpu"])

    def source(self, rows: Sequence[Row] = (), packages: Sequence[str] = ()) -> str:
        """The caption of a table: file, machine, when, at which revision and with how many trials `rows` were measured,
        which peers."""
        host = self.content["host"]
        vectors, cores = f"{8 * host['vector_bytes']}-bit vectors", f"{host['cores_usable']} cores"
        machine = f"{host['cpu_model']} (`{self.processor}`, {vectors}, {cores})"
        found = revisions(rows)
        at = f"revision{'s' * (len(found) > 1)} {', '.join(found)}" if found else "the file names no revision"
        versions = [f"{PACKAGES[name]} {host['packages'][name].partition('+')[0]}" for name in packages]
        file = f"From `experiments/results/{self.name}.json`: {machine}"
        return f"*{'; '.join((file, days(rows) or host['date'][:10], at, *trials(rows), *versions))}.*"


def revisions(rows: Sequence[Row]) -> list[str]:
    """Each revision with its number of rows, the most frequent first; none where rows name none."""
    named = [row["revision"] for row in rows if row.get("revision")]
    counts = {revision: named.count(revision) for revision in dict.fromkeys(named)}
    if len(counts) < 2:
        return [f"`{revision}`" for revision in counts]
    return [f"`{revision}` ({n} rows)" for revision, n in sorted(counts.items(), key=lambda item: -item[1])]


def trials(rows: Sequence[Row]) -> list[str]:
    """How many trials a search had; nothing where rows do not say."""
    found = sorted({row.get("asked_trials") or row.get("trials") or 0 for row in rows} - {0})
    return [f"{' or '.join(map(str, found))} trials a case"] if found else []


def days(rows: Sequence[Row]) -> str:
    """The day or days on which `rows` were measured; empty where rows have no date."""
    found = sorted(row["date"][:10] for row in rows if row.get("date"))
    if not found:
        return ""
    return found[0] if found[0] == found[-1] else f"{found[0]} to {found[-1]}"


def load(folder: Path, name: str) -> Results:
    """Raises UsageError where there is no such file, or one that was written by another version."""
    path = folder / f"{name}.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}; --results names the folder of the files") from None
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}); measure it again") from None
    version = content.get("schema_version") if isinstance(content, dict) else None
    if version != SCHEMA_VERSION:
        raise UsageError(f"{path} has schema_version {version}, expected {SCHEMA_VERSION}; measure it again")
    return Results(name, content)
