"""The cases of the replay guard: schedules with all their numbers, and the hash of the text that is emitted for each.

A case holds its steps as a record does, so what the search or the cost model prefers does not matter. The caches of a
case's processor are fixed here: those of the machine that replays it would change the text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from autosched.kernel.device import Device
from autosched.kernel.request import Request
from autosched.lower import lower
from autosched.schedule import replay
from autosched.target import Target, parse_target
from autosched.tuner.definition import Definition, define
from autosched.tuner.options import WorkloadOptions

TABLE = Path(__file__).with_name("cases.jsonl")
CORES, L1, L2, L3 = 4, 32 << 10, 1 << 20, 16 << 20


@dataclass(frozen=True)
class Problem:
    """A workload and the device that it is scheduled for. `settings` are the workload's arguments as (name, value).

    `dtype` is None for a function without an argument of that name.
    """

    workload: str
    settings: tuple[tuple[str, int | str], ...] = ()
    dtype: str | None = "float32"
    target: str = "llvm -mcpu=haswell"
    threads: int = 1
    weights: tuple[str, ...] = ()
    winograd: bool = False

    @property
    def name(self) -> str:
        words = [self.workload.rpartition(":")[2], *(f"{key}={value}" for key, value in self.settings)]
        words += [] if self.dtype is None else [self.dtype]
        words += [f"weights={','.join(self.weights)}"] * bool(self.weights) + ["winograd"] * self.winograd
        return f"{' '.join(words)} | {self.target}, {self.threads}"

    def definition(self) -> Definition:
        asked = WorkloadOptions(
            settings=dict(self.settings), dtype=self.dtype, weights=self.weights, winograd=self.winograd
        )
        return define(self.workload, asked)

    def device(self) -> Device:
        return Device(fixed_target(self.target), self.threads)

    def request(self) -> Request:
        return Request(self.definition(), self.device(), self.target)


@dataclass(frozen=True)
class Case:
    """A schedule of a problem, as JSON, and the sha256 of its text; `number` tells schedules of a problem apart."""

    problem: Problem
    number: int
    steps: str
    sha256: str

    @property
    def name(self) -> str:
        return f"{self.problem.name} #{self.number}"

    def text(self) -> str:
        """LLVM IR, CUDA C or OpenCL C, emitted anew."""
        request = self.problem.request()
        state = replay(request.collapsed, self.steps)
        return request.source(lower(state), state.steps, {}).text


def fixed_target(text: str) -> Target:
    target = parse_target(text)
    if target.kind != "cpu":
        return target
    return replace(target, cores=CORES, l1_bytes=L1, l2_bytes=L2, l3_bytes=L3, line_bytes=64)


def hash_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read() -> list[Case]:
    return [_case(json.loads(line)) for line in TABLE.read_text().splitlines()]


def write(cases: Iterable[Case]) -> None:
    TABLE.write_text("".join(json.dumps(asdict(case), sort_keys=True) + "\n" for case in cases))


def _case(data: dict[str, object]) -> Case:
    problem = data["problem"]
    assert isinstance(problem, dict)
    settings = tuple((name, value) for name, value in problem["settings"])
    known = {**problem, "settings": settings, "weights": tuple(problem["weights"])}
    return Case(**{**data, "problem": Problem(**known)})  # type: ignore[arg-type]
