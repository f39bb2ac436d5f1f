"""From when to when the values of a network are needed, and which of them share their bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class KernelRun:
    """One run of a kernel: the values that it reads, and those that it writes.

    A workspace of the kernel is a value that it writes and nothing reads. `overwrites` are pairs (written, read): the
    kernel is right, too, where both are the same bytes, because it reads each element last when it writes it.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    overwrites: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Tenant:
    """Bytes of the arena that are needed from step `first` to step `last`, both included.

    `beside` names the tenants that are read in a step that writes this one: they had better not lie at the same place
    of a page.
    """

    name: str
    nbytes: int
    first: int
    last: int
    beside: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.nbytes < 1 or self.last < self.first:
            raise ValueError(f"no tenant: {self.nbytes} bytes of {self.name} from step {self.first} to {self.last}")


@dataclass(frozen=True)
class Liveness:
    """`tenants` of the arena, and the tenant in whose bytes each value lies, views too."""

    tenants: tuple[Tenant, ...]
    homes: Mapping[str, str]

    def offsets(self, tenants: Mapping[str, int]) -> dict[str, int]:
        """Where each value lies, when it is known where the tenants do."""
        return {name: tenants[home] for name, home in self.homes.items()}


def live(
    steps: Sequence[KernelRun],
    sizes: Mapping[str, int],
    kept: Iterable[str] = (),
    aliases: Mapping[str, str] | None = None,
) -> Liveness:
    """The tenants of an arena for `steps` in this order.

    `sizes` are bytes of the values that lie in the arena; other values lie elsewhere, as inputs and constants do. What
    no step writes is there from the start; what is `kept` stays after the last step. `aliases` names for a view the
    value whose bytes it is. Where a step may overwrite a value that is not needed any more, it does.
    """
    views = dict(aliases or {})
    homes = {name: base for name in (*sizes, *views) if (base := base_of(name, views)) in sizes}
    spans = _spans(steps, homes, kept)
    for n, step in enumerate(steps):
        for written, read in step.overwrites:
            if {written, read} <= homes.keys() and _dies_for(homes[read], read, n, step, homes, spans):
                new, old = homes[written], homes[read]
                parts = {sizes[new], sizes[old], sizes.get(written, sizes[new]), sizes.get(read, sizes[old])}
                if spans[new][0] == n and len(parts) == 1:
                    homes = {name: old if home == new else home for name, home in homes.items()}
                    spans[old] = (spans[old][0], spans.pop(new)[1])
    beside = _beside(steps, homes)
    tenants = [Tenant(home, sizes[home], *span, beside[home]) for home, span in spans.items()]
    return Liveness(tuple(sorted(tenants, key=lambda t: t.first)), homes)


def base_of(name: str, aliases: Mapping[str, str]) -> str:
    """The value whose bytes are those of `name`, which may be a view of a view."""
    for _ in aliases:
        if name not in aliases:
            break
        name = aliases[name]
    if name in aliases:
        raise ValueError(f"{name} is a view of itself")
    return name


def _spans(steps: Sequence[KernelRun], homes: Mapping[str, str], kept: Iterable[str]) -> dict[str, tuple[int, int]]:
    """The first and the last step of each home."""
    written: dict[str, int] = {}
    used: dict[str, int] = {}
    for n, step in enumerate(steps):
        for name in step.writes:
            written.setdefault(homes.get(name, ""), n)
        for name in (*step.reads, *step.writes):
            used[homes.get(name, "")] = n
    used |= {homes[name]: len(steps) for name in kept if name in homes}
    return {home: (written.get(home, 0), used.get(home, 0)) for home in dict.fromkeys(homes.values())}


def _dies_for(
    home: str, read: str, n: int, step: KernelRun, homes: Mapping[str, str], spans: Mapping[str, tuple[int, int]]
) -> bool:
    """Whether step `n` is the last that needs `home`, and touches it as `read` alone."""
    touched = {name for name in (*step.reads, *step.writes) if homes.get(name) == home}
    return touched == {read} and spans[home][1] == n


def _beside(steps: Sequence[KernelRun], homes: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The other homes that are read where one is written."""
    found: dict[str, dict[str, None]] = {home: {} for home in homes.values()}
    for step in steps:
        read = [homes[name] for name in step.reads if name in homes]
        for name in step.writes:
            if name in homes:
                found[homes[name]] |= {home: None for home in read if home != homes[name]}
    return {home: tuple(names) for home, names in found.items()}
