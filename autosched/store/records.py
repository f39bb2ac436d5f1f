"""Records of candidates: their identity, and the choice of the outcome that counts.

A *candidate* is a sketch with values for its parameters, stored as schedule steps (canonical JSON: data, never code).
Each time it is built and timed there is one *outcome*: a measurement or a failure. A `Record` is a candidate with the
outcome that counts. If there are outcomes of this installation (see `signing`), only these are considered and the
record is `verified`, so that other installations cannot change it. Otherwise the others are considered, and it is a
claim. Among the outcomes considered:

1. If the latest outcome is a failure, the record is a failure (a kernel that was wrong once is not used). A
   measurement is later that has a greater number and was not made before: merging files may bring an old one in last.
2. Otherwise, if a measurement is certified (the interleaved re-measurement at the end of a search, with an
   interval), the latest certified one counts: it is the only kind whose comparison between candidates is fair.
3. Otherwise the latest measurement counts.

An outcome whose row is damaged may have been a failure, and counts as one: the candidate has no record until it is
measured again.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from autosched.errors import StoreError

if TYPE_CHECKING:
    from autosched.kernel.roofline import Fact
    from autosched.measure import Measurement
    from autosched.tuner.definition import Workload

MAX_TEXT = 1_000_000  # characters of one stored JSON text or one imported line
MAX_ALTERNATIVES = 8  # descriptions of one workload
MAX_DEPTH = 32
MAX_INT = 2**63 - 1  # SQLite's integer
MAX_MESSAGE = 4_000  # a failure's message is cut here: enough for a compiler's first errors


RUN_STATES = ("running", "finished", "interrupted", "failed")
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
LOST = "lost"  # failure class of substitutes for unreadable outcomes; never written


@dataclass(frozen=True)
class WorkloadRow:
    """A tuned workload: `hash` is the content hash of its ComputeDAG, `spec` the JSON that rebuilds it."""

    hash: str
    name: str
    spec: str


@dataclass(frozen=True)
class TargetRow:
    """A row of the table `targets`: the target's fingerprint, and its description as JSON."""

    fingerprint: str
    json: str


@dataclass(frozen=True)
class Finding:
    """A worker's result for a candidate: the median `seconds` with its `samples`, or a `failure` class with its
    message.
    """

    seconds: float | None
    samples: Sequence[float] = ()
    failure: str | None = None
    message: str = ""


@dataclass(frozen=True)
class Run:
    """One search. `uid` names it across databases; one that was killed stays `running` (see RUN_STATES)."""

    id: int
    uid: str
    workload: str
    target: str
    threads: int
    seed: int
    started: str
    finished: str | None
    status: str


@dataclass(frozen=True)
class Outcome:
    """One attempt at a candidate. Exactly one of `seconds` (median) and `failure` (class) is set.

    `order` counts the attempts at this candidate from 0; `ci` is set for certified measurements only: (lo, hi) in
    seconds. `signature`: of the installation that made the attempt, None where it had no key.
    """

    order: int
    run_id: int
    seconds: float | None
    samples: tuple[float, ...]
    ci: tuple[float, float] | None
    failure: str | None
    message: str
    created: str
    signature: str | None = None


@dataclass(frozen=True)
class CandidateRow:
    """A row of the table `candidates`: a candidate without its outcomes."""

    id: int
    run_id: int
    workload: str
    target: str
    threads: int
    sketch: str
    steps: str
    values: dict[str, int]
    round: int
    created: str

    @property
    def identity(self) -> str:
        return identity_of(self)


