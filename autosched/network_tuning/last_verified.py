"""The program that a search for a network ends with: the last one that passes verification.

A search has measured its candidates one by one; what it puts together is compared with the network's reference once
more. Of a program that fails, a warning names the kernel and the figures, its record becomes a failure, and the program
before it is examined in the same way; the first of all is the one that the search began with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autosched.kernel.trust import tell
from autosched.network_tuning.end_to_end import Verdict
from autosched.planning.extract_tasks import NetworkTask
from autosched.planning.fusion_records import FusionTimes
from autosched.verification.sample_inputs import InputSet
from autosched.verification.verify import Arrays, Verification, verify_outputs


@dataclass(frozen=True)
class CheckedVerdict:
    """A program with the times of its open parts' forms, and what verification says of it."""

    verdict: Verdict
    parts: tuple[FusionTimes, ...]
    verification: Verification


def last_that_passes(
    name: str,
    verdicts: Sequence[tuple[Verdict, tuple[FusionTimes, ...]]],
    given: InputSet,
    known: tuple[Arrays, Arrays],
    refute: Callable[[NetworkTask, str], None],
) -> CheckedVerdict:
    """Return the last of the programs of the network `name` that passes, else the first, as what it is.

    `verdicts`: the programs in the order in which they were made, equal ones in a row. `known`: the network's
    references for the inputs `given`. `refute` is told of the task of each wrong kernel, and why.
    """
    tried: CheckedVerdict | None = None
    for verdict, parts in reversed(verdicts):
        if tried is not None and verdict.model is tried.verdict.model:
            continue
        if tried is not None:
            tell(f"a program that was tuned for {name} is not used, but the one before it: {_reason(tried, refute)}")
        tried = CheckedVerdict(verdict, parts, verify_outputs(verdict.model, given, known))
        if tried.verification.passed:
            return tried
    assert tried is not None, "the program that a search began with is one"
    tell(f"{name} is not verified, and was not before the search either: {_reason(tried, refute)}")
    return tried


def _reason(tried: CheckedVerdict, refute: Callable[[NetworkTask, str], None]) -> str:
    """The summary of a verification that failed, of which the wrong kernel is refuted."""
    reason, wrong = tried.verification.summary(), tried.verification.first_wrong
    for task in tried.verdict.model.tasks:
        if wrong is not None and wrong.step in task.steps:
            refute(task, reason)
    return reason
