"""Many programs in forked workers, each failure attributed to its candidate; and the shrinking of one failure."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from autosched.runtime.jit import load_object
from autosched.runtime.simulator.build import runtime
from autosched.target import parse_target
from autosched.te import ComputeDAG
from experiments.pipelines.random_pipelines import pipeline_dag
from search_spaces.space import Sketch
from tests.codegen.elsewhere import compile_here
from tests.fuzz.bottlenecks import bottleneck_dag
from tests.fuzz.candidate import Candidate, Fault, Subject, all_sketches, check_model, draw, is_gpu, signature, step
from tests.fuzz.generate import random_dag
from tests.fuzz.isolate import Child, Message, Send, conversation, wait
from tests.fuzz.shrink import Failing, shrink

DEADLINE_S = 60.0  # without a word; a candidate compiles in some tens of milliseconds
SHRINK_ROWS = 12  # candidates tried on a smaller program
_EMPTY = "define i32 @empty(ptr %args, ptr %workspace, i64 %threads) {\n  ret i32 0\n}\n"


@dataclass(frozen=True)
class ProgramKind:
    """`make` gives the program of a seed; of its sketches those with `mark` in their names are tried, where there are
    any."""

    make: Callable[[str], ComputeDAG]
    mark: str = ""

    def preferred(self, sketches: Sequence[Sketch]) -> Sequence[Sketch]:
        return [sketch for sketch in sketches if self.mark in sketch.name] or sketches


ANY = "any"
PROGRAMS: Mapping[str, ProgramKind] = {
    ANY: ProgramKind(random_dag),
    "bottlenecks": ProgramKind(bottleneck_dag, ":chain"),
    "pipelines": ProgramKind(pipeline_dag),
}


@dataclass(frozen=True)
class Failure:
    """A candidate of the program `seed` of those `programs`, what happened to it."""

    seed: str
    candidate: Candidate
    kind: str
    message: str
    programs: str = ANY

    @property
    def signature(self) -> str:
        return signature(self.kind, self.message)

    def __str__(self) -> str:
        c = self.candidate
        return (
            f"{self.kind} of program {self.seed!r} ({c.target}, {c.threads} threads, sketch {c.sketch!r}, "
            f"{dict(c.values)}): {self.message}"
        )


@dataclass
class Tally:
    """What a run has done so far."""

    programs: int = 0
    candidates: int = 0
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """Programs `seed`:0 to `seed`:dags-1, `candidates` of each, over all targets and numbers of threads in turn."""

    seed: str
    dags: int
    candidates: int
    targets: tuple[str, ...]
    threads: tuple[int, ...]
    workers: int
    end: float = float("inf")  # monotonic time after which no program is begun
    programs: str = ANY  # of PROGRAMS


def warm(targets: tuple[str, ...]) -> None:
    """Everything that children need before their first kernel, made once before they are forked."""
    for text in targets:
        if parse_target(text).kind == "cuda":
            runtime()
        if is_gpu(text):  # its driver has threads
            continue
        load_object(compile_here(_EMPTY, parse_target(text)), "empty", 1)


def run(plan: Plan, progress: Callable[[Tally], None]) -> Tally:
    """All programs of the plan; a worker that dies or hangs is replaced by one that goes on behind that candidate."""
    tally = Tally()
    states = [_Worker(plan, first, tally) for first in range(plan.workers)]
    while any(s.child for s in states):
        wait([s.child for s in states if s.child])
        for state in states:
            state.listen()
        progress(tally)
    return tally


class _Worker:
    """The programs first, first + workers, ... of a plan, one child after another."""

    def __init__(self, plan: Plan, first: int, tally: Tally) -> None:
        self.plan, self.tally = plan, tally
        self.at, self.number = first, 0
        self.trying: Candidate | None = None
        self.child: Child | None = self._start()

    def _start(self) -> Child:
        plan, at, number = self.plan, self.at, self.number
        return Child(lambda send: _programs(plan, at, number, send), DEADLINE_S)

    def listen(self) -> None:
        child = self.child
        if child is None:
            return
        for message in child.messages():
            match message:
                case {"ended": None}:
                    self.child = None
                case {"ended": str(reason)}:
                    kind, _, text = reason.partition(": ")
                    self._fail(kind, f"the process ended: {text}")
                    self.number += 1
                    child.close()
                    self.child = self._start()
                case {"try": dict(data)}:
                    self.at, self.number = data["at"], data["number"]
                    self.trying = Candidate.from_json(data)
                    self.tally.candidates += self.number > 0
                case {"failed": [str(kind), str(text)]}:
                    self._fail(kind, text)
                case {"program": _}:
                    self.tally.programs += 1

    def _fail(self, kind: str, message: str) -> None:
        assert self.trying is not None
        seed = f"{self.plan.seed}:{self.at}"
        self.tally.failures.append(Failure(seed, self.trying, kind, message, self.plan.programs))


def _programs(plan: Plan, first: int, number: int, send: Send) -> None:
    for at in range(first, plan.dags, plan.workers):
        if time.monotonic() >= plan.end:
            return
        with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
            _program(plan, at, number, Path(directory), send)
        send({"program": at})
        number = 0


def _program(plan: Plan, at: int, begin: int, directory: Path, send: Send) -> None:
    """The candidates of one program from number `begin` on; numbers are counted the same way every time."""
    seed = f"{plan.seed}:{at}"
    rng = np.random.default_rng([int.from_bytes(plan.seed.encode(), "big"), at])
    choices = [(t, n) for t in plan.targets for n in plan.threads]
    (target, threads), kind = choices[at % len(choices)], PROGRAMS[plan.programs]
    if begin == 0:
        send({"try": {"at": at, "number": 0, **Candidate(target, threads).to_json()}})
    try:
        with step("generate"):
            dag = kind.make(seed)
        subject = Subject(dag, directory, at, target)
        found = kind.preferred(all_sketches(dag, target, threads))
    except Fault as fault:
        send({"failed": [fault.kind, str(fault)]})
        return
    for number in range(1, plan.candidates + 1):
        sketch = found[int(rng.integers(len(found)))]
        trying = Candidate(target, threads, sketch.name)
        try:
            if number == 1:
                check_model(sketch, target, threads, rng)
            candidate = draw(sketch, target, threads, rng)
        except Fault as fault:
            if number >= begin:
                send({"try": {"at": at, "number": number, **trying.to_json()}})
                send({"failed": [fault.kind, str(fault)]})
            continue
        if number >= begin:
            _try(subject, candidate, {"at": at, "number": number}, send)


def _try(subject: Subject, candidate: Candidate, place: Message, send: Send) -> bool:
    """Whether it passed."""
    send({"try": {**place, **candidate.to_json()}})
    try:
        subject.run(candidate)
    except Fault as fault:
        send({"failed": [fault.kind, str(fault)]})
        return False
    return True


def shrunk(failure: Failure, seconds: float) -> Failing:
    """The smallest program and candidate found that fail as `failure` does."""

    def test(dag: ComputeDAG, candidate: Candidate) -> Candidate | None:
        return next((f.candidate for f in failures_of(dag, candidate) if f.signature == failure.signature), None)

    return shrink(PROGRAMS[failure.programs].make(failure.seed), failure.candidate, test, seconds)


def failures_of(dag: ComputeDAG, candidate: Candidate, rows: int = SHRINK_ROWS) -> Iterator[Failure]:
    """What goes wrong with the candidate, as near as the program has it, and then with `rows` others."""
    trying = candidate
    for message in conversation(lambda send: _variants(dag, candidate, rows, send), DEADLINE_S / 4):
        match message:
            case {"try": dict(data)}:
                trying = Candidate.from_json(data)
            case {"failed": [str(kind), str(text)]}:
                yield Failure("", trying, kind, text)
            case {"ended": str(reason)}:
                kind, _, text = reason.partition(": ")
                yield Failure("", trying, kind, f"the process ended: {text}")


def _variants(dag: ComputeDAG, candidate: Candidate, rows: int, send: Send) -> None:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        send({"try": Candidate(candidate.target, candidate.threads).to_json()})
        try:
            subject = Subject(dag, Path(directory), 0, candidate.target)
            found = all_sketches(dag, candidate.target, candidate.threads)
        except Fault as fault:
            send({"failed": [fault.kind, str(fault)]})
            return
        named = [s for s in found if s.name == candidate.sketch]
        if named:
            wished = dict(candidate.values)
            values = tuple((p.name, _nearest(p.domain, wished.get(p.name, p.domain[0]))) for p in named[0].params)
            _try(subject, replace(candidate, values=values), {}, send)
        rng = np.random.default_rng(0)
        others = [*named, *(s for s in found if s.name != candidate.sketch)]
        for n in range(rows):
            sketch = others[n % len(others)]
            try:
                if n == 0:
                    check_model(sketch, candidate.target, candidate.threads, rng)
                _try(subject, draw(sketch, candidate.target, candidate.threads, rng), {}, send)
            except Fault as fault:
                send({"try": replace(candidate, sketch=sketch.name, values=()).to_json()})
                send({"failed": [fault.kind, str(fault)]})


def _nearest(domain: tuple[int, ...], value: int) -> int:
    return min(domain, key=lambda v: abs(v - value))
