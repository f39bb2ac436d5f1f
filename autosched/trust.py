"""What may be loaded into the user's process: kernels that workers of this installation have verified.

A record is data, and its code is ours; but a wrong one, of a faulty version or a forged file, writes wherever its
schedule says. So a record that is a claim from elsewhere (`Record.verified`) is first built and run by a worker, under
guard zones and limits, against the reference. What comes of that is recorded: it is a record of ours from then on, or
a failure.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from autosched.errors import AutoschedError, RecordWarning, ScheduleError, StoreError
from autosched.kernels import Request

if TYPE_CHECKING:
    from autosched.codegen import GpuSource, KernelSource
    from autosched.ir.stmt import Func
    from autosched.measure import Failure, Measurement
    from autosched.runtime.gpu.kernel import GpuKernel
    from autosched.runtime.kernel import Kernel
    from autosched.store import Record
    from autosched.te import ComputeDAG

    Source: TypeAlias = KernelSource | GpuSource
    Passed: TypeAlias = dict[int, str]  # why records were passed over, by their numbers

CLAIMS_AT_ONCE = 4  # are verified together; the fastest of them is taken
CLAIMS_S = 60.0  # no more are begun after this
REPORTED = 3  # records that were passed over are named
REASON_LENGTH = 160
NOT_HERE = "device_lost"  # the class of failure that says nothing of the record


def stored_nest(record: Record, dag: ComputeDAG) -> Func:
    """The loop nest of a record's schedule of the (collapsed) `dag`.

    Raises ScheduleError where the steps do not fit: `collapse` may have come to see more in the workload since.
    """
    from autosched.lower import lower
    from autosched.schedule import replay

    try:
        state = replay(dag, record.steps)
    except ScheduleError as error:
        raise ScheduleError(
            f"record {record.id} does not fit this version of autosched ({error}): tune its workload again"
        ) from error
    return lower(state)


def stored_source(record: Record, request: Request) -> Source:
    """A record's code, generated anew from its steps."""
    return request.source(stored_nest(record, request.dag), {}, record.steps)


def verify_here(
    request: Request, records: Sequence[tuple[Record, Source]], db: Path | str | None, seed: int = 1
) -> list[Measurement | Failure]:
    """What workers here say of stored records with their code: built, checked on data derived from `seed`, and timed.

    Their answers are recorded; a RecordWarning tells where they could not be.
    """
    from autosched.measure import Failure, Job, Measurer, make_problem
    from autosched.measure.host import ScratchDirectory
    from autosched.tune.room import check_room

    dag, device = request.problem.dag, request.device
    with ScratchDirectory() as scratch:
        check_room(dag, scratch)
        data = make_problem(dag, scratch, seed)
        with Measurer(data, device.target, device.threads) as measurer:
            answers = list(measurer.measure([Job(str(record.id), source) for record, source in records]))
    found = [(r, a) for (r, _), a in zip(records, answers, strict=True)]
    _write_down([(r, a) for r, a in found if not (isinstance(a, Failure) and a.kind == NOT_HERE)], db)
    return answers


def _write_down(found: Sequence[tuple[Record, Measurement | Failure]], db: Path | str | None) -> None:
    from autosched.measure import Failure
    from autosched.store import Database

    try:
        with Database(db, create=False) as database:
            for record, answer in found:
                if isinstance(answer, Failure):
                    database.append_to(record, None, (), answer.kind, answer.message)
                else:
                    database.append_to(record, answer.seconds, answer.samples, None)
    except StoreError as error:
        tell(f"what was found of {_numbers([r for r, _ in found])} is not recorded: {error}")


def stored_kernel(request: Request, records: Sequence[Record], db: Path | str | None) -> Kernel | GpuKernel | None:
    """The best of `records` (best first) that can be had, verified here before it is loaded; None where there is none.

    Whatever is wrong with one, the next is tried; a RecordWarning says what was passed over.
    """
    passed: Passed = {}
    ours = [r for r in records if r.verified]
    kernel = _first_loaded(request, _sources(request, ours, passed), passed)
    if kernel is None:
        claims = [r for r in records if not r.verified]
        kernel = _first_loaded(request, _verified(request, _sources(request, claims, passed), db, passed), passed)
    if passed:
        reasons = "; ".join(f"record {number}: {reason}" for number, reason in islice(passed.items(), REPORTED))
        more = f"; and {len(passed) - REPORTED} more" if len(passed) > REPORTED else ""
        tell(f"stored records of {request.problem.name} were passed over ({reasons}{more})")
    return kernel


def tell_without_key() -> None:
    """Says so where this installation has no key and cannot make one: what it measures it will not know again."""
    from autosched.store.signing import installation_key

    if installation_key(make=True) is None:
        tell("what is measured now will count as unverified: there is no key to sign it with, see `autosched doctor`")


def tell_of_claims(records: Sequence[Record]) -> None:
    tell(f"{_numbers(records)}: not verified by this installation yet, which a worker does now, before any use")


def tell(sentence: str) -> None:
    """Warns at the line of the user's that called the library."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("autosched."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, RecordWarning, stacklevel=level)


def _numbers(records: Sequence[Record]) -> str:
    return f"record{'s' if len(records) > 1 else ''} {', '.join(str(record.id) for record in records)}"


def _sources(request: Request, records: Iterable[Record], passed: Passed) -> Iterator[tuple[Record, Source]]:
    for record in records:
        try:
            source = stored_source(record, request)
        except Exception as error:  # of another version, or forged: it costs itself only
            passed[record.id] = _reason(error).removeprefix(f"record {record.id} ")
        else:
            yield record, source


def _verified(
    request: Request, records: Iterator[tuple[Record, Source]], db: Path | str | None, passed: Passed
) -> Iterator[tuple[Record, Source]]:
    """Those that workers here verify, the fastest of a few at a time first."""
    from autosched.measure import Failure

    end = time.monotonic() + CLAIMS_S
    while time.monotonic() < end and (batch := list(islice(records, CLAIMS_AT_ONCE))):
        tell_of_claims([record for record, _ in batch])
        try:
            answers = verify_here(request, batch, db)
        except AutoschedError as error:  # of this machine: no room, no workers
            passed.update((record.id, _reason(error)) for record, _ in batch)
            return
        timed = []
        for (record, source), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Failure):
                passed[record.id] = _reason(f"{answer.kind}: {answer.message}")
            else:
                timed.append((answer.seconds, record, source))
        for _, record, source in sorted(timed, key=lambda row: row[0]):
            yield record, source


def _first_loaded(
    request: Request, records: Iterable[tuple[Record, Source]], passed: Passed
) -> Kernel | GpuKernel | None:
    for record, source in records:
        try:
            return request.load(source)
        except Exception as error:  # the compiler refuses it
            passed[record.id] = _reason(error)
    return None


def _reason(error: object) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= REASON_LENGTH else f"{text[:REASON_LENGTH]}..."
