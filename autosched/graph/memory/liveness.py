"""Liveness of the values of a network: the live range of each buffer, and which values are in the same buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class KernelRun:
    """One run of a kernel: the values that it reads, and those that it writes.

    A workspace of the kernel is a value that it writes and nothing reads. `overwrites`: pairs (written, read) that may
    be the same bytes, because the kernel reads no element after it has written that element.
    """

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    overwrites: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class LiveBuffer:
    """A buffer of the arena with its live range, the steps `first` to `last`, both included.

    `read_with`: the buffers that are read in a step that writes this one. Their offsets should differ modulo a page,
    because of 4K aliasing.
    """

    name: str
    nbytes: int
    first: int
    last: int
    read_with: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.nbytes < 1 or self.last < self.first:
            raise ValueError(f"not a buffer: {self.nbytes} bytes of {self.name} from step {self.first} to {self.last}")


@dataclass(frozen=True)
class Liveness:
    """The buffers of the arena, and the name of the buffer of each value, views included."""

    buffers: tuple[LiveBuffer, ...]
    buffer_of: Mapping[str, str]

    def offsets(self, buffers: Mapping[str, int]) -> dict[str, int]:
        """Return the offset of each value, given those of the buffers."""
        return {name: buffers[buffer] for name, buffer in self.buffer_of.items()}


def analyse_liveness(
    steps: Sequence[KernelRun],
    sizes: Mapping[str, int],
    kept: Iterable[str] = (),
    aliases: Mapping[str, str] | None = None,
) -> Liveness:
    """Return the buffers of an arena for `steps` in this order.

    `sizes`: bytes of the values in the arena, without inputs and constants. A value that no step writes is live from
    the start, one of `kept` until after the last step. `aliases` maps a view to the value that it is a view of. A step
    that may overwrite an operand of the same size does so if that operand is not read later.
    """
    views = dict(aliases or {})
    buffer_of = {name: base for name in (*sizes, *views) if (base := base_of(name, views)) in sizes}
    spans = _spans(steps, buffer_of, kept)
    for n, step in enumerate(steps):
        for written, read in step.overwrites:
            if {written, read} <= buffer_of.keys() and _dies_for(buffer_of[read], read, n, step, buffer_of, spans):
                new, old = buffer_of[written], buffer_of[read]
                parts = {sizes[new], sizes[old], sizes.get(written, sizes[new]), sizes.get(read, sizes[old])}
                if spans[new][0] == n and len(parts) == 1:
                    buffer_of = {name: old if buffer == new else buffer for name, buffer in buffer_of.items()}
                    spans[old] = (spans[old][0], spans.pop(new)[1])
    read_with = _read_with(steps, buffer_of)
    buffers = [LiveBuffer(buffer, sizes[buffer], *span, read_with[buffer]) for buffer, span in spans.items()]
    return Liveness(tuple(sorted(buffers, key=lambda t: t.first)), buffer_of)


def base_of(name: str, aliases: Mapping[str, str]) -> str:
    """Return the value that `name` is a view of, directly or by other views, or `name` itself."""
    for _ in aliases:
        if name not in aliases:
            break
        name = aliases[name]
    if name in aliases:
        raise ValueError(f"{name} is a view of itself")
    return name


def _spans(steps: Sequence[KernelRun], buffer_of: Mapping[str, str], kept: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return the first and the last step of each buffer."""
    written: dict[str, int] = {}
    used: dict[str, int] = {}
    for n, step in enumerate(steps):
        for name in step.writes:
            written.setdefault(buffer_of.get(name, ""), n)
        for name in (*step.reads, *step.writes):
            used[buffer_of.get(name, "")] = n
    used |= {buffer_of[name]: len(steps) for name in kept if name in buffer_of}
    return {buffer: (written.get(buffer, 0), used.get(buffer, 0)) for buffer in dict.fromkeys(buffer_of.values())}


def _dies_for(
    buffer: str, read: str, n: int, step: KernelRun, buffer_of: Mapping[str, str], spans: Mapping[str, tuple[int, int]]
) -> bool:
    """Whether step `n` is the last that uses a buffer, and uses it as the value `read` alone."""
    touched = {name for name in (*step.reads, *step.writes) if buffer_of.get(name) == buffer}
    return touched == {read} and spans[buffer][1] == n


def _read_with(steps: Sequence[KernelRun], buffer_of: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return, for each buffer, the others that are read in steps that write it."""
    others: dict[str, dict[str, None]] = {buffer: {} for buffer in buffer_of.values()}
    for step in steps:
        read = [buffer_of[name] for name in step.reads if name in buffer_of]
        for name in step.writes:
            if name in buffer_of:
                others[buffer_of[name]] |= {buffer: None for buffer in read if buffer != buffer_of[name]}
    return {buffer: tuple(names) for buffer, names in others.items()}
