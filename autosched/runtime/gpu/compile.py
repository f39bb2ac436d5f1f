"""GPU compilation: from CUDA C or OpenCL C to loadable code, with each kernel's registers and memory.

CUDA C is compiled without a device: by NVRTC if its wheel is installed, else by nvcc. OpenCL C is compiled by the
device's own platform. Compiled code is kept on disk (`runtime/disk_cache.py`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from autosched.errors import DeviceError
from autosched.runtime import disk_cache
from autosched.runtime.processes import ProcessLost, run_within

if TYPE_CHECKING:
    from autosched.codegen.c.source import GpuSource

_FORMAT = "2"  # version of DeviceCode.to_bytes
_PREFIX = 8
_NVCC_S, _NVCC_VERSION_S = 300.0, 60.0  # deadlines in seconds
_MAX_MESSAGE = 2000  # the largest number of characters of a compiler's output in a message


class CompileError(Exception):
    """The compiler rejected a source; the message has its output."""


@dataclass(frozen=True)
class Resources:
    """The resources of one kernel: registers and bytes of a thread, shared bytes of a block.

    `stack_bytes`: arrays and spilled registers in local memory. `spill_bytes`: bytes that spills store and load.
    """

    kernel: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True)
class DeviceCode:
    """A compiled source. `code`: a cubin, or the binary of the OpenCL platform. `resources` is empty if unknown.
    `warnings`: the assembler's warnings that matrix products are slow.
    """

    code: bytes
    resources: tuple[Resources, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def spills(self) -> str | None:
        """A sentence that names the kernels that spill registers; None without spills."""
        spilling = [r for r in self.resources if r.spill_bytes]
        if not spilling:
            return None
        sentences = (
            f"{r.kernel} spills {r.spill_bytes} bytes a thread beyond {r.registers} registers" for r in spilling
        )
        return "; ".join(sentences)

    def to_bytes(self) -> bytes:
        """Return the serialised code: length of a JSON header, header, code."""
        header = {"resources": [asdict(r) for r in self.resources], "warnings": self.warnings}
        head = json.dumps(header).encode()
        return len(head).to_bytes(_PREFIX, "little") + head + self.code

    @classmethod
    def from_bytes(cls, data: bytes) -> DeviceCode:
        """The inverse of `to_bytes`. Raises ValueError."""
        end = _PREFIX + int.from_bytes(data[:_PREFIX], "little")
        try:
            header = json.loads(data[_PREFIX:end])
            resources = tuple(Resources(**entry) for entry in header["resources"])
            return cls(data[end:], resources, tuple(map(str, header["warnings"])))
        except (TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"not a compiled kernel: {error}") from None


@runtime_checkable
class Compiler(Protocol):
    """A compiler. `identity` names everything besides the text that its output depends on. A device may be its own
    compiler.
    """

    @property
    def identity(self) -> str: ...

    def compile(self, source: GpuSource) -> DeviceCode:
        """Raises CompileError."""
        ...


def compile_source(source: GpuSource, compiler: Compiler) -> DeviceCode:
    """Return the compiled `source`, from the cache if it was compiled before. Raises CompileError."""
    specific = "specific" if source.is_arch_specific else "general"
    key = disk_cache.key_of(_FORMAT, compiler.identity, specific, source.dialect, source.text)
    cached = disk_cache.read_code(key)
    if cached is not None:
        try:
            return DeviceCode.from_bytes(cached)
        except ValueError:
            pass
    binary = compiler.compile(source)
    disk_cache.write_code(key, binary.to_bytes())
    return binary


# CUDA C


@lru_cache(maxsize=8)
def cuda_compiler(arch: str) -> Compiler:
    """Return the compiler for `arch` ("sm_90"). Raises DeviceError if there is none."""
    version = nvrtc_version()
    if version is not None:
        return NvrtcCompiler(arch, version)
    nvcc = find_nvcc()
    if nvcc is not None:
        return NvccCompiler(arch, nvcc, _nvcc_version(nvcc))
    raise DeviceError(
        "CUDA C cannot be compiled here: neither NVRTC nor nvcc is installed; "
        'pip install "autosched[cuda]", or put nvcc on the PATH'
    )


def nvrtc_version() -> tuple[int, int] | None:
    """Return the version of the NVRTC library; None if it is not installed."""
    try:
        from cuda.bindings import nvrtc

        status, major, minor = nvrtc.nvrtcVersion()
    except Exception:  # the package, or the library that it looks for, is missing; each release has its own exception
        return None
    return (int(major), int(minor)) if int(status) == 0 else None


def find_nvcc() -> str | None:
    """Return the path of nvcc from the PATH, CUDA_HOME or CUDA_PATH, or its usual directory."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    directories = [None, *(str(Path(home) / "bin") for home in homes if home)]
    return next((nvcc for directory in directories if (nvcc := shutil.which("nvcc", path=directory))), None)


