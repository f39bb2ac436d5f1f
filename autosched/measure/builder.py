"""Builder of kernels for processors: it compiles LLVM IR to an object file. Only workers import this."""

from __future__ import annotations

from pathlib import Path

from autosched.codegen.source import KernelSource
from autosched.measure.protocol import Build, Built, Failed, Message, ProtocolError, Setup, source_as
from autosched.runtime.jit import compile_object


class Builder:
    """State of a builder. LLVM's target machine is created at the start, so that the first candidate does not wait for
    it.
    """

    def __init__(self, setup: Setup) -> None:
        self._target = setup.target
        compile_object("", self._target)

    def handle(self, message: Message) -> Message:
        """Compile into a temporary file and rename it, so that the final file is complete whenever it exists."""
        if not isinstance(message, Build):
            raise ProtocolError(f"a builder got {type(message).__name__}")
        try:
            code = compile_object(source_as(KernelSource, message).ir, self._target)
        except MemoryError:
            return Failed(message.id, "out_of_memory", "the compiler needs more memory than the worker may have")
        except (RuntimeError, ValueError) as error:
            return Failed(message.id, "build_error", " ".join(str(error).split())[:2000] or type(error).__name__)
        path = Path(message.object_path)
        part = path.with_suffix(".part")
        part.write_bytes(code)
        part.rename(path)
        return Built(message.id, ())
