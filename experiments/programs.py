"""Measured programs of many workloads as data: what the cost model is trained on and judged by.

A file is JSON compressed by LZMA (`.json.xz`): for each task (workload, target, threads) its sketches as schedule steps
with open parameters, a matrix of their values and the seconds. Features are not stored: `tabulate` lowers every sketch
again and evaluates today's closed forms, so a file outlives changes of features and draft.

    python -m experiments.programs --db programs.db --out programs.json.xz

puts the records of any database of built-in workloads on processors into a file.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.artifacts.linking import write_whole
from autosched.errors import AutoschedError, StoreError
from autosched.lower import lower
from autosched.schedule import replay, steps_to_json
from autosched.store import Database, Record
from autosched.target import Target
from autosched.te import ComputeDAG
from autosched.te.operators.registry import find, resolve
from autosched.te.rewrites.collapse import collapse
from autosched.tuner.recorder import RETRIED_FAULTS
from cost_model.cpu.features import FEATURES, evaluate
from cost_model.model import sketch_model
from search_spaces import cpu

SCHEMA_VERSION = 1
COMMITTED = Path(__file__).parent / "data" / "programs.json.xz"
DIGITS = 4  # of a time that are kept

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Programs:
    """Programs of one sketch: `steps` is JSON in which `params` are open, `values` `[n, n_params]`, `seconds` `[n]`
    (inf: it failed)."""

    sketch: str
    steps: str
    params: tuple[str, ...]
    values: Ints
    seconds: Floats


@dataclass(frozen=True, eq=False)
class Measured:
    """All programs of a task. `spec`: name, args and dtype of a built-in workload."""

    spec: Mapping[str, Any]
    target: Target
    threads: int
    sketches: tuple[Programs, ...]

    @property
    def label(self) -> str:
        return f"{self.family} {','.join(map(str, self.shape))} threads={self.threads}"

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers among the workload's arguments, in its own order (a database has them sorted by name)."""
        args = self.spec["args"]
        return tuple(int(args[name]) for name in find(self.family).numbers)

    @property
    def family(self) -> str:
        return str(self.spec["name"])

    def __len__(self) -> int:
        return sum(len(s.seconds) for s in self.sketches)


@dataclass(frozen=True, eq=False)
class Table:
    """Programs as rows: `features` float32 `[n, F]`, `seconds` `[n]`, `task` `[n]` the number in `tasks`."""

    features: npt.NDArray[np.float32]
    seconds: Floats
    task: Ints
    tasks: tuple[Measured, ...]
    sketch: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.seconds)


# Files


def write(path: Path, tasks: Sequence[Measured]) -> None:
    """The file is whole or not there."""
    targets = list(dict.fromkeys(t.target for t in tasks))
    document = {
        "schema_version": SCHEMA_VERSION,
        "targets": [asdict(target) for target in targets],
        "tasks": [
            {
                "spec": dict(t.spec),
                "target": targets.index(t.target),
                "threads": t.threads,
                "sketches": [_sketch_data(s) for s in t.sketches],
            }
            for t in tasks
        ],
    }
    text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def _sketch_data(s: Programs) -> dict[str, object]:
    seconds = [float(f"{x:.{DIGITS}g}") if np.isfinite(x) else None for x in s.seconds]
    columns = dict(zip(s.params, s.values.T.tolist(), strict=True))
    return {"name": s.sketch, "steps": json.loads(s.steps), "values": columns, "seconds": seconds}


