"""The table of workloads, building from words, and operators from the user's own file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched.errors import UsageError
from autosched.te.operators.registry import WORKLOADS, build, find, resolve
from autosched.te.workload_file import load


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_every_workload_builds_by_itself_and_from_its_description(name: str) -> None:
    workload = WORKLOADS[name]
    assert len(workload.args) == len(workload.defaults)
    assert workload.required <= len(workload.numbers)
    dag, spec = build(name)
    assert list(spec["args"]) == list(workload.args)
    assert (spec["name"], spec["dtype"]) == (name, "float32")
    assert resolve(spec).content_hash == dag.content_hash
    for dtype in workload.dtypes:
        build(name, dtype=dtype)
    for shape in workload.shapes:
        build(name, shape)


def test_the_operator_set_of_the_literature() -> None:
    benchmarks = [w for w in WORKLOADS.values() if w.shapes]
    assert " ".join(w.name for w in benchmarks) == "c1d c2d c3d gmm grp dil dep t2d cap nrm sfm cbr tbg tbs"
    assert all(len(w.shapes) == 4 and all(len(s) == len(w.args) for s in w.shapes) for w in benchmarks)
    assert build("c2d", (1, 14, 14, 256, 256, 3, 1, 1))[0].flops == 2 * 14 * 14 * 256 * 9 * 256


def test_conv2d_defaults() -> None:
    dag, spec = build("conv2d")
    assert dag.outputs[0].public_shape == (1, 56, 56, 64)
    assert spec["args"] == {
        "N": 1, "H": 56, "W": 56, "CI": 64, "CO": 64, "k": 3, "stride": 1, "pad": 1,
        "dilation": 1, "groups": 1, "layout": "NHWC",
    }  # fmt: skip


def test_shape_settings_batch_and_dtype_combine() -> None:
    dag, spec = build("conv2d", (1, 9, 7, 4, 6, 3, 2, 1), {"layout": "NCHW", "groups": "2", "dtype": "int8"}, batch=3)
    assert dag.outputs[0].public_shape == (3, 6, 5, 4)
    assert dag.outputs[0].dtype == "int32"
    assert spec["args"]["groups"] == 2
    assert build("gmm", (1, 2, 3, 4), batch=5)[1]["args"]["B"] == 5
    assert build("sfm", (64, 32), batch=16)[1]["args"]["M"] == 1024
    assert build("matmul", batch=2)[1]["args"]["M"] == 1024
    assert build("matmul", np.array([2, 3, 4]))[1]["args"] == {"M": 2, "N": 3, "K": 4}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"name": "conv2"}, r"no workload 'conv2'; did you mean conv2d\?"),
        ({"name": "qqqq"}, r"no workload 'qqqq'; choose one of c1d, .* or path/to/file.py:function"),
        ({"name": "c2d", "shape": (1, 2)}, r"c2d: the shape needs 8 numbers \(N,H,.*\) but has 2 \(1,2\)"),
        ({"name": "conv2d", "shape": (1,) * 11}, r"needs 8 to 10 numbers"),
        ({"name": "c2d", "shape": (1, 14, 0, 2, 2, 1, 1, 0)}, r"c2d: W must be an integer >= 1 but is 0"),
        ({"name": "c2d", "settings": {"pad": "-1"}}, r"c2d: pad must be an integer >= 0 but is -1"),
        ({"name": "conv2d", "settings": {"strides": "2"}}, r"no argument 'strides'; did you mean stride\?"),
        ({"name": "conv2d", "settings": {"zzz": "2"}}, r"no argument 'zzz'; its arguments are N, H, .* dtype"),
        ({"name": "conv2d", "settings": {"k": "three"}}, r"conv2d: k must be an integer >= 1 but is three"),
        (
            {"name": "sfm", "dtype": "int8"},
            r"sfm: dtype must be one of float32, float64, float8_e4m3fn, float8_e5m2, float16, bfloat16 but is 'int8'",
        ),
        ({"name": "grp", "settings": {"groups": 5}}, r"grp: CI=256 is not divisible by groups=5"),
        ({"name": "c2d", "shape": (1, 3, 3, 4, 4, 7, 1, 1)}, r"c2d: the output would be empty"),
        ({"name": "c2d", "batch": 0}, r"c2d: the batch must be an integer >= 1 but is 0"),
        ({"name": "matmul", "batch": 1.5}, r"matmul: the batch must be an integer >= 1 but is 1.5"),
        ({"name": "matmul", "shape": (1.5, 2, 3)}, r"matmul: M must be an integer >= 1 but is 1.5"),
        ({"name": "matmul", "shape": 5}, r"matmul: the shape needs 3 numbers \(M,N,K\) but has 1 \(5\)"),
        ({"name": "matmul", "settings": {"K": 2.0}}, r"matmul: K must be an integer >= 1 but is 2.0"),
        ({"name": "avg_pool2d", "settings": {"count_include_pad": 2}}, r"must be from 0 to 1 but is 2"),
        ({"name": "attention", "settings": {"causal": 2}}, r"attention: causal must be from 0 to 1 but is 2"),
        ({"name": "attention", "settings": {"keys": -1}}, r"attention: keys must be an integer >= 0 but is -1"),
        ({"name": "attention", "dtype": "float8_e5m2"}, r"attention: dtype must be one of float32, float64, float16"),
        ({"name": "mine.py:f", "shape": (1,)}, r"a function of your own takes no shape"),
    ],
)
def test_mistakes_are_one_sentence(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        build(**words)


def test_what_takes_built_in_workloads_does_not_offer_the_form_that_it_refuses() -> None:
    with pytest.raises(
        UsageError, match=r"^'mine\.py:f' is a function of your own, and this takes built-in workloads only"
    ):
        find("mine.py:f")


def test_a_record_never_names_a_file_to_run() -> None:
    with pytest.raises(UsageError, match="is not built in"):
        resolve({"name": "evil.py:f", "args": {}, "dtype": "float32"})


SOURCE = """
from autosched import te
import beside

