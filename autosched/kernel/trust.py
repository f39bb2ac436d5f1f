"""What may be loaded into the user's process: kernels that workers of this installation have verified.

A record is data, and its code is ours; but a wrong one, of a faulty version or a forged file, writes wherever its
schedule says. So a record that is a claim from elsewhere (`Record.verified`) is first built and run by a worker, under
guard zones and limits, against the reference. What comes of that is recorded: it is a record of ours from then on, or
a failure.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.errors import AutoschedWarning, RecordWarning, StoreError
from autosched.kernel.measuring import start_measurer
from autosched.kernel.request import Request

if TYPE_CHECKING:
    from autosched.codegen import Source
    from autosched.measure import Failure, Measurement
    from autosched.store import Record

LOST = "device_lost"  # the class of failure of a device that is not there any more


def verify_here(
    request: Request, records: Sequence[tuple[Record, Source]], db: Path | str | None, seed: int = 1
) -> list[Measurement | Failure]:
    """What workers here say of stored records with their code: built, checked on data derived from `seed`, and timed.

    Their answers are recorded; a RecordWarning tells where they could not be.
    """
    from autosched.measure import Job
    from autosched.measure.host import ScratchDirectory
    from autosched.tuner.time_bound import bound_of

    dag, device = request.problem.dag, request.device
    least_s = bound_of(dag, request.problem.dtype, device.target, device.threads).seconds(None)
    with ScratchDirectory() as scratch, start_measurer(request, scratch, seed) as measurer:
        jobs = [Job(str(record.id), source) for record, source in records]
        answers = list(measurer.measure(jobs, None, lambda seconds: seconds >= least_s))
    _write_down([(r, a) for (r, _), a in zip(records, answers, strict=True) if _says_something(a)], db)
    return answers


def _says_something(answer: Measurement | Failure) -> bool:
    """Of the record, not of the device, the clock or whoever killed the worker."""
    from autosched.measure.results import FAULTS, Failure

    return not isinstance(answer, Failure) or not (answer.kind == LOST or FAULTS[answer.kind].repeated)


def _write_down(found: Sequence[tuple[Record, Measurement | Failure]], db: Path | str | None) -> None:
    from autosched.measure import Failure
    from autosched.store import Database, Finding

    try:
        with Database(db, create=False) as database:
            for record, answer in found:
                if isinstance(answer, Failure):
                    database.append_to(record, Finding(None, (), answer.kind, answer.message))
                else:
                    database.append_to(record, Finding(answer.seconds, answer.samples))
    except StoreError as error:
        tell(f"what was found of {_numbers([r for r, _ in found])} is not recorded: {error}")


def tell_without_key() -> None:
    """Says so where this installation has no key and cannot make one: what it measures it will not know again."""
    from autosched.store.signing import installation_key

    if installation_key(make=True) is None:
        tell("what is measured now will count as unverified: there is no key to sign it with, see `autosched doctor`")


def tell_of_claims(records: Sequence[Record]) -> None:
    tell(f"{_numbers(records)}: not verified by this installation yet, which a worker does now, before any use")


def tell(sentence: str, category: type[AutoschedWarning] = RecordWarning) -> None:
    """Warns at the line of the user's that called the library."""
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("autosched."):
        frame, level = frame.f_back, level + 1
    warnings.warn(sentence, category, stacklevel=level)


def _numbers(records: Sequence[Record]) -> str:
    return f"record{'s' if len(records) > 1 else ''} {', '.join(str(record.id) for record in records)}"
