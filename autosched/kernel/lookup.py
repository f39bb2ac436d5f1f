"""Lookup of schedules: the fastest stored record of a kernel that this installation has verified, for single kernels
and for those of networks; where there is none, the schedule that the analytic model predicts to be the fastest.

Records are matched by the content hash of the computation. Hashing a spec is slow, so a spec that equals a stored one
has the stored hash; if the kernel is built anew, the hash is checked. Records that this installation has not verified
are claims: of a single kernel workers verify them before use, of networks they are not used.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.errors import AutoschedError, ScheduleError, StoreError
from autosched.kernel.object_cache import find_object
from autosched.kernel.request import Request
from autosched.kernel.spec import KernelSpec
from autosched.kernel.task import analytic_best, make_task, task_key
from autosched.kernel.trust import verify_here, warn_of_claims, warn_user
from autosched.store import Database, Record, default_path, named_path
from autosched.target import Target
from autosched.tuner.workload_spec import WorkloadSpec

if TYPE_CHECKING:
    from autosched.codegen import Source
    from autosched.runtime.gpu.kernel import GpuKernel
    from autosched.runtime.kernel import Kernel
    from autosched.schedule import State

CLAIMS_BATCH = 4  # unverified records that are verified together; the fastest of them is taken
CLAIMS_S = 60.0  # after this no further batch begins
MAX_REPORTED = 3  # skipped records that the warning names
REASON_LENGTH = 160  # characters


@contextmanager
def open_stored(db: Path | str | None) -> Iterator[Database | None]:
    """Open the records of `db` (default: the user's) for reading; None if there is no such file."""
    path = default_path() if db is None else named_path(db)
    if not path.exists() or (path.is_file() and path.stat().st_size == 0):
        yield None
        return
    with Database(path, create=False) as database:
        yield database


@dataclass
class SkippedRecords:
    """Records that are not used, by their ids, and why."""

    reasons: dict[int, str] = field(default_factory=dict)

    def add(self, record: Record, error: object) -> None:
        text = " ".join(str(error).split()) or type(error).__name__
        text = text.removeprefix(f"record {record.id} ")
        self.reasons[record.id] = text if len(text) <= REASON_LENGTH else f"{text[:REASON_LENGTH]}..."

    def warn(self, subject: str) -> None:
        """Warn of the records of `subject`, if there are any."""
        if self.reasons:
            named = islice(self.reasons.items(), MAX_REPORTED)
            reasons = "; ".join(f"record {number}: {reason}" for number, reason in named)
            n_more = len(self.reasons) - MAX_REPORTED
            more = f"; and {n_more} more" if n_more > 0 else ""
            warn_user(f"stored records of {subject} were passed over ({reasons}{more})")


def stored_state(record: Record, request: Request) -> State:
    """Return a record's schedule of the collapsed graph.

    Raises ScheduleError if the steps do not apply to the graph or the device, for example because `collapse` rewrites
    the workload differently in this version.
    """
    try:
        return request.replay(record.steps)
    except ScheduleError as error:
        raise ScheduleError(
            f"record {record.id} does not fit this version of autosched ({error}): tune its workload again"
        ) from error


def stored_source(record: Record, request: Request, target: Target | None = None) -> Source:
    """Generate a record's code from its steps, for the record's target or the given one."""
    from autosched.lower import lower

    state = stored_state(record, request)
    return request.source(lower(state), state.steps, {}, target)


# Single kernels


def stored_records(request: Request, db: Path | str | None, n: int | None) -> list[Record]:
    """Return the `n` best stored records of a kernel, all if None, best first."""
    with open_stored(db) as database:
        return [] if database is None else database.best(*task_key(request), n)


def best_kernel(request: Request, db: Path | str | None) -> Kernel | GpuKernel:
    """Load the best stored record that builds and is verified here, else the best by the analytic model.

    A RecordWarning names the records that were skipped. Raises NoValidCandidate if there is neither.
    """
    records, skipped = stored_records(request, db, None), SkippedRecords()
    verified = [record for record in records if record.verified]
    kernel = _first_loaded(request, _sources(request, verified, skipped), skipped)
    if kernel is None:
        claims = [record for record in records if not record.verified]
        kernel = _first_loaded(request, _verified(request, _sources(request, claims, skipped), db, skipped), skipped)
    if kernel is None:  # the time was too short for the rest
        for record in records:
            if record.id not in skipped.reasons:
                skipped.add(record, f"not verified within {CLAIMS_S:.0f} s")
    skipped.warn(request.problem.name)
    if kernel is None:
        task, _ = make_task(request)
        kernel = request.load(analytic_best(task, 1, task.source)[0][1])
    return kernel


def _sources(request: Request, records: Iterable[Record], skipped: SkippedRecords) -> Iterator[tuple[Record, Source]]:
    for record in records:
        try:
            source = stored_source(record, request)
        except Exception as error:  # a record of another version, or a forged one, must not affect others
            skipped.add(record, error)
        else:
            yield record, source


def _verified(
    request: Request, records: Iterator[tuple[Record, Source]], db: Path | str | None, skipped: SkippedRecords
) -> Iterator[tuple[Record, Source]]:
    """Yield the records that workers verify, in batches, the fastest of a batch first."""
    from autosched.measure import Failure

    end = time.monotonic() + CLAIMS_S
    while time.monotonic() < end and (batch := list(islice(records, CLAIMS_BATCH))):
        warn_of_claims([record for record, _ in batch])
        try:
            answers = verify_here(request, batch, db)
        except AutoschedError as error:  # of this machine, not of a record: no memory or no workers
            for record, _ in batch:
                skipped.add(record, error)
            return
        timed = []
        for (record, source), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Failure):
                skipped.add(record, f"{answer.kind}: {answer.message}")
            else:
                timed.append((answer.seconds, record, source))
        for _, record, source in sorted(timed, key=lambda row: row[0]):
            yield record, source


