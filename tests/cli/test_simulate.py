"""`autosched tune --simulate`, and the command that executes a source which was written, and perhaps changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from autosched.codegen.c.source import GpuSource, Launch, PixelBox, TensorMap
from autosched.kernel.simulation import describe_source, description_path, read_source
from autosched.measure.check import CandidateError
from autosched.measure.gpu import simulated
from autosched.runtime.simulator.build import find_compiler
from tests.codegen import cuda_on_cpu

WORDS = ("tune", "matmul", "--shape", "7,12,8", "--target", "cuda -arch=sm_80", "--simulate")
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="g++ is not installed (on Debian: g++)")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source with its description."""
    from autosched import api
    from autosched.tuner.policy import SearchSetup

    directory = tmp_path_factory.mktemp("sources")
    search = SearchSetup(measure=False)
    api.tune("matmul", shape=(7, 12, 8), target="cuda -arch=sm_80", out_dir=directory, search=search)
    return directory


@needs_compiler
def test_what_is_right_is_verified(cli: Any, tmp_path: Path) -> None:
    answer = cli(*WORDS, "--out-dir", tmp_path, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["verified"] is True
    assert (answer.json["trials"], answer.json["failed"]) == (4, 0)
    assert len(list(tmp_path.glob("*.cu"))) == len(list(tmp_path.glob("*.json"))) == 4
    assert "verified in the simulator" in cli(*WORDS).out


def test_what_is_wrong_is_left_out(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def check(self: object, *source: object) -> None:
        seen.append(source)
        if len(seen) != 3:
            raise CandidateError("wrong_result", "C[0, 0] is 1, expected 2")

    monkeypatch.setattr(simulated.SimulatedData, "check", check)
    answer = cli(*WORDS, "--out-dir", tmp_path)
    assert answer.code == 0, answer.err
    assert "verified in the simulator (3 of 4 candidates are wrong)" in answer.out
    assert len(list(tmp_path.glob("*.cu"))) == 1
    answer = cli(*WORDS)
    assert answer.code == 4
    assert "none of 4 candidates computes what it should: C[0, 0] is 1, expected 2" in answer.err


def test_other_targets_are_refused(cli: Any) -> None:
    answer = cli(*WORDS[:4], "--target", "opencl", "--simulate")
    assert answer.code == 2
    assert "give --target cuda with --simulate" in answer.err


@needs_compiler
@pytest.mark.parametrize(("before", "after", "words", "code", "expected"), [
    ("", "", (), 0, "right on all data sets"),
    ("", "", ("--checked",), 0, "accesses"),
    ("", "", ("--counted",), 0, "wavefronts"),
    (" += ", " -= ", (), 1, "wrong_result: matmul["),
    ("__syncthreads();", "", ("--checked",), 1, "wrong_result: race ("),
])  # fmt: skip
def test_a_source_that_was_written(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    before: str, after: str, words: tuple[str, ...], code: int, expected: str,
) -> None:  # fmt: skip
    text = (written / "matmul-1.cu").read_text()
    assert before in text
    path = tmp_path / "changed.cu"
    path.write_text(text.replace(before, after) if before else text)
    path.with_suffix(".json").write_text((written / "matmul-1.json").read_text())
    monkeypatch.setattr(sys, "argv", ["cuda_on_cpu", str(path), *words])
    assert cuda_on_cpu.main() == code
    assert expected in capsys.readouterr().out


def test_a_description_has_all_of_a_source(tmp_path: Path) -> None:
    image = PixelBox((0, 0), (-1, -1), 16, 8)
    maps = (
        TensorMap("map_A", "A", "bfloat16", (64, 8), (128,), (64, 8), 128),
        TensorMap("map_B", "B", "int8", (16, 4, 4, 1), (16, 64, 256), image, steps=(1, 2, 2, 1)),
    )
    launch = Launch("k_0", (1, 1, 1), (32, 1, 1), (*maps, "C"), 1 << 16)
    source = GpuSource("k", "cuda", "// text", (launch,), ("A", "B"), ("C",), (("T", 8),), is_arch_specific=True)
    path = tmp_path / "k.cu"
    path.write_text(source.text)
    description_path(path).write_text(describe_source(source, '{"name": "matmul"}'))
    assert read_source(path) == (source, '{"name": "matmul"}')


@pytest.mark.parametrize("content", [None, "", "{}", json.dumps({"schema_version": 99})])
def test_a_source_without_its_description(
    content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "k.cu"
    path.write_text("")
    if content is not None:
        path.with_suffix(".json").write_text(content)
    monkeypatch.setattr(sys, "argv", ["cuda_on_cpu", str(path)])
    assert cuda_on_cpu.main() == 2
    assert "k.json" in capsys.readouterr().err
