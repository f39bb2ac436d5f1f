"""Verification of records before their kernels are loaded into the user's process.

A record has no code, only a schedule; but a wrong schedule, of a faulty version or a forged file, may write out of
bounds. So a record that this installation has not verified (a claim, `Record.verified`) is first built and run by a
worker, with guard zones and limits, and compared with the reference. The result is recorded: the record is verified,
or a failure.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from autosched.errors import AutoschedWarning, RecordWarning, StoreError
from autosched.kernel.measuring import measure_sources
from autosched.kernel.request import Request

if TYPE_CHECKING:
    from autosched.codegen import Source
    from autosched.measure import Failure, Measurement
    from autosched.store import Record

LOST = "device_lost"  # fault class of a device that has disappeared


def verify_here(
    request: Request, records: Sequence[tuple[Record, Source]], db: Path | str | None, seed: int = 1
) -> list[Measurement | Failure]:
    """Build stored records in workers, verify them on data drawn by `seed`, and time them; return the results.

    The results are recorded, or a RecordWarning says that they cannot be.
    """
    answers = [*measure_sources(request, {str(record.id): source for record, source in records}, seed).values()]
    _record([(r, a) for (r, _), a in zip(records, answers, strict=True) if _is_about_record(a)], db)
    return answers


def _is_about_record(answer: Measurement | Failure) -> bool:
    """Return whether the result is the record's, not one of a lost device, a disturbed clock or a killed worker."""
    from autosched.measure.results import FAULTS, Failure

    return not isinstance(answer, Failure) or not (answer.kind == LOST or FAULTS[answer.kind].repeated)


def _record(results: Sequence[tuple[Record, Measurement | Failure]], db: Path | str | None) -> None:
    from autosched.measure import Failure
    from autosched.store import Database, Finding

    try:
        with Database(db, create=False) as database:
            for record, answer in results:
                if isinstance(answer, Failure):
                    database.append_to(record, Finding(None, (), answer.kind, answer.message))
                else:
                    database.append_to(record, Finding(answer.seconds, answer.samples))
    except StoreError as error:
        warn_user(f"the verification of {_numbers([r for r, _ in results])} is not recorded: {error}")


def warn_without_key() -> None:
    """Warn if this installation has no key and cannot make one: it cannot recognise its own records later."""
    from autosched.store.signing import installation_key

    if installation_key(make=True) is None:
        warn_user("new records will count as unverified: there is no key to sign them with, see `autosched doctor`")


def warn_of_claims(records: Sequence[Record]) -> None:
    """Warn that records are verified before use."""
    warn_user(f"{_numbers(records)}: not verified by this installation yet, which a worker does now, before any use")


_MESSAGES: ContextVar[list[str] | None] = ContextVar("messages", default=None)


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Yield a list to which `warn_user` adds its messages within this context."""
    messages: list[str] = []
    token = _MESSAGES.set(messages)
    try:
        yield messages
    finally:
        _MESSAGES.reset(token)


def warn_user(message: str, category: type[AutoschedWarning] = RecordWarning) -> None:
    """Warn at the line of the user's program that called the library."""
    if (messages := _MESSAGES.get()) is not None:
        messages.append(message)
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("autosched."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def _numbers(records: Sequence[Record]) -> str:
    return f"record{'s' if len(records) > 1 else ''} {', '.join(str(record.id) for record in records)}"
