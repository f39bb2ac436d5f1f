"""The candidates of a subject and their times: the analytic model's choice beside the fastest of measured ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.errors import AutoschedError
from autosched.kernel.device import find_device
from autosched.kernel.request import Request
from autosched.kernel.task import analytic_best, make_task
from autosched.measure import timing
from autosched.runtime.kernel import Kernel
from autosched.te import Tensor
from autosched.tuner.definition import define, function_of
from autosched.tuner.options import WorkloadOptions
from autosched.tuner.protocols import Candidate, Trial
from autosched.tuner.search import Search
from autosched.tuner.task import training_data

ROUNDS, BLOCK_S = 20, 0.01  # of the interleaved comparison
ALONE_S = 0.03  # of timing each candidate by itself
FINALISTS = 5  # the fastest candidates by those times, which are compared with the choice
KEPT = 4  # fastest candidates of a row
PHASES = ("draft", "draft", "evolve", "evolve")  # a quarter of the candidates each
AGREES = 1e-3  # of the largest value
Array = npt.NDArray[Any]
Run = Callable[[], object]


@dataclass(frozen=True)
class Subject:
    """A workload with arrays for its inputs, of which `weights` are constant."""

    name: str
    outputs: tuple[Tensor, ...]
    arrays: tuple[Array, ...]
    weights: tuple[str, ...] = ()


class MeasuredCandidates:
    """The kernels of a subject: they are built, their results compared with the choice's, and timed."""

    def __init__(self, subject: Subject, target: str, threads: int) -> None:
        """Raises AutoschedError where nothing can be built."""
        options = WorkloadOptions(threads=threads, weights=subject.weights)
        self.request = Request(define(function_of(subject.outputs), options), find_device(target, threads), target)
        self.arrays, self.failures = subject.arrays, list[str]()
        self.task, self.sketches = make_task(self.request)
        self.runs, self.seconds = dict[Candidate, Run](), dict[Candidate, float]()
        ((self.choice, source),) = analytic_best(self.task, 1, self.task.source)
        run, self._expected = self._started(source)
        self._enter(self.choice, run)

    def _started(self, source: Any) -> tuple[Run, tuple[Array, ...]]:
        """A call of the kernel of `source`, and its results."""
        kernel, arrays = self.request.load(source), self.arrays
        if isinstance(kernel, Kernel) and kernel.weights:
            named = dict(zip((spec.name for spec in kernel.inputs), arrays, strict=True))
            kernel = kernel.bind(**{name: named.pop(name) for name in kernel.weights})
            arrays = tuple(named.values())
        out = kernel(*arrays)
        results = tuple(np.array(a) for a in (out if isinstance(out, tuple) else (out,)))
        return lambda: kernel(*arrays, out=out), results

    def _enter(self, candidate: Candidate, run: Run) -> None:
        clock = timing.python_clock(run)
        self.runs[candidate] = run
        self.seconds[candidate] = timing.fastest_sample(clock, timing.calibrate(clock, timing.SAMPLE_S)[0], ALONE_S)

    def try_all(self, candidates: Iterable[Candidate]) -> list[Trial]:
        """The trials of candidates, which are timed alone where their results agree with the choice's."""
        trials = []
        for candidate in candidates:
            if candidate not in self.runs:
                self._try(candidate)
            seconds = self.seconds.get(candidate)
            trials.append(Trial(candidate, 0, seconds, () if seconds is None else (seconds,)))
        return trials

    def _try(self, candidate: Candidate) -> None:
        name, values = self.sketches[candidate.sketch].name, self.task.values(candidate)
        try:
            run, results = self._started(self.task.source(candidate))
        except (AutoschedError, RuntimeError) as error:
            self.failures.append(f"{name} {values}: {type(error).__name__}: {error}")
            return
        if all(map(agree, results, self._expected)):
            self._enter(candidate, run)
        else:
            self.failures.append(f"{name} {values} does not agree with the choice")

    def search(self, n: int) -> None:
        """Measures `n` candidates: the best predicted of all sketches, then what a search with these times proposes."""
        found = Search(self.task.space, self.task.sketches, self.task.model, seed=0)
        for number, phase in enumerate(PHASES):
            trials = self.try_all(found.propose(number, -(-n // len(PHASES)), phase))
            found.observe(trials)
            self.task.model.update(*training_data(trials))

    def finish(self) -> None:
        """Times the choice and the fastest others again, interleaved.

        The least over blocks of calls counts: other work on the machine only makes blocks slower.
        """
        fastest = sorted(self.seconds, key=self.seconds.__getitem__)[:FINALISTS]
        finalists = list(dict.fromkeys([self.choice, *fastest]))
        clocks = {str(n): timing.python_clock(self.runs[c]) for n, c in enumerate(finalists)}
        for n, samples in timing.interleaved(clocks, ROUNDS, BLOCK_S).items():
            self.seconds[finalists[int(n)]] = min(samples)

    def named(self, entries: Sequence[dict[str, Any]]) -> list[Candidate]:
        """The candidates of a row's entries that the search space still has."""
        found = []
        for entry in entries:
            for i, sketch in enumerate(self.sketches):
                if sketch.name == entry["sketch"] and {p.name for p in sketch.params} == set(entry["values"]):
                    found.append(Candidate(i, tuple(entry["values"][p.name] for p in sketch.params)))
        return found

    def entry(self, candidate: Candidate) -> dict[str, Any]:
        (predicted_s,) = self.task.model.analytic_latency(candidate.sketch, np.array([candidate.values], np.int64))
        return {
            "sketch": self.sketches[candidate.sketch].name, "values": self.task.values(candidate),
            "predicted_s": float(predicted_s), "seconds": self.seconds[candidate],
        }  # fmt: skip


def agree(a: Array, b: Array) -> bool:
    """Whether two results differ by rounding alone."""
    finite = np.isfinite(b)
    largest = float(np.abs(b[finite]).max(initial=0.0))
    return bool(np.allclose(a, b, rtol=0, atol=AGREES * largest, equal_nan=True))


def measure(
    subject: Subject, target: str, threads: int, candidates: int, earlier: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """The row of a subject: its choice, its best candidate, the regret, and the fastest candidates.

    `earlier`: entries of a row, which are measured in place of `candidates` new ones.
    """
    start = time.perf_counter()
    try:
        found = MeasuredCandidates(subject, target, threads)
    except AutoschedError as error:
        return {"error": str(error)}
    if earlier:
        found.try_all(found.named(earlier))
    else:
        found.search(candidates)
    found.finish()
    order = sorted(found.seconds, key=found.seconds.__getitem__)
    choice = found.entry(found.choice)
    return {
        "choice": choice, "regret": choice["seconds"] / found.seconds[order[0]],
        "measured": len(found.seconds), "sketches": len(found.sketches), "failures": found.failures,
        "took_s": round(time.perf_counter() - start, 1), "entries": [found.entry(c) for c in order[:KEPT]],
    }  # fmt: skip