def _nvcc_version(nvcc: str) -> str:
    try:
        process = run_within(_NVCC_VERSION_S, [nvcc, "--version"])
    except ProcessLost as error:
        raise DeviceError(f"CUDA C cannot be compiled here: {nvcc} {error}") from error
    return " ".join(process.stdout.split())


@dataclass(frozen=True)
class NvrtcCompiler:
    """NVIDIA's compiler as a library: no files, no includes, 2 to 4 times as fast as nvcc."""

    arch: str
    version: tuple[int, int]

    @property
    def identity(self) -> str:
        return f"nvrtc {self.version} {self.arch}"

    def compile(self, source: GpuSource) -> DeviceCode:
        from cuda.bindings import nvrtc

        status, program = nvrtc.nvrtcCreateProgram(source.text.encode(), f"{source.name}.cu".encode(), 0, [], [])
        if int(status) != 0:
            raise CompileError(f"NVRTC rejects the program: {_nvrtc_text(nvrtc, status)}")
        try:
            options = [
                f"--gpu-architecture={_arch_of(source, self.arch)}".encode(),
                b"--std=c++17",
                b"--ptxas-options=-v",
            ]
            (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
            log = bytearray(nvrtc.nvrtcGetProgramLogSize(program)[1])
            nvrtc.nvrtcGetProgramLog(program, log)
            text = log.decode(errors="replace").rstrip("\0 \n")
            if int(status) != 0:
                raise CompileError(_shorten(text or _nvrtc_text(nvrtc, status)))
            code = bytearray(nvrtc.nvrtcGetCUBINSize(program)[1])
            nvrtc.nvrtcGetCUBIN(program, code)
        finally:
            nvrtc.nvrtcDestroyProgram(program)
        return DeviceCode(bytes(code), parse_resources(text), parse_warnings(text))


def _arch_of(source: GpuSource, arch: str) -> str:
    """Return sm_90a for sources with instructions of sm_90 alone."""
    return f"{arch}a" if source.is_arch_specific else arch


def _nvrtc_text(nvrtc: Any, status: Any) -> str:
    return str(nvrtc.nvrtcGetErrorString(status)[1], "ascii", "replace")


@dataclass(frozen=True)
class NvccCompiler:
    """NVIDIA's compiler as a process."""

    arch: str
    path: str
    version: str

    @property
    def identity(self) -> str:
        return f"nvcc {self.version} {self.arch}"

    def compile(self, source: GpuSource) -> DeviceCode:
        with tempfile.TemporaryDirectory() as directory:
            text, cubin = Path(directory) / "kernel.cu", Path(directory) / "kernel.cubin"
            text.write_text(source.text)
            arch = f"-arch={_arch_of(source, self.arch)}"
            command = [self.path, "-cubin", arch, "-std=c++17", "-Xptxas", "-v", "-o", str(cubin)]
            try:
                process = run_within(_NVCC_S, [*command, str(text)], cwd=directory)
            except ProcessLost as error:
                raise CompileError(f"{self.path} {error}") from error
            if process.returncode != 0:
                raise CompileError(
                    _shorten(process.stderr or process.stdout or f"nvcc exited with status {process.returncode}")
                )
            output = process.stderr + process.stdout
            return DeviceCode(cubin.read_bytes(), parse_resources(output), parse_warnings(output))


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_resources(text: str) -> tuple[Resources, ...]:
    """Parse the output of `ptxas -v`, which nvcc and NVRTC pass on. Kernels without a line on registers are left
    out.
    """
    resources: list[Resources] = []
    kernel, stack, spills = "", 0, 0
    for line in text.splitlines():
        if match := _ENTRY.search(line):
            kernel, stack, spills = match[1], 0, 0
        elif match := _FRAME.search(line):
            stack, spills = int(match[1]), int(match[2]) + int(match[3])
        elif kernel and (match := _USED.search(line)):
            shared = _SHARED.search(line)
            resources.append(Resources(kernel, int(match[1]), int(shared[1]) if shared else 0, stack, spills))
            kernel = ""
    return tuple(resources)


# C7508: setmaxnreg is ignored; C7510, C7514, ...: wgmma instructions are serialised; C7517, C7519: waits are
# inserted.
_SLOW = re.compile(r"\(C75\d\d\) (.*(?:Performance Loss|injected).*)")


def parse_warnings(text: str) -> tuple[str, ...]:
    """Return ptxas' warnings of warpgroup products that it serialises, each once."""
    return tuple(dict.fromkeys(match[1].strip() for match in _SLOW.finditer(text)))


def _shorten(text: str) -> str:
    return " ".join(text.split())[:_MAX_MESSAGE]
