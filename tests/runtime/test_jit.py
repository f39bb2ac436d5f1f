"""Compiling and loading: objects, attributes, errors, export."""

from __future__ import annotations

import ctypes
import gc
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from autosched.codegen.source import function_attributes
from autosched.errors import TargetError
from autosched.runtime import jit
from autosched.target import parse_target
from tests.runtime.regions import COUNT, run

HOST = parse_target("cpu")
RETURNS = "define i32 @{name}(ptr %args, ptr %workspace, i64 %n) {{\n  ret i32 {value}\n}}\n"
VECTOR = """
define void @axpy(ptr noalias %x, ptr noalias %y) #0 {{
  %a = load <{lanes} x float>, ptr %x, align 4
  %b = load <{lanes} x float>, ptr %y, align 4
  %c = call <{lanes} x float> @llvm.fma.v{lanes}f32(<{lanes} x float> %a, <{lanes} x float> %a, <{lanes} x float> %b)
  store <{lanes} x float> %c, ptr %y, align 4
  ret void
}}
attributes #0 = {{ {attributes} }}
"""


def test_kernels_of_one_name_live_side_by_side() -> None:
    kernels = [jit.load_object(jit.compile_object(RETURNS.format(name="k", value=v), HOST), "k", 1) for v in range(200)]
    assert [kernel(0, 0) for kernel in kernels] == list(range(200))
    del kernels[::2]
    gc.collect(1)
    assert [kernel(0, 0) for kernel in kernels] == list(range(1, 200, 2))


def test_dropped_kernels_give_their_memory_back() -> None:
    values = "".join(f"  store volatile i64 {i}, ptr %workspace\n" for i in range(2000))
    code = jit.compile_object(f"define i32 @k(ptr %args, ptr %workspace, i64 %n) {{\n{values}  ret i32 0\n}}", HOST)
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("needs /proc")

    def resident_pages() -> int:
        return int(statm.read_text().split()[1])

    for _ in range(2 * jit.LOADS_PER_ENGINE):
        jit.load_object(code, "k", 1)
    before = resident_pages()
    for _ in range(6 * jit.LOADS_PER_ENGINE):
        jit.load_object(code, "k", 1)
    assert (resident_pages() - before) * 4096 < 0.25 * len(code) * 6 * jit.LOADS_PER_ENGINE


@pytest.mark.parametrize(("mcpu", "register"), [("skylake-avx512", "zmm"), ("haswell", "ymm"), ("nehalem", "xmm")])
def test_the_vector_width_of_the_target_is_used(mcpu: str, register: str) -> None:
    target = parse_target(f"llvm -mcpu={mcpu}")
    text = VECTOR.format(lanes=target.vector_bytes // 4, attributes=function_attributes(target))
    assembly = jit.emit_assembly(text, target)
    assert f"%{register}0" in assembly
    assert ("vfmadd" in assembly) == target.has_fma


def test_code_for_another_architecture() -> None:
    target = parse_target("llvm -mcpu=neoverse-n1")
    assembly = jit.emit_assembly(VECTOR.format(lanes=4, attributes=function_attributes(target)), target)
    assert "fmla" in assembly


def test_stack_slots_become_values() -> None:
    text = """
define i32 @k(ptr %args, ptr %workspace, i64 %n) {
  %slot = alloca i64
  store i64 %n, ptr %slot
  %v = load i64, ptr %slot
  %r = trunc i64 %v to i32
  ret i32 %r
}"""
    assert "(%rsp)" not in jit.emit_assembly(text, parse_target("llvm -mcpu=haswell"))


def test_malformed_ir_says_where() -> None:
    with pytest.raises(RuntimeError, match="undefined value"):
        jit.compile_object("define i32 @k() {\n  ret i32 %nothing\n}", HOST)


def test_an_undefined_symbol_is_an_exception() -> None:  # and not a call of address 0
    ir = "declare void @no_such_function()\n" + RETURNS.format(name="k", value=0).replace(
        "ret", "call void @no_such_function()\n  ret"
    )
    with pytest.raises(RuntimeError, match="materialize"):
        jit.load_object(jit.compile_object(ir, HOST), "k", 1)


def test_a_missing_entry_is_named() -> None:
    with pytest.raises(RuntimeError, match="other"):
        jit.load_object(jit.compile_object(RETURNS.format(name="k", value=0), HOST), "other", 1)


def test_devices_are_no_target_of_llvm() -> None:
    with pytest.raises(TargetError, match="cuda"):
        jit.compile_object(RETURNS.format(name="k", value=0), parse_target("cuda"))


def test_exported_objects_share_a_pool(tmp_path: Path) -> None:
    linker = shutil.which("cc")
    if linker is None:
        pytest.skip("needs a linker")
    objects = []
    for name, threads in (("first", 2), ("second", 3)):
        objects.append(tmp_path / f"{name}.o")
        objects[-1].write_bytes(jit.export_object(COUNT.replace("@count", f"@{name}"), HOST, threads))
    library = tmp_path / "kernels.so"
    subprocess.run([linker, "-shared", "-o", library, *objects, "-lpthread"], check=True)
    loaded = ctypes.CDLL(str(library))
    for name, threads in (("first", 2), ("second", 3)):
        counters, ids = np.zeros(20, np.int64), np.zeros(20, np.int64)
        args = (ctypes.c_int64 * 4)(counters.ctypes.data, ids.ctypes.data, 20, 500)
        assert loaded[name](args, None, ctypes.c_int64(threads)) == 0
        assert (counters == 500).all()
        assert ids.max() < threads
    loaded.autosched_pool_shutdown()


def test_a_loaded_kernel_runs_its_regions() -> None:
    kernel = jit.load_object(jit.compile_object(COUNT, HOST), "count", 2)
    assert run(kernel, 3, 7)[0].tolist() == [7, 7, 7, 0, 0]


def test_helper_code_is_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    target = parse_target("cpu")
    ir = "define i32 @three() {\n  ret i32 3\n}\n"
    code = jit.compile_once(ir, target)
    monkeypatch.setattr(jit, "compile_object", lambda *_: b"compiled again")
    assert jit.compile_once(ir, target) == code
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    assert jit.compile_once(ir, target) == b"compiled again"


def test_a_cache_that_cannot_be_used_does_not_stop_helper_code(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert jit.compile_once("define i32 @four() {\n  ret i32 4\n}\n", parse_target("cpu"))
