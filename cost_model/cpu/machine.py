"""Machine parameters of the CPU cost model, and its constants that do not depend on the core."""

from __future__ import annotations

from dataclasses import dataclass

from autosched.ir.stmt import Buffer
from autosched.target import Microarchitecture, Target, microarchitecture
from autosched.target.far_weights import LAST_CACHE, MEMORY, NEAR
from cost_model.analysis.access import Geometry

OVERLAP_LOSS = 0.15  # share of the hidden costs (all but the largest) that shows
CACHE_SHARE = 0.8  # of a cache that a working set may fill
CLOCK_HZ = 3.0e9  # nominal: cycles become seconds by it, whatever the machine's clock is
LEVELS_BEYOND = {NEAR: 0, LAST_CACHE: 2, MEMORY: 3}
NEST_S = 1.0e-7  # of beginning and ending a nest with tasks
FORK_JOIN_S = 6.0e-7  # ... on several threads: until another thread has a task, and until it is known to have none


@dataclass(frozen=True)
class Machine:
    """The facts about a target that the cost model reads; `weights_in`: where the buffers `weights` lie when the kernel
    is called (`target.far_weights`)."""

    target: Target
    threads: int
    uarch: Microarchitecture
    weights: frozenset[str] = frozenset()
    weights_in: str = NEAR

    def lanes(self, itemsize: int) -> int:
        return max(1, self.target.vector_bytes // itemsize)

    @property
    def geometry(self) -> Geometry:
        """The caches as the analysis of accesses sees them."""
        larger, uarch = self.target.l2_bytes / self.target.l1_bytes, self.uarch
        counts_pages = uarch.page_walk > 0.0
        return Geometry(
            self.target.line_bytes, larger, uarch.l1_ways, uarch.page_bytes, uarch.conflict_spare, counts_pages
        )

    @property
    def registers(self) -> int:
        return self.target.n_vector_registers

    @property
    def accumulator_limit(self) -> int:
        """Registers that may hold accumulators: 28 of 32, 14 of 16; the rest are for operands."""
        return self.registers - max(2, self.registers // 8)

    @property
    def cache_bytes(self) -> tuple[float, float, float]:
        """Usable bytes of L1, L2 and a thread's share of L3."""
        t = self.target
        l3 = max(t.l3_bytes / self.threads, t.l2_bytes)
        return CACHE_SHARE * t.l1_bytes, CACHE_SHARE * t.l2_bytes, CACHE_SHARE * l3

    def comes_from(self, buffer: Buffer) -> int:
        """How many levels of cache a buffer is beyond at each call, however few bytes it has: 0 where it stays in one
        that holds all that the kernel touches."""
        return LEVELS_BEYOND[self.weights_in] if buffer.name in self.weights else 0


def machine(target: Target, threads: int) -> Machine:
    """The cost model's view of `target` with `threads` threads."""
    return Machine(target, max(1, threads), microarchitecture(target.mcpu))
