"""Reserved finalisation time: the seconds of a budget that are kept for what follows the search.

After the search each network is built with its new kernels, compared with the earlier one and called once.
"""

from __future__ import annotations

from dataclasses import dataclass

from autosched.network_tuning.end_to_end import comparison_s

COMPARISON_SHARE, COMPARISON_S = 0.1, 1.0  # of the budget, or seconds at least: final comparisons of the tasks
MAX_RESERVED_SHARE = 0.5  # of the budget
BUILD_S = 0.2  # of a kernel, before one was built


@dataclass(frozen=True)
class FinalisationTime:
    """`load_s`: seconds that rebuilding all networks takes, without new kernels. `calls_s`: seconds of one call of
    each network. `fusion_s`: seconds of the comparisons of fusion choices."""

    load_s: float
    calls_s: tuple[float, ...]
    fusion_s: float = 0.0

    def needed_s(self, n_kernels: int, build_s: float | None) -> float:
        """Return the seconds for building `n_kernels` new kernels, `build_s` each, for the end-to-end comparisons and a
        last call of each network."""
        builds_s = n_kernels * (BUILD_S if build_s is None else build_s)
        return self.load_s + self.fusion_s + builds_s + sum(comparison_s(call_s) + call_s for call_s in self.calls_s)

    def reserve_s(self, budget_s: float, n_kernels: int, build_s: float | None) -> float:
        """Return the seconds at the end of the search's `budget_s` in which no round begins."""
        comparisons_s = max(COMPARISON_SHARE * budget_s, COMPARISON_S)
        return min(self.needed_s(n_kernels, build_s) + comparisons_s, MAX_RESERVED_SHARE * budget_s)
