"""Where the values of a network lie: one arena, in which memory is used again.

Tenant(name, nbytes, first, last)     alive from step `first` to step `last`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True)
class Tenant:
    name: str
    nbytes: int
    first: int
    last: int


@dataclass(frozen=True)
class Plan:
    """`bound_bytes`: the most that is alive at a step, which no plan can be below."""

    offsets: Mapping[str, int]
    nbytes: int
    bound_bytes: int


def plan(tenants: Sequence[Tenant]) -> Plan:
    """Offsets by decreasing size, each into the lowest gap among those alive at the same time."""
    placed: list[tuple[int, int, Tenant]] = []
    for tenant in sorted(tenants, key=lambda t: (-t.nbytes, t.first)):
        size, at = _aligned(tenant.nbytes), 0
        for start, end, other in sorted(placed, key=lambda p: p[:2]):
            if other.last < tenant.first or tenant.last < other.first:
                continue
            if start - at >= size:
                break
            at = max(at, end)
        placed.append((at, at + size, tenant))
    steps = range(max((t.last for t in tenants), default=-1) + 1)
    bound = max((sum(_aligned(t.nbytes) for t in tenants if t.first <= n <= t.last) for n in steps), default=0)
    return Plan({t.name: at for at, _, t in placed}, max((end for _, end, _ in placed), default=0), bound)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
