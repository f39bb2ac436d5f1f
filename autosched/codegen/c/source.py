"""What the emitter hands to a device: one text, its launches in order, and the memory they need."""

from __future__ import annotations

from dataclasses import dataclass

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
    """`workspace` are (name, bytes) of buffers between launches; `text` is CUDA C or OpenCL C by `dialect`."""

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
        return {"cuda": ".cu", "opencl": ".cl"}[self.dialect]
