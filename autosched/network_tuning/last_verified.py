"""Last verified program: the program that tuning a network ends with.

Candidates were checked one by one; the network that is built of them is compared with the network's reference again. If
a program fails, a warning names the kernel and the error, the kernel's record becomes a failure, and the program before
it is verified, down to the one that tuning began with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autosched.kernel.trust import warn_user
from autosched.network_tuning.end_to_end import LatencyComparison
from autosched.network_tuning.fusion_comparison import FusionTimes
from autosched.planning.extract_tasks import NetworkTask
from autosched.verification.sample_inputs import InputSet
from autosched.verification.verify import Arrays, Verification, verify_outputs


@dataclass(frozen=True)
class VerifiedProgram:
    """A program with its end-to-end comparison, the times of its fusion choices, and its verification."""

    comparison: LatencyComparison
    parts: tuple[FusionTimes, ...]
    verification: Verification


def last_verified(
    name: str,
    programs: Sequence[tuple[LatencyComparison, tuple[FusionTimes, ...]]],
    inputs: InputSet,
    references: tuple[Arrays, Arrays],
    record_wrong: Callable[[NetworkTask, str], None],
) -> VerifiedProgram:
    """Return the last of the programs of the network `name` that passes verification; the first one if none does.

    `programs`: in the order in which they were built, equal ones adjacent. `references`: the network's outputs for
    `inputs`. `record_wrong` is called with the task of each wrong kernel and the reason.
    """
    failed: VerifiedProgram | None = None
    for comparison, parts in reversed(programs):
        if failed is not None and comparison.model is failed.comparison.model:
            continue
        if failed is not None:
            reason = _reason(failed, record_wrong)
            warn_user(f"a program that was tuned for {name} is not used, but the one before it: {reason}")
        program = VerifiedProgram(comparison, parts, verify_outputs(comparison.model, inputs, references))
        if program.verification.passed:
            return program
        failed = program
    assert failed is not None, "the program that tuning began with is among the programs"
    warn_user(f"{name} is not verified, and was not before the search either: {_reason(failed, record_wrong)}")
    return failed


def _reason(failed: VerifiedProgram, record_wrong: Callable[[NetworkTask, str], None]) -> str:
    """Record the wrong kernel, and return the summary of the failed verification."""
    reason, wrong = failed.verification.summary(), failed.verification.first_wrong
    for task in failed.comparison.model.tasks:
        if wrong is not None and wrong.step in task.steps:
            record_wrong(task, reason)
    return reason
