"""The runtime as one shared object, built once for a version of its sources; each kernel as another, against it."""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from autosched.errors import DeviceError
from autosched.runtime.gpu.cache import key_of, read, write
from autosched.runtime.gpu.compile import CompileError

NATIVE = Path(__file__).with_name("native")
COMPILER = "AUTOSCHED_CXX"  # of the environment; else g++
_COMMON = ("-std=c++17", "-fPIC", "-shared", "-w")
# Kernels: loops are left as they are. What a thread has not written is no zero, and divisions by 0 give what they give.
_KERNEL = ("-O1", "-fno-exceptions", "-fno-rtti", "-ftrivial-auto-var-init=pattern", "-fno-strict-aliasing", "-fwrapv")
# Every access to memory becomes a call, of the runtime and not of a sanitizer's library.
_CHECKED = ("-DCHECKED", "-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0", "-nodefaultlibs")
_SECONDS = 120


def find_compiler() -> str | None:
    """A C++ compiler of GCC's kind, None where there is none."""
    return shutil.which(os.environ.get(COMPILER, "g++"))


@cache
def runtime() -> tuple[ctypes.CDLL, Path]:
    """The runtime, loaded, and where it lies. Raises DeviceError without a compiler."""
    compiler = find_compiler()
    if compiler is None:
        raise DeviceError("kernels for CUDA are executed on the processor with g++: install it (on Debian: g++)")
    texts = [p.read_text(encoding="ascii") for p in sorted(NATIVE.iterdir())]
    key = key_of("simulator", compiler, *texts)
    directory = Path(tempfile.mkdtemp(prefix="autosched-simulator-"))
    atexit.register(shutil.rmtree, directory, True)
    path = directory / "runtime.so"
    code = read(key)
    if code is None:
        _run([compiler, "-O2", *_COMMON, "-o", str(path), *map(str, sorted(NATIVE.glob("*.cpp")))])
        write(key, path.read_bytes())
    else:
        path.write_bytes(code)
    return ctypes.CDLL(str(path)), path


def compile_kernels(text: str, checked: bool) -> ctypes.CDLL:
    """The kernels of a translated text, loaded. Raises CompileError, DeviceError."""
    _, library = runtime()
    compiler = find_compiler()
    assert compiler is not None
    with tempfile.TemporaryDirectory(prefix="autosched-kernel-") as directory:
        source, made = Path(directory, "kernels.cpp"), Path(directory, "kernels.so")
        source.write_text(text, encoding="utf-8")
        words = [*_COMMON, *_KERNEL, *(_CHECKED if checked else ()), f"-I{NATIVE}"]
        _run([compiler, *words, "-o", str(made), str(source), str(library)])
        return ctypes.CDLL(str(made))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise CompileError(" ".join(done.stderr.split())[:2000])