def read(path: Path) -> tuple[Measured, ...]:
    """Raises StoreError with one sentence for a file that is not one of ours."""
    try:
        document = json.loads(lzma.decompress(path.read_bytes()))
        version = document["schema_version"]
        if version != SCHEMA_VERSION:
            raise StoreError(f"{path} has the schema version {version}, this reads {SCHEMA_VERSION}")
        targets = [_target(data) for data in document["targets"]]
        return tuple(
            Measured(t["spec"], targets[t["target"]], int(t["threads"]), tuple(map(_programs, t["sketches"])))
            for t in document["tasks"]
        )
    except (OSError, lzma.LZMAError, ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise StoreError(f"{path} holds no measured programs: {error}") from error


def _programs(data: Mapping[str, Any]) -> Programs:
    seconds = np.array([np.inf if x is None else float(x) for x in data["seconds"]], np.float64)
    values = np.array([*data["values"].values()], np.int64).reshape(-1, len(seconds)).T
    return Programs(str(data["name"]), json.dumps(data["steps"]), tuple(data["values"]), values, seconds)


def _target(data: Mapping[str, Any]) -> Target:
    """A processor's; fields that this version does not know are left out."""
    if data.get("gpu") is not None:
        raise ValueError("programs of a GPU")
    known = {f.name for f in fields(Target)}
    return Target(**{k: v for k, v in data.items() if k in known})


# From a database


def from_databases(paths: Sequence[Path]) -> tuple[Measured, ...]:
    """The programs of all built-in workloads on processors; what could not be built is none. A task that is in several
    databases is one."""
    tasks: dict[str, list[Measured]] = {}
    for path in paths:
        for found in _from_database(path):
            key = json.dumps([found.spec, asdict(found.target), found.threads], sort_keys=True)
            tasks.setdefault(key, []).append(found)
    return tuple(replace(same[0], sketches=tuple(s for t in same for s in t.sketches)) for same in tasks.values())


def _from_database(path: Path) -> Iterator[Measured]:
    with Database(path, create=False) as database:
        workloads = {w.hash: w for w in database.workloads()}
        targets = database.targets()
        for key, name, threads in sorted({(r.workload, r.target, r.threads) for r in database.runs()}):
            records = [r for r in database.records(key, name, threads) if r.failure not in RETRIED_FAULTS]
            try:
                spec, target = json.loads(workloads[key].spec), _target(json.loads(targets[name]))
                found = _measured(spec, target, threads, records)
            except (AutoschedError, ValueError, TypeError, KeyError) as error:
                print(f"{len(records)} records of {key[:8]} are left out: {error}", file=sys.stderr)
                continue
            if len(found):
                yield found


def _measured(spec: Mapping[str, Any], target: Target, threads: int, records: Sequence[Record]) -> Measured:
    """A task's programs. Records that are rows of today's sketches are kept as such, others each by itself."""
    known = {s.name: s for s in cpu.sketches(collapse(resolve(spec)), target, threads)}
    groups: dict[str, list[Record]] = {}
    others: list[Record] = []
    for record in records:
        sketch = known.get(record.sketch)
        fits = sketch is not None and {p.name for p in sketch.params} == set(record.values)
        if sketch is not None and fits and _equal(steps_to_json(sketch.state, record.values), record.steps):
            groups.setdefault(record.sketch, []).append(record)
        else:
            others.append(record)
    found = []
    for name, group in groups.items():
        params = tuple(p.name for p in known[name].params)
        values = np.array([[r.values[p] for p in params] for r in group], np.int64).reshape(len(group), len(params))
        found.append(Programs(name, steps_to_json(known[name].state, None), params, values, _seconds(group)))
    nothing = np.empty((1, 0), np.int64)
    found += [Programs(r.sketch, r.steps, (), nothing, _seconds([r])) for r in others]
    return Measured(spec, target, threads, tuple(found))


def _equal(steps: str, recorded: str) -> bool:
    return bool(json.loads(steps) == json.loads(recorded))


def _seconds(records: Sequence[Record]) -> Floats:
    return np.array([np.inf if r.seconds is None else r.seconds for r in records])


# Features


def tabulate(tasks: Sequence[Measured]) -> Table:
    """Today's features of all programs; a sketch that cannot be lowered any more is left out, with a line on stderr."""
    features, seconds, task, names = [], [], [], []
    for n, measured in enumerate(tasks):
        dag = collapse(resolve(measured.spec))
        for programs in measured.sketches:
            try:
                x = _features(dag, measured, programs)
            except AutoschedError as error:
                print(f"{measured.label}, {programs.sketch} is left out: {error}", file=sys.stderr)
                continue
            features.append(x)
            seconds.append(programs.seconds)
            task.append(np.full(len(x), n))
            names.append(np.full(len(x), programs.sketch))
    if not features:
        return Table(
            np.empty((0, len(FEATURES)), np.float32), np.empty(0), np.empty(0, np.int64), tuple(tasks), np.empty(0, str)
        )
    return Table(
        np.concatenate(features), np.concatenate(seconds), np.concatenate(task), tuple(tasks), np.concatenate(names)
    )


def _features(dag: ComputeDAG, measured: Measured, programs: Programs) -> npt.NDArray[np.float32]:
    nest = lower(replay(dag, programs.steps, programs.params))
    model = sketch_model(nest, programs.params, measured.target, measured.threads)
    return evaluate(model.feature_program, programs.values, model.table)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.programs", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--db", type=Path, nargs="+", required=True, help="record databases")
    parser.add_argument("--out", type=Path, default=COMMITTED, help=f"default {COMMITTED.name} of the experiments")
    args = parser.parse_args(argv)
    tasks = from_databases(args.db)
    write(args.out, tasks)
    print(f"{sum(map(len, tasks))} programs of {len(tasks)} tasks, {args.out.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
