"""NVIDIA's compiler on a text of CUDA C; where it is not installed, the test is skipped."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from autosched.runtime.gpu.compile import find_nvcc


def ptx(text: str, arch: str, directory: Path) -> str:
    _compiled(text, "-ptx", arch, directory)
    return (directory / "all.ptx").read_text(encoding="ascii")


def resources(text: str, arch: str, directory: Path) -> str:
    """What the assembler says of registers and spills."""
    return _compiled(text, "-cubin", arch, directory, "--ptxas-options=-v", "--resource-usage")


def _compiled(text: str, kind: str, arch: str, directory: Path, *words: str) -> str:
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("nvcc is not installed")
    (directory / "all.cu").write_text(text, encoding="ascii")
    command = [nvcc, kind, f"-arch={arch}", "-std=c++17", *words, "-o", f"all.{kind[1:]}", "all.cu"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr
