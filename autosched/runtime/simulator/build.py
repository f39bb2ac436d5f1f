"""Build of the simulator: the runtime as one shared object for a version of its sources, each kernel as another one."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from autosched.errors import DeviceError
from autosched.runtime.disk_cache import key_of, read_code, write_code
from autosched.runtime.gpu.compile import CompileError
from autosched.target import usable_cores

NATIVE = Path(__file__).with_name("native")
COMPILER = "AUTOSCHED_CXX"  # environment variable with the compiler; default: g++
_COMMON = ("-std=c++17", "-fPIC", "-w")
# Options of kernels: no loop transformations; memory that no thread has written is not zero.
_KERNEL = (
    "-O1", "-shared", "-fno-exceptions", "-fno-rtti", "-fno-strict-aliasing", "-fwrapv",
    "-ftrivial-auto-var-init=pattern",
)  # fmt: skip
# Each memory access and each index out of bounds calls the runtime, instead of a sanitizer's library; line numbers are
# kept.
_CHECKED = (
    "-DSIMULATOR_CHECKED", "-g1", "-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0",
    "-fsanitize=bounds", "-nodefaultlibs",
)  # fmt: skip
_SECONDS = 120


@dataclass(frozen=True)
class CompiledKernels:
    """Kernels, loaded from a file that is removed with them."""

    library: ctypes.CDLL
    path: Path

    def line(self, place: int) -> int | None:
        """Return the line of the compiled text for an address in the file; None if it is unknown."""
        if not place or shutil.which("addr2line") is None:
            return None
        command = ["addr2line", "-i", "-e", str(self.path), hex(place - 1)]  # the call, not what is behind it
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        outermost = done.stdout.split("\n")[-2] if done.returncode == 0 else ""
        number = outermost.rpartition(":")[2].split(" ")[0]
        return int(number) if number.isdigit() and int(number) else None


def find_compiler() -> str | None:
    """Return a C++ compiler compatible with GCC; None if there is none."""
    return shutil.which(os.environ.get(COMPILER, "g++"))


@cache
def runtime() -> tuple[ctypes.CDLL, Path]:
    """Return the loaded runtime and its path. Raises DeviceError without a compiler."""
    compiler = find_compiler()
    if compiler is None:
        raise DeviceError("kernels for CUDA are executed on the processor with g++: install it (on Debian: g++)")
    texts = [p.read_text(encoding="ascii") for p in sorted(NATIVE.iterdir())]
    key = key_of("simulator", compiler, str(os.stat(compiler).st_mtime_ns), *texts)
    directory = Path(tempfile.mkdtemp(prefix="autosched-simulator-"))
    atexit.register(shutil.rmtree, directory, True)
    path = directory / "runtime.so"
    code = read_code(key)
    if code is None:
        _build_runtime(compiler, path)
        write_code(key, path.read_bytes())
    else:
        path.write_bytes(code)
    return ctypes.CDLL(str(path)), path


def _build_runtime(compiler: str, path: Path) -> None:
    """Compile the files of the runtime in parallel: each takes a second."""
    sources = sorted(NATIVE.glob("*.cpp"))
    objects = [path.with_name(f"{source.stem}.o") for source in sources]
    commands = [
        [compiler, "-O2", *_COMMON, "-c", "-o", str(made), str(source)]
        for made, source in zip(objects, sources, strict=True)
    ]
    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(_run, commands))
    _run([compiler, "-shared", "-o", str(path), *map(str, objects), "-ldl"])


def compile_kernels(text: str, checked: bool, capability: int) -> CompiledKernels:
    """Compile a translated text for a GPU of that compute capability, 90 for 9.0. Raises CompileError, DeviceError."""
    _, library = runtime()
    compiler = find_compiler()
    assert compiler is not None
    directory = Path(tempfile.mkdtemp(prefix="autosched-kernel-"))
    source, made = directory / "kernels.cpp", directory / "kernels.so"
    try:
        source.write_text(text, encoding="utf-8")
        words = [
            *_COMMON,
            *_KERNEL,
            *(_CHECKED if checked else ()),
            f"-D__CUDA_ARCH__={10 * capability}",
            f"-I{NATIVE}",
        ]
        _run([compiler, *words, "-o", str(made), str(source), str(library)])
        kernels = CompiledKernels(ctypes.CDLL(str(made)), made)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    weakref.finalize(kernels, shutil.rmtree, directory, True)
    return kernels


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise CompileError(f"{command[0]} has not ended after {_SECONDS} s") from None
    if done.returncode:
        raise CompileError(" ".join(done.stderr.split())[:2000])
