"""Sources of a network's kernels for a GPU: as what the cache of kernels keeps, and what its compiler says of them."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict

from autosched.codegen.c.source import GpuSource
from autosched.errors import DeviceError, UsageError
from autosched.measure.protocol import ProtocolError, checked
from autosched.runtime.gpu.compile import DeviceCode, compile_source
from autosched.runtime.gpu.devices import compiler_for
from autosched.target import Target


def encoded(source: GpuSource) -> bytes:
    return json.dumps(asdict(source)).encode()


def decoded(code: bytes) -> GpuSource:
    """The inverse of `encoded`. Raises UsageError for what is no source."""
    try:
        found: GpuSource = checked(json.loads(code), GpuSource, "a source")
    except (ValueError, RecursionError, ProtocolError) as error:
        raise UsageError(f"a kernel of the cache is not a source: {error}; remove the cache of kernels") from error
    return found


def workspace_of(source: GpuSource, alignment: int) -> tuple[dict[str, int], int]:
    """Where the buffers between a kernel's launches begin in one workspace, by name, and the bytes of that."""
    offsets, used = dict[str, int](), 0
    for name, nbytes in source.workspace:
        offsets[name] = used
        used += -(-nbytes // alignment) * alignment
    return offsets, used


def try_compile(source: GpuSource, target: Target) -> DeviceCode | None:
    """What the compiler of this machine, which keeps what it makes, has made; None where there is none. Raises
    CompileError."""
    with suppress(DeviceError):
        return compile_source(source, compiler_for(target.kind, "" if target.gpu is None else target.gpu.arch))
    return None