def _first_loaded(
    request: Request, records: Iterable[tuple[Record, Source]], skipped: SkippedRecords
) -> Kernel | GpuKernel | None:
    for record, source in records:
        try:
            return request.load(source)
        except Exception as error:  # the compiler rejects the code
            skipped.add(record, error)
    return None


# Kernels of networks


@contextmanager
def stored_schedules(db: Path | str | None) -> Iterator[StoredSchedules | None]:
    """Open the schedules of the database `db` (default: the user's); None if there is no such file.

    At the end a RecordWarning names the records that were skipped because they no longer fit.
    """
    with open_stored(db) as database:
        stored = None if database is None else StoredSchedules(database)
        yield stored
    if stored is not None:
        stored.skipped.warn("the network's kernels")


@dataclass
class StoredSchedules:
    """Schedules and fusion choices of a database, for the kernels of networks. `skipped`: records that do not fit."""

    database: Database
    skipped: SkippedRecords = field(default_factory=SkippedRecords)

    def __call__(self, kernel_specs: Sequence[KernelSpec]) -> tuple[KernelSpec, ...]:
        """Return the specifications, those without steps with the steps of their best record.

        A kernel whose weights are outside of the caches, and that has no record, takes the steps of the best record of
        the same kernel with cached weights.
        """
        exact = self._with_stored_steps(kernel_specs)
        cached = {r: replace(r, workload=r.workload.without_weight_residency()) for r in exact if not r.steps}
        cached = {r: other for r, other in cached.items() if other.workload != r.workload}
        stored = dict(zip(cached, self._with_stored_steps(list(cached.values())), strict=True))
        return tuple(replace(r, steps=stored[r].steps) if r in stored else r for r in exact)

    def is_fused(self, kernel_spec: KernelSpec) -> bool | None:
        """Return whether the latest comparison on this device kept the fused kernel; None without one."""
        if (workload := self._hash(kernel_spec)) is None:
            return None
        device = kernel_spec.device
        decision = self.database.fusion_decision(workload, device.target.fingerprint, device.threads)
        return None if decision is None else decision.is_fused

    def _with_stored_steps(self, kernel_specs: Sequence[KernelSpec]) -> tuple[KernelSpec, ...]:
        without_steps = [kernel_spec for kernel_spec in kernel_specs if not kernel_spec.steps]
        hashes = {kernel_spec: hash for kernel_spec in without_steps if (hash := self._hash(kernel_spec)) is not None}
        if not hashes:
            return tuple(kernel_specs)
        device = kernel_specs[0].device
        best = self.database.best_of(set(hashes.values()), device.target.fingerprint, device.threads)
        return tuple(self._with_steps(r, best.get(hashes.get(r, ""), ())) for r in kernel_specs)

    def transferable(self, kernel_specs: Sequence[KernelSpec]) -> list[tuple[WorkloadSpec, str]]:
        """Return the stored specs that differ from those of `kernel_specs` in sizes alone, with the steps of their best
        verified records."""
        if not kernel_specs:
            return []
        structures, device = (
            {kernel_spec.workload.sized.structure for kernel_spec in kernel_specs},
            kernel_specs[0].device,
        )
        hashes = {spec: hash for spec, hash in self._stored_specs[0].items() if spec.sized.structure in structures}
        best = self.database.best_of(set(hashes.values()), device.target.fingerprint, device.threads)
        verified = {name: records[0].steps for name, records in best.items() if records[0].verified}
        return [(spec, verified[hash]) for spec, hash in hashes.items() if hash in verified]

    def _with_steps(self, kernel_spec: KernelSpec, records: Sequence[Record]) -> KernelSpec:
        for record in records:
            if not record.verified:  # unverified records come last
                break
            with_steps = replace(kernel_spec, steps=record.steps)
            if find_object(with_steps) is not None:
                return with_steps
            try:
                if kernel_spec.request.problem.dag.content_hash != record.workload:
                    raise ScheduleError("what the network's operators compute has changed since")
                stored_state(record, kernel_spec.request)
            except AutoschedError as error:
                self.skipped.add(record, error)
            else:
                return with_steps
        return kernel_spec

    @cached_property
    def _stored_specs(self) -> tuple[dict[WorkloadSpec, str], set[str]]:
        """The content hashes of the stored specs of networks' kernels, and the inputs of these specs."""
        hashes, inputs = dict[WorkloadSpec, str](), set[str]()
        for workload in self.database.workloads():
            with suppress(StoreError, ValueError, TypeError, KeyError, RecursionError):
                spec = WorkloadSpec.from_record(workload.spec)
                inputs.add(spec.inputs)
                hashes[spec] = workload.hash
        return hashes, inputs

    def _hash(self, kernel_spec: KernelSpec) -> str | None:
        """Return the content hash of a specification's computation; None if no record can have it."""
        hashes, inputs = self._stored_specs
        if (hash := hashes.get(kernel_spec.workload)) is not None:
            return hash
        # The same computation may be stored with the spec of other operators.
        return kernel_spec.request.problem.dag.content_hash if kernel_spec.workload.inputs in inputs else None
