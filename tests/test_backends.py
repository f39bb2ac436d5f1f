"""A kind of target is a row of each table of kinds, and nothing else: a made-up one is emitted through the front door."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from autosched import parse_target
from autosched.artifacts.kernel import FILE_KINDS
from autosched.backends import BACKENDS, Backend, exports, forms, gpu_kinds
from autosched.cli.main import main
from autosched.codegen import EMITTERS
from autosched.codegen.c.dialects import CUDA, DIALECTS
from autosched.errors import TargetError
from autosched.kernel.device import HARDWARE
from autosched.measure.backends import WORKERS, lock_name
from autosched.runtime.backends import LOADERS
from autosched.runtime.gpu.devices import GPUS
from autosched.runtime.gpu.handwritten import canary_source
from autosched.runtime.gpu.peak import CHAINS
from autosched.target import GpuFacts
from autosched.target.parse import TARGETS, gpu_target

MI250 = GpuFacts("AMD MI250X", "gfx90a", 110, 64, 1024, 2048, 131072, 255, 64 << 10, 64 << 10, 8 << 20, 1.7, 64, 1600e9)
HIP = replace(
    CUDA,
    name="hip",
    suffix=".hip",
    block="hipBlockIdx_{axis}",
    thread="hipThreadIdx_{axis}",
    prologue="#include <hip/hip_runtime.h>\n",
    copies={},
    shuffles={},
)


def test_all_tables_know_the_same_kinds() -> None:
    for table in (TARGETS, EMITTERS, LOADERS, WORKERS, HARDWARE):
        assert set(table) == set(BACKENDS)
    for table in (DIALECTS, GPUS, CHAINS):
        assert set(table) == set(gpu_kinds())
    assert set(FILE_KINDS) == set(exports())


@pytest.mark.parametrize("kind", BACKENDS)
def test_forms_and_files_are_of_one_kind_only(kind: str) -> None:
    assert [form for form, owner in forms().items() if owner == kind] == list(BACKENDS[kind].forms)
    assert [name for name, owner in exports().items() if owner == kind] == list(BACKENDS[kind].exports)


@pytest.fixture
def hip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "hip", Backend(True, "-arch", ("hip",), {"hip": ".hip"}))
    monkeypatch.setitem(TARGETS, "hip", lambda arch: gpu_target("hip", replace(MI250, arch=arch or MI250.arch)))
    monkeypatch.setitem(DIALECTS, "hip", HIP)
    monkeypatch.setitem(EMITTERS, "hip", EMITTERS["cuda"])
    monkeypatch.setitem(HARDWARE, "hip", HARDWARE["cuda"])
    monkeypatch.setitem(WORKERS, "hip", replace(WORKERS["cuda"], visible="HIP_VISIBLE_DEVICES"))


@pytest.mark.usefixtures("hip")
def test_another_kind_is_tuned_by_the_model_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "matmul", "--shape", "96,80,64", "--target", "hip -arch=gfx90a", "--no-run", "--json"]
    assert main([*words, "--out-dir", str(tmp_path)]) == 0
    assert 0 < json.loads(capsys.readouterr().out.splitlines()[-1])["best_s"] < 1
    texts = [path.read_text() for path in sorted(tmp_path.glob("matmul-*.hip"))]
    assert texts
    beside = [path.with_suffix(".json").name for path in tmp_path.glob("matmul-*.hip")]  # the problem of each
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".hip") == sorted(beside)
    for text in texts:
        assert text.startswith("// autosched: matmul (96, 80, 64) float32")
        assert "#include <hip/hip_runtime.h>" in text
        assert re.search(r'extern "C" __global__ void .* kernel_0\(', text)
        code = "\n".join(line for line in text.splitlines() if not line.startswith("//"))
        assert "hipThreadIdx_x" in code
        assert not re.search(r"\b(threadIdx|blockIdx|get_local_id|cp\.async|__shfl)", code)


@pytest.mark.usefixtures("hip")
def test_what_is_written_by_hand_needs_the_words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    source = canary_source("hip", 1024)
    assert source.suffix == ".hip"
    assert source.launches[0].grid == (4, 1, 1)
    assert "const int i = hipBlockIdx_x * 256 + hipThreadIdx_x;" in source.text
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "3,1")
    assert lock_name("hip") == "hip-3"


def test_a_kind_is_known_as_long_as_it_is_in_the_table(hip: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_target("hip").fingerprint.startswith("hip-gfx90a-amd-mi250x")
    with pytest.raises(TargetError, match="the only one is -arch=NAME"):
        parse_target("hip -mcpu=x")
    monkeypatch.delitem(BACKENDS, "hip")
    with pytest.raises(TargetError, match="write cpu, 'llvm -mcpu=NAME', cuda or opencl"):
        parse_target("hip")
