"""What the emitter hands to a device: one text, its launches in order, and the memory they need."""

from __future__ import annotations

from dataclasses import dataclass

from autosched.codegen.c.dialects import DIALECTS

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Launch:
    """One kernel call: blocks and threads as (x, y, z), the names of the buffers it takes, bytes of shared memory."""

    kernel: str
    grid: Triple
    block: Triple
    arguments: tuple[str, ...]
    shared_bytes: int


@dataclass(frozen=True)
class GpuSource:
    """`workspace` are (name, bytes) of buffers between launches; `text` is C in a `dialect`, one of DIALECTS."""

    name: str
    dialect: str
    text: str
    launches: tuple[Launch, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    workspace: tuple[tuple[str, int], ...]

    @property
    def suffix(self) -> str:
        """Of a file with the text."""
        return DIALECTS[self.dialect].suffix

    @property
    def threads(self) -> int:
        """Of the processor: one launches it."""
        return 1
