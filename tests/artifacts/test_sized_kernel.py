"""Exported kernels of varying sizes: their library against the reference, and their header in a C program."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched import te
from autosched.artifacts.sized_kernel import NO_CODE, _Forms
from autosched.errors import UsageError
from autosched.ir.expr import INDEX, Binary, Const, Expr, Var
from autosched.ir.size import Forms
from autosched.runtime.jit import load_library
from autosched.runtime.tensors import aligned_empty
from autosched.target import parse_target
from autosched.te.reference.evaluate import evaluate
from tests.kernel.test_sized_kernel import convolution, product, softmax

pytestmark = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang", "ld"))), reason="needs a linker")


def exported(kernel: Any, path: Path) -> tuple[Any, Any]:
    """Return the functions of a library: of the kernel and of its workspace."""
    library, header = at.export(kernel, out=path)
    assert header == library.with_suffix(".h")
    loaded, symbol = ctypes.CDLL(str(library)), f"autosched_{path.stem.removeprefix('lib')}"
    return loaded[symbol], loaded[f"{symbol}_workspace_bytes"]


def call(functions: tuple[Any, Any], dag: te.ComputeDAG, sizes: Mapping[str, int]) -> tuple[int, list[np.ndarray]]:
    """Return the status and the outputs, which begin as 7."""
    run, workspace_bytes = functions
    workspace_bytes.restype = ctypes.c_int64
    numbers = [ctypes.c_int64(n) for n in sizes.values()]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(t.public_shape).astype(t.dtype) for t in dag.inputs]
    outputs = [np.full(t.public_shape, 7, t.dtype) for t in dag.outputs]
    nbytes = workspace_bytes(*numbers)
    workspace = aligned_empty((max(nbytes, 1),), "uint8")
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*inputs, *outputs)]
    status = run(*pointers, *numbers, ctypes.c_void_p(workspace.ctypes.data))
    assert (nbytes < 0) == (status == NO_CODE)
    if status == 0:
        arrays = {t.name: array for t, array in zip(dag.inputs, inputs, strict=True)}
        for output, reference in zip(outputs, evaluate(dag, arrays), strict=True):
            assert np.allclose(output, reference.value.reshape(output.shape), rtol=1e-4, atol=1e-4), sizes
    return status, outputs


@pytest.mark.parametrize(
    ("workload", "fixed", "made", "others"),
    [
        (product, {"N": 48, "K": 32}, [{"M": 64}, {"M": 1}, {"M": 0}], [{"M": m} for m in (33, 97, 600)]),
        (product, {}, [{"M": 40, "N": 64, "K": 48}], [{"M": 96, "N": 67, "K": 70}]),
        (softmax, {}, [{"M": 40, "N": 130}, {"M": 1, "N": 5}], [{"M": 99, "N": 131}, {"M": 1, "N": 7}]),
        (convolution, {"O": 16, "C": 8}, [{"H": 40, "W": 34}], [{"H": 37, "W": 55}]),
    ],
)
def test_a_library_computes_what_the_kernel_does(workload, fixed, made, others, tmp_path):
    least = {product: 0, softmax: 1, convolution: 3}[workload]
    kernel = at.compile(workload, sizes=dict.fromkeys(made[0], (least, 1024)), settings=fixed, threads=2)
    for sizes in made:
        kernel.of(**sizes)
    functions = exported(kernel, tmp_path / "libmine.so")
    for sizes in (*made, *others):
        status, _ = call(functions, te.ComputeDAG(workload(**fixed, **sizes)), sizes)
        assert status == 0, sizes


def test_sizes_without_code_are_refused(tmp_path):
    fixed = {"N": 16, "K": 8}
    kernel = at.compile(product, sizes={"M": range(8, 1025, 8)}, settings=fixed, threads=1)
    kernel.of(M=64)
    functions = exported(kernel, tmp_path / "rows.so")
    assert "float32[M, 8]" in (tmp_path / "rows.h").read_text()
    for m, code in ((64, 0), (1024, 0), (8, NO_CODE), (1032, NO_CODE), (65, NO_CODE), (0, NO_CODE)):
        status, (output,) = call(functions, te.ComputeDAG(product(M=m, **fixed)), {"M": m})
        assert status == code, m
        assert status == 0 or (output == 7).all()
    kernel = at.compile(product, sizes={"M": (1, 1024)}, settings=fixed, threads=1)
    kernel.of(M=64)
    functions = exported(kernel, tmp_path / "many.so")
    assert [call(functions, te.ComputeDAG(product(M=m, **fixed)), {"M": m})[0] for m in (1, 65)] == [NO_CODE, 0]


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_c_program_takes_the_header(tmp_path):
    kernel = at.compile(product, sizes={"M": (1, 256)}, settings={"N": 4, "K": 3}, threads=1)
    kernel.of(M=1)
    kernel.of(M=50)
    library, header = at.export(kernel, out=tmp_path / "small.so")
    (tmp_path / "main.c").write_text("""
        #include <stdio.h>
        #include <stdlib.h>
        #include "small.h"
        int main(void) {
            int64_t m = 40, n = autosched_small_workspace_bytes(m);
            float *a = malloc(m * 3 * 4), *b = malloc(48), *c = malloc(m * 16);
            void *workspace = aligned_alloc(64, (n + 64) / 64 * 64);
            for (int64_t i = 0; i < 3 * m; i++) a[i] = i;
            for (int i = 0; i < 12; i++) b[i] = 1;
            if (autosched_small(a, b, c, m, workspace)) return 1;
            printf("%g %d\\n", c[m * 4 - 1], autosched_small(a, b, c, 300, workspace) == AUTOSCHED_SMALL_NO_CODE);
            return 0;
        }
    """)
    command = [
        "cc",
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "main.c",
        "-o",
        "main",
        str(library),
        "-lm",
        "-lpthread",
    ]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    command = [str(tmp_path / "main")]
    printed = subprocess.run(command, env=environment, check=True, timeout=60, capture_output=True, text=True).stdout
    assert printed == f"{117 + 118 + 119} 1\n"
    text = header.read_text()
    assert "float32[M, 3]" in text
    assert "size 1 to 256" in text


def test_forms_are_computed_as_the_product_computes_them():
    """All operations, with negative numbers and divisions by 0."""
    x, y = Var("x", INDEX), Var("y", INDEX)
    three = Const(3, INDEX)
    forms: list[Expr] = [
        Binary(op, a, b)
        for op in ("add", "sub", "mul", "floordiv", "mod", "ceildiv", "min", "max")
        for a, b in ((x, y), (x, three), (x - 100, three), (three, Binary("sub", x, y)))
    ]
    guards: list[Expr] = [Binary(op, form, y) for op in ("lt", "le", "gt", "ge", "eq", "ne") for form in forms]
    writer = _Forms({"x": "%x", "y": "%y"})
    values = [writer.of(form) for form in forms]
    stores = []
    for n, value in enumerate(values):
        stores += [f"  %at{n} = getelementptr i64, ptr %out, i64 {n}", f"  store i64 {value}, ptr %at{n}"]
    lines = list(writer.lines)
    holds = writer.all_of(guards[:1])
    body = [*lines, *stores, *writer.lines[len(lines) :], f"  %all = zext i1 {holds} to i64", "  ret i64 %all"]
    text = "\n".join(["define i64 @forms(i64 %x, i64 %y, ptr %out) {", *body, "}", ""])
    owner, addresses = load_library(text, parse_target("cpu"), ("forms",))
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(addresses["forms"])
    out = np.zeros(len(forms), np.int64)
    for numbers in ((7, 2), (100, 7), (0, 5), (5, 9), (1, 1), (4, 0)):
        named = dict(zip("xy", numbers, strict=True))
        all_hold = function(*numbers, out.ctypes.data)
        try:
            expected = Forms(forms).at(named)
        except ZeroDivisionError:
            assert all_hold == 0
            continue
        assert out.tolist() == expected, numbers
        assert all_hold == Forms(guards[:1]).at(named)[0]
    assert owner is not None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"out": "kernel.o"}, "has to end in .so"),
        ({"kind": "object"}, "exported as so"),
        ({"db": "records.db"}, "has no db"),
        ({"out": "missing/kernel.so"}, "cannot be written"),
    ],
)
def test_bad_exports_are_refused(arguments, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kernel = at.compile(product, sizes={"M": (1, 64)}, settings={"N": 4, "K": 3}, threads=1)
    with pytest.raises(UsageError, match="has no code to export yet"):
        at.export(kernel)
    kernel.of(M=40)
    with pytest.raises(UsageError, match=reason):
        at.export(kernel, **arguments)
    assert not [*tmp_path.iterdir()]
