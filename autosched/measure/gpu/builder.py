"""What a building worker of a device does: compile a source and write what a runner loads. Only workers import this."""

from __future__ import annotations

from pathlib import Path

from autosched.codegen.c.source import GpuSource
from autosched.errors import DeviceError
from autosched.measure.protocol import Build, Built, Failed, Message, ProtocolError, Setup, source_as
from autosched.runtime import disk_cache
from autosched.runtime.gpu.compile import CompileError, compile_source
from autosched.runtime.gpu.device import DeviceFault
from autosched.runtime.gpu.devices import compiler_for


class GpuBuilder:
    """State of a building worker: the compiler. Raises DeviceError when there is none."""

    def __init__(self, setup: Setup) -> None:
        gpu = setup.target.gpu
        self._compiler = compiler_for(setup.target.kind, gpu.arch if gpu else "")
        disk_cache.shrink()

    def handle(self, message: Message) -> Message:
        """Compiles into a file beside the final one and renames it, so that a file that is there is whole.

        A kernel that spills registers is a failure, and one whose products of matrices wait for each other: it would be
        slow, and is not worth the time on the device.
        """
        if not isinstance(message, Build):
            raise ProtocolError(f"a builder of a device got {type(message).__name__}")
        try:
            binary = compile_source(source_as(GpuSource, message), self._compiler)
        except CompileError as error:
            return Failed(message.id, "build_error", str(error) or "the compiler refused the source")
        except DeviceFault as fault:
            return Failed(message.id, fault.kind, str(fault))
        except DeviceError as error:
            return Failed(message.id, "build_error", str(error))
        if binary.spills is not None:
            return Failed(message.id, "spills", binary.spills)
        if binary.warnings:
            return Failed(message.id, "serialised", "; ".join(binary.warnings))
        path = Path(message.object_path)
        part = path.with_suffix(".part")
        part.write_bytes(binary.to_bytes())
        part.rename(path)
        return Built(message.id, binary.resources)