@dataclass(frozen=True)
class Record:
    """A candidate and the outcome that counts (see the module's docstring).

    `workload` is a content hash, `target` a fingerprint, `steps` canonical JSON, `seconds` a median or None for a
    failure, `samples` seconds, `created` the UTC time of the candidate's first outcome in ISO 8601. `verified`: a
    worker of this installation found this outcome; of any other record it is a claim from elsewhere. `database`: the
    file that the record was read from.
    """

    id: int
    run_id: int
    workload: str
    target: str
    threads: int
    sketch: str
    steps: str
    values: dict[str, int]
    seconds: float | None
    samples: tuple[float, ...]
    failure: str | None
    message: str
    round: int
    created: str
    ci: tuple[float, float] | None = None
    verified: bool = False
    database: Path | None = field(default=None, compare=False, repr=False)

    @property
    def certified(self) -> bool:
        return self.ci is not None

    @property
    def identity(self) -> str:
        return identity_of(self)

    def show(self, as_: str = "steps", *, workload: Workload | None = None, target: str | None = None) -> str:
        """Return the candidate as text in one of the forms of `autosched.show`."""
        from autosched import inspection_api

        return inspection_api.show(self.id, self.database, as_, workload=workload, target=target)

    def verify(self, *, workload: Workload | None = None, target: str | None = None, seed: int = 1) -> Measurement:
        """Build the candidate, check it on data drawn by `seed`, and time it, see `autosched.verify`."""
        from autosched import inspection_api

        return inspection_api.verify(self.id, self.database, workload=workload, target=target, seed=seed)

    def explain(self, *, workload: Workload | None = None, target: str | None = None) -> Mapping[str, Fact]:
        """Return facts on the candidate's speed by name, see `autosched.explain`."""
        from autosched import inspection_api

        return inspection_api.explain(self.id, self.database, workload=workload, target=target)

    def export(
        self,
        kind: str = "so",
        out: Path | str | None = None,
        *,
        workload: Workload | None = None,
        target: str | None = None,
    ) -> list[Path]:
        """Write the candidate's code to `out` and return the files, see `autosched.export`."""
        from autosched import inspection_api

        return inspection_api.export(self.id, self.database, kind, out, workload=workload, target=target)


@dataclass(frozen=True)
class FusionDecision:
    """Whether a subgraph of a network was faster as one kernel or as several, by measurement in the running network.

    `workload`: the content hash of the fused kernel. `fused_s`, `unfused_s`: seconds, one for each profile.
    `is_fused`: which of both was kept. `created` and `signature` are the database's, as those of an `Outcome`.
    """

    workload: str
    target: str
    threads: int
    is_fused: bool
    fused_s: tuple[float, ...]
    unfused_s: tuple[float, ...]
    created: str = ""
    signature: str | None = None


def identity_of(what: CandidateRow | Record) -> str:
    """Return the sha256 (hex) of all fields that make two candidates the same; not of the run, the round or
    the time.
    """
    return digest(what.workload, what.target, what.threads, what.sketch, what.steps)


def lost_outcome(order: int) -> Outcome:
    return Outcome(order, 0, None, (), None, LOST, "", "")


def to_record(
    candidate: CandidateRow, outcomes: Sequence[Outcome], is_ours: Callable[[Outcome], bool], database: Path
) -> Record | None:
    """Return the record of a candidate in the file `database`; None without outcomes, or if the one that counts is
    lost.

    A lost outcome may have been one of this installation.
    """
    ordered = sorted(outcomes, key=lambda o: o.order)
    ours = [o for o in ordered if o.failure == LOST or is_ours(o)]
    counts = _counting(ours or ordered)
    if counts is None or counts.failure == LOST:
        return None
    result = {name: getattr(counts, name) for name in ("seconds", "samples", "failure", "message", "ci")}
    return Record(**vars(candidate), **result, verified=bool(ours), database=database)


def _counting(outcomes: Sequence[Outcome]) -> Outcome | None:
    measured = [o for o in outcomes if o.failure is None]
    for failure in (o for o in reversed(outcomes) if o.failure is not None):
        if not any(o.order > failure.order and o.created >= failure.created for o in measured):
            return failure
    certified = [o for o in measured if o.ci is not None]
    return certified[-1] if certified else measured[-1] if measured else None


