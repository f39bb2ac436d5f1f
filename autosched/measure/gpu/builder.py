"""Builder of kernels for GPUs: it compiles a source into a file that runners load. Only workers import this."""

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
    """State of a builder: the compiler. Raises DeviceError if there is none."""

    def __init__(self, setup: Setup) -> None:
        gpu = setup.target.gpu
        self._compiler = compiler_for(setup.target.kind, gpu.arch if gpu else "")
        disk_cache.shrink()

    def handle(self, message: Message) -> Message:
        """Compile into a temporary file and rename it, so that the final file is complete whenever it exists.

        A kernel that spills registers, or whose matrix products the assembler serialises, is a failure: it would be
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
