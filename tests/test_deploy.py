"""Files for callers in C: names, headers and refusals; that they work is shown end to end."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from autosched.artifacts import kernel as deploy
from autosched.artifacts.c_interface import c_identifier
from autosched.codegen.source import KernelSource
from autosched.errors import UsageError
from autosched.runtime.spec import ArraySpec
from autosched.target import parse_target

IR = "define i32 @k(ptr %args, ptr %workspace, i64 %n) {\n  ret i32 0\n}\n"


def kernel(name: str = "mine_1", title: str = "mine") -> deploy.Deployable:
    inputs = (ArraySpec("float", (2, 3), "float32"), ArraySpec("x.pad", (4,), "int8"), ArraySpec("x_pad", (), "bool"))
    outputs = (ArraySpec("workspace", (2,), "float64"), ArraySpec("2nd", (2,), "int64"))
    return deploy.Deployable(name, title, KernelSource("k", IR, 192, 2), parse_target("cpu"), inputs, outputs)


def test_the_header_names_every_argument_once_and_legally() -> None:
    text = deploy.header_text(kernel(title="mine */ #error \x1b[31m"))
    assert (
        "int autosched_mine_1(const float *float_, const int8_t *x_pad, const uint8_t *x_pad_, double *workspace_, "
        "int64_t *_2nd, void *workspace);"
    ) in text
    assert "#define AUTOSCHED_MINE_1_WORKSPACE_BYTES 192" in text
    assert "#define AUTOSCHED_MINE_1_THREADS 2" in text
    assert "float32[2, 3]" in text
    assert text.count("*/") == 2  # the title cannot end the comment
    assert "\x1b" not in text


@pytest.mark.parametrize("words", [("cc", "-x", "c", "-std=c99"), ("c++", "-x", "c++")])
def test_the_header_compiles(tmp_path: Path, words: tuple[str, ...]) -> None:
    if shutil.which(words[0]) is None:
        pytest.skip(f"needs {words[0]}")
    (tmp_path / "k.h").write_text(deploy.header_text(kernel()))
    command = [*words, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-include", str(tmp_path / "k.h"), "/dev/null"]
    subprocess.run(command, check=True)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a linker")
def test_two_kernels_of_one_inner_name_link_into_one_library(tmp_path: Path) -> None:
    objects = []
    for name in ("first_1", "second_2"):
        (path, _) = deploy.write_files(kernel(name), "object", tmp_path / f"{name}.o")
        objects.append(path)
    subprocess.run(["cc", "-shared", "-o", tmp_path / "both.so", *objects, "-lpthread"], check=True)


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "k.h").mkdir()
    with pytest.raises(UsageError, match="cannot be written"):
        deploy.write_files(kernel(), "c-header", tmp_path / "k.h")
    assert [p.name for p in tmp_path.iterdir()] == ["k.h"]


def test_kinds() -> None:
    for kind in deploy.FILE_KINDS:
        deploy.check_kind(kind)
    with pytest.raises(UsageError, match="exported as so, object, c-header"):
        deploy.check_kind("exe")


def test_identifiers() -> None:
    assert c_identifier("own.py:rms-norm") == "own_py_rms_norm"