def rank(record: Record) -> tuple[bool, bool, float, str]:
    """Return the sort key of measured records, best first: verified ones, then certified ones, then by time; ties are
    broken by content, never at random.
    """
    seconds = math.inf if record.seconds is None else record.seconds
    return (not record.verified, not record.certified, seconds, digest(record.sketch, record.steps))


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def canonical_json(value: object) -> str:
    """Return the same text for equal data: sorted keys, no spaces, ASCII. Raises ValueError for NaN and infinities."""
    return _CANONICAL.encode(value)


def digest(*fields: object) -> str:
    return hashlib.sha256(canonical_json(fields).encode()).hexdigest()


def parse_data(text: str | bytes) -> object:
    """Parse JSON from outside: bounded in length, depth and integers, finite numbers only. Raises StoreError."""
    if len(text) > MAX_TEXT:
        raise StoreError(f"a JSON text has {len(text)} characters, more than the {MAX_TEXT} that a record may have")
    try:
        value: object = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"a JSON text of a record cannot be read: {error}") from error
    _check_bounds(value, MAX_DEPTH)
    return value


def with_alternative(spec: str, other: str) -> str:
    """Add another description of a workload of the same content under "also".

    Functions that compute the same have arguments and names of stages of their own, which records need. The description
    of a kernel of a network gets no alternative.
    """
    try:
        first, second = parse_data(spec), parse_data(other)
    except StoreError:
        return spec
    if not isinstance(first, dict) or not isinstance(second, dict) or "graph" in first or "graph" in second:
        return spec
    also = first.get("also", [])
    known = [first, *also] if isinstance(also, list) else []
    names = [entry.get("name") for entry in known if isinstance(entry, dict)]
    if not known or second.get("name") in names or len(names) > MAX_ALTERNATIVES:
        return spec
    second.pop("also", None)
    return json.dumps({**first, "also": [*also, second]}, sort_keys=True)


def canonical_steps(steps_json: str) -> str:
    """Return the canonical form of schedule steps given as JSON text."""
    return canonical_json(parse_data(steps_json))


def checked_values(values: Mapping[str, int]) -> dict[str, int]:
    """Return parameter values as plain integers (NumPy's integers included), sorted by name."""
    plain = {str(name): int(values[name]) for name in sorted(values)}
    _check_bounds(plain, 1)
    return plain


def checked_outcome(seconds: float | None, samples: Sequence[float], failure: str | None) -> None:
    """Raise StoreError unless exactly one of seconds and failure is given, and all times are finite and above 0."""
    if (seconds is None) == (failure is None):
        raise StoreError("a record needs either a time or a failure class, and got both or neither")
    checked_times([*samples] if seconds is None else [seconds, *samples])


def checked_times(times: object) -> tuple[float, ...]:
    """Return measured seconds as floats. Raises StoreError unless they are numbers, finite and above 0."""
    if not isinstance(times, list | tuple) or not all(
        isinstance(t, float | int) and not isinstance(t, bool) for t in times
    ):
        raise StoreError("measured times are a list of numbers")
    wrong = [t for t in times if not (math.isfinite(t) and t > 0.0)]
    if wrong:
        raise StoreError(f"a measured time must be finite and above 0 s, got {wrong[0]!r}")
    return tuple(map(float, times))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that a record may hold")


def _check_bounds(value: object, depth: int) -> None:
    match value:
        case None | bool():
            return
        case str():
            try:
                value.encode()
            except UnicodeEncodeError as error:  # half of a surrogate pair: SQLite and files hold UTF-8
                raise StoreError("a text of a record is not Unicode") from error
        case int():
            if abs(value) > MAX_INT:
                raise StoreError("an integer of a record is outside of 64 bits")
        case float():
            if not math.isfinite(value):
                raise StoreError("a number of a record is not finite")
        case list() | dict():
            if depth == 0:
                raise StoreError(f"a JSON text of a record is nested deeper than {MAX_DEPTH}")
            for item in (*value, *value.values()) if isinstance(value, dict) else value:
                _check_bounds(item, depth - 1)
        case _:
            raise StoreError(f"a record holds {type(value).__name__}, which is not JSON data")
