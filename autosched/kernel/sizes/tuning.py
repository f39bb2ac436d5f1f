"""Tuning over sizes: for each class of the sizes that count, a search for a typical one of them, and then the choice of
the candidate whose weighted time at all of them is least.

The records are ordinary ones of exact sizes; the chosen schedule has one at each size (`kernel.sizes.stored`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.errors import AutoschedError, UsageError
from autosched.kernel.lookup import stored_records, stored_source
from autosched.kernel.measuring import measure_sources
from autosched.kernel.request import Request
from autosched.kernel.sizes.sized_kernel import SizedKernel
from autosched.kernel.sizes.stored import Sizes, classes_of
from autosched.kernel.task import rows_of
from autosched.measure.results import Failure
from autosched.store import Database, Finding

if TYPE_CHECKING:
    from autosched.measure import Measurement
    from autosched.store import Record
    from autosched.tuner.result import Result

CANDIDATES = 3  # the fastest candidates of a search, which are measured at all sizes of the class
At = Mapping[str, Sequence[int] | Mapping[int, float]]
RequestAt = Callable[[Sizes], Request]
Search = Callable[[Request, float], "Result"]  # for exact sizes, with a share of the budget


@dataclass(frozen=True)
class TunedClass:
    """The outcome for a class of sizes. `result`: of the search at `sizes`. `seconds`: of the kernels with the chosen
    schedule at the sizes of the class that count, which have `weights`."""

    sizes: Mapping[str, int]
    result: Result = field(repr=False)
    weights: Mapping[Sizes, float]
    seconds: Mapping[Sizes, float]


@dataclass(frozen=True)
class SizesResult:
    """The outcome of tuning over sizes. `compile` returns the kernel, which later `autosched.compile` finds too."""

    classes: tuple[TunedClass, ...]
    kernel: SizedKernel

    @property
    def interrupted(self) -> bool:
        return any(tuned.result.interrupted for tuned in self.classes)

    def compile(self) -> SizedKernel:
        return self.kernel

    def to_json(self) -> dict[str, object]:
        """Return the object that `tune --json` prints, as JSON data."""
        return {
            "sizes": {name: [allowed.start, allowed[-1]] for name, allowed in self.kernel.ranges.items()},
            "classes": [
                {
                    "search": tuned.result.to_json(),
                    "at": [[[*sizes], tuned.weights[sizes], seconds] for sizes, seconds in tuned.seconds.items()],
                }
                for tuned in self.classes
            ],
        }


def weights_of(at: At, ranges: Mapping[str, range]) -> dict[Sizes, float]:
    """Return the weights of sizes: of several dimensions all combinations. Raises UsageError for others than in ranges,
    and for weights that are not above 0."""
    if set(at) != set(ranges):
        raise UsageError(f"at= has the sizes to tune for, of {', '.join(ranges)}, got {', '.join(at) or 'none'}")
    choices = []
    for name, allowed in ranges.items():
        given = at[name]
        weights = dict(given) if isinstance(given, Mapping) else dict.fromkeys(given, 1.0)
        for size, weight in weights.items():
            if not isinstance(size, int) or size not in allowed or not weight > 0 or not math.isfinite(weight):
                raise UsageError(
                    f"at= of {name} has sizes from {allowed.start} to {allowed[-1]} with weights above 0, got "
                    f"{size!r} with {weight!r}"
                )
        if not weights:
            raise UsageError(f"at= of {name} has no sizes")
        choices.append(weights.items())
    return {tuple(n for n, _ in each): math.prod(w for _, w in each) for each in itertools.product(*choices)}


def tune_sizes(kernel: SizedKernel, weights: Mapping[Sizes, float], search: Search, seed: int) -> SizesResult:
    """Search for each class of sizes, and record the schedule that is fastest by weighted times at all of them.

    Raises what `search` raises. Ctrl-C ends the search with the classes so far.
    """
    if kernel.workload.definition.sizes:
        raise UsageError("sizes that an expression declares have no records: make them arguments of a function")

    def request_at(sizes: Sizes) -> Request:
        return kernel.request(dict(zip(kernel.ranges, sizes, strict=True)))

    classes: dict[Sizes, dict[Sizes, float]] = {}
    for sizes, weight in weights.items():
        classes.setdefault(classes_of(sizes), {})[sizes] = weight
    tuned: list[TunedClass] = []
    for own in classes.values():
        typical = _median(own)
        named = dict(zip(kernel.ranges, typical, strict=True))
        result = search(request_at(typical), sum(own.values()) / sum(weights.values()))
        seconds: dict[Sizes, float] = {}
        if len(own) > 1 and not result.interrupted:
            records = _candidates(kernel, named, request_at(typical))
            seconds = _choose(records, own, request_at, kernel.db, seed)
        tuned.append(TunedClass(named, result, own, seconds or {typical: result.best_s}))
        if result.interrupted:
            break
    return SizesResult(tuple(tuned), replace(kernel))


def _median(weights: Mapping[Sizes, float]) -> Sizes:
    """Return the sizes up to which, by their product, half of the weight is."""
    ordered, rest = sorted(weights, key=lambda sizes: (math.prod(sizes), sizes)), sum(weights.values()) / 2
    for sizes in ordered:
        rest -= weights[sizes]
        if rest <= 0:
            return sizes
    return ordered[-1]


def _candidates(kernel: SizedKernel, sizes: Mapping[str, int], request: Request) -> list[Record]:
    """Return the fastest verified records of exact sizes whose steps give code for the class of these sizes."""
    verified = (record for record in stored_records(request, kernel.db, None) if record.verified)
    first = {record.steps: record for record in itertools.islice(verified, 2 * CANDIDATES)}
    return [*itertools.islice((r for steps, r in first.items() if kernel.fits(steps, sizes)), CANDIDATES)]


def _choose(
    records: Sequence[Record], weights: Mapping[Sizes, float], request_at: RequestAt, db: Path | str | None, seed: int
) -> dict[Sizes, float]:
    """Measure records at all sizes, record the fastest by weighted times there, and return its seconds.

    Returns nothing if no record is right at all sizes.
    """
    answers = {sizes: _measured(request_at(sizes), records, seed) for sizes in weights}
    right = [n for n in range(len(records)) if all(n in own for own in answers.values())]
    if not right:
        return {}
    best = min(right, key=lambda n: sum(w * min(answers[sizes][n].samples) for sizes, w in weights.items()))
    record = records[best]
    with Database(db) as database:
        for sizes, own in answers.items():
            request, answer = request_at(sizes), own[best]
            run = database.start_run(*rows_of(request), request.device.threads, seed)
            finding = Finding(answer.seconds, answer.samples)
            database.append(run, record.sketch, record.steps, record.values, 0, finding)
            database.finish_run(run)
    return {sizes: own[best].seconds for sizes, own in answers.items()}


def _measured(request: Request, records: Sequence[Record], seed: int) -> dict[int, Measurement]:
    """Return the times of records' schedules at other sizes, by number; without those that are wrong there."""
    sources = {}
    for n, record in enumerate(records):
        with suppress(AutoschedError):
            sources[str(n)] = stored_source(record, request)
    answers = measure_sources(request, sources, seed)
    return {int(n): answer for n, answer in answers.items() if not isinstance(answer, Failure)}
