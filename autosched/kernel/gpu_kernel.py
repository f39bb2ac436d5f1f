"""GPU sources of a network's kernels: their encoding in the disk cache, their workspace, their compilation."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from autosched.codegen.c.source import GpuSource
from autosched.errors import DeviceError, UsageError
from autosched.measure.protocol import ProtocolError, checked
from autosched.runtime.gpu.compile import DeviceCode, compile_source
from autosched.runtime.gpu.devices import compiler_for, shared_device
from autosched.target import Target

if TYPE_CHECKING:
    from autosched.runtime.gpu.device import GpuDevice
    from autosched.runtime.gpu.kernel import LoadedCode


def encode_source(source: GpuSource) -> bytes:
    """Encode a source as JSON, the inverse of `decode_source`."""
    return json.dumps(asdict(source)).encode()


def decode_source(code: bytes) -> GpuSource:
    """Decode a source. Raises UsageError if `code` is not the encoding of one."""
    try:
        source: GpuSource = checked(json.loads(code), GpuSource, "a source")
    except (ValueError, RecursionError, ProtocolError) as error:
        raise UsageError(f"a kernel of the cache is not a source: {error}; remove the cache of kernels") from error
    return source


def load_source(code: bytes, target: Target, gpu: GpuDevice | None = None) -> LoadedCode:
    """Compile an encoded source and load it on a device, by default this machine's. Raises DeviceError."""
    from autosched.runtime.gpu.kernel import LoadedCode, device_code

    device, source = gpu or shared_device(target.kind), decode_source(code)
    return LoadedCode(device, device_code(device, source, target), source)


def workspace_layout(source: GpuSource, alignment: int) -> tuple[dict[str, int], int]:
    """Return the offsets in bytes, by name, of the buffers between a kernel's launches, and the bytes of all."""
    offsets, used = dict[str, int](), 0
    for name, nbytes in source.workspace:
        offsets[name] = used
        used += -(-nbytes // alignment) * alignment
    return offsets, used


def try_compile(source: GpuSource, target: Target) -> DeviceCode | None:
    """Compile a source with the compiler of this machine, or take its cached code; None if there is no compiler.

    Raises CompileError.
    """
    with suppress(DeviceError):
        return compile_source(source, compiler_for(target.kind, "" if target.gpu is None else target.gpu.arch))
    return None
