"""What the end of a search takes: it is kept of the budget, so that the whole stays within it."""

from __future__ import annotations

from dataclasses import dataclass

from autosched.network_tuning.end_to_end import contest_s

COMPARED_SHARE, COMPARED_S = 0.1, 1.0  # of a budget, or seconds, for comparing the best of each task
LARGEST_SHARE = 0.5  # of a budget, for all of the end
BUILD_S = 0.2  # of a kernel, before one was built


@dataclass(frozen=True)
class Closing:
    """`load_s`: for making all networks anew but for their kernels. `calls_s`: of one call of each. `forms_s`: for
    timing the other forms of their parts."""

    load_s: float
    calls_s: tuple[float, ...]
    forms_s: float = 0.0

    def needed_s(self, kernels: int, build_s: float | None) -> float:
        """For building so many new kernels, each in `build_s`, timing the networks with them beside those that there
        were, and a last call of each."""
        builds = kernels * (BUILD_S if build_s is None else build_s)
        return self.load_s + self.forms_s + builds + sum(contest_s(call_s) + call_s for call_s in self.calls_s)

    def reserve_s(self, budget_s: float, kernels: int, build_s: float | None) -> float:
        """Seconds in which no round is begun, of the `budget_s` that there were when the search began."""
        compared = max(COMPARED_SHARE * budget_s, COMPARED_S)
        return min(self.needed_s(kernels, build_s) + compared, LARGEST_SHARE * budget_s)