def double(n=8, scale=2.0, wide=False, label="d", dtype="float32"):
    a = te.placeholder((n,), dtype, name="A")
    return te.compute((n,), lambda i: a[i] * scale, name="double")

def pair(n=4):
    a = te.placeholder((n,), name="A")
    return (te.compute((n,), lambda i: a[i] + 1.0, name="up"),
            te.compute((n,), lambda i: a[i] - 1.0, name="down"))

def needs(n, m=2):
    return double(n)

def fails(n=3):
    a = te.placeholder((n,), name="A")
    return te.compute((n,), lambda i: a[i + 1], name="shifted")

def raises(n=3):
    return 1 // (n - n)

def nothing(n=3):
    pass

def number(n=3):
    return n

constant = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    (tmp_path / "beside.py").write_text("VALUE = 1\n")
    return path


def test_a_function_of_the_users_own(file: Path) -> None:
    dag, spec = load(f"{file}:double", {"n": "5", "dtype": "float64", "scale": "3", "wide": "true"})
    assert dag.outputs[0].shape == (5,)
    assert spec["args"] == {"n": 5, "scale": 3.0, "wide": True, "label": "d", "dtype": "float64"}
    assert spec["dtype"] == "float64"
    assert len(load(f"{file}:pair")[0].outputs) == 2
    assert build(f"{file}:needs", settings={"n": "6"})[0].outputs[0].shape == (6,)


@pytest.mark.parametrize(
    ("function", "settings", "message"),
    [
        ("doubled", {}, r"mine.py has no function 'doubled'; did you mean double\?"),
        ("constant", {}, r"mine.py has no function but an int 'constant'"),
        ("double", {"m": 1}, r"double \(line 5\) has no argument 'm'; its arguments are n, scale, wide, label, dtype"),
        ("double", {"n": "x"}, r"n must be an int, like its default 8, but is 'x'"),
        ("double", {"wide": "maybe"}, r"wide must be a bool, like its default False, but is 'maybe'"),
        ("needs", {}, r"needs a value for n; give it a default or set n=\.\.\."),
        ("fails", {}, r"^mine.py:19: fails failed: stage shifted reads A\[i \+ 1\] out of bounds"),
        ("raises", {}, r"^mine.py:22: raises failed: ZeroDivisionError"),
        ("nothing", {}, r"^mine.py:24: nothing must return a tensor .* but returned nothing"),
        ("number", {}, r"^mine.py:27: number must return a tensor .* but returned an int"),
    ],
)
def test_a_mistake_in_the_users_file_names_its_line(
    file: Path, function: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        load(f"{file}:{function}", settings)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no file .*gone\.py"):
        load(f"{tmp_path}/gone.py:f")
    with pytest.raises(UsageError, match=r"is written path/to/file\.py:function"):
        load("gone.py")
    broken = tmp_path / "broken.py"
    broken.write_text("x = 1\ny = (\n")
    with pytest.raises(UsageError, match=r"^broken.py:2: the file cannot be imported: SyntaxError"):
        load(f"{broken}:f")
    broken.write_text("import os\nraise ValueError('no')\n")
    with pytest.raises(UsageError, match=r"^broken.py:2: the file cannot be imported: ValueError: no"):
        load(f"{broken}:f")
