"""GPU targets from outside: tuned on an OpenCL device where there is one, refused or searched by the model elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched.errors import UsageError
from autosched.runtime.gpu.compile import find_nvcc
from autosched.te.operators.registry import build
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from tests.codegen.nvcc import resources
from tests.measure.gpu_kernels import opencl_target

ROOT = Path(__file__).resolve().parent.parent
M, N, K = 20, 33, 17


def cli(home: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "AUTOSCHED_"))}
    return subprocess.run(
        [sys.executable, "-m", "autosched.cli.main", *words],
        env={**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


def test_cuda_without_a_gpu_is_one_sentence(tmp_path: Path) -> None:
    answer = cli(tmp_path, "tune", "conv2d", "--target", "cuda", CUDA_VISIBLE_DEVICES="")
    assert answer.returncode == 5
    assert answer.stdout == ""
    assert answer.stderr.startswith("autosched: error: ")
    assert "CUDA" in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.parametrize(("target", "suffix", "word"), [
    ("cuda", "cu", "__global__"), ("opencl", "cl", "__kernel"),
])  # fmt: skip
def test_search_by_the_model_alone_emits_code(tmp_path: Path, target: str, suffix: str, word: str) -> None:
    words = ("tune", "conv2d", "--target", target, "--no-run", "--out-dir", str(tmp_path / "out"), "--json")
    answer = cli(tmp_path, *words, CUDA_VISIBLE_DEVICES="")
    assert answer.returncode == 0, answer.stderr
    data = json.loads(answer.stdout.splitlines()[-1])
    assert data["verified"] is False
    assert 0 < data["best_s"] < 1
    texts = [p.read_text() for p in sorted((tmp_path / "out").iterdir()) if p.suffix == f".{suffix}"]
    assert len(texts) == 4
    assert all(
        word in t and t.startswith("// autosched: conv2d (1, 56, 56, 64") and "launch kernel_0" in t for t in texts
    )
    if suffix == "cu" and find_nvcc() is not None:
        resources((tmp_path / "out" / "conv2d-1.cu").read_text(), "sm_80", tmp_path)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    opencl_target()  # skips where there is no device
    db = tmp_path_factory.mktemp("records") / "records.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(db.parent / "cache"))
        result = at.tune("matmul", shape=(M, N, K), target="opencl", trials=6, db=db, out_dir=db.parent / "out")
        yield result, db  # whoever tunes again finds the rates of the device in the cache


def test_tunes_on_an_opencl_device(tuned: tuple[Any, Path]) -> None:
    result, db = tuned
    assert result.verified
    assert result.trials == 6
    assert result.failed == 0, result.failures
    assert result.peak_gflops > 0
    assert (db.parent / "out" / "matmul-1.cl").read_text().startswith("// autosched: matmul (20, 33, 17) float32\n")


def test_kernels_of_the_result_and_of_the_records(tuned: tuple[Any, Path]) -> None:
    result, db = tuned
    dag, _ = build("matmul", (M, N, K))
    inputs = make_inputs(dag, 3)
    (reference,) = evaluate(dag, inputs)
    for kernel in (result.compile(), at.compile("matmul", shape=(M, N, K), target="opencl", db=db)):
        out = np.full((M, N), np.nan, np.float32)
        assert kernel(*inputs.values(), out=out) is out
        assert within(reference, out).all()


def test_records_are_shown_verified_explained_and_exported(tuned: tuple[Any, Path]) -> None:
    result, db = tuned
    n = result.record_id
    assert at.best("matmul", shape=(M, N, K), target="opencl", db=db)[0].id == n
    assert "__kernel" in at.show(n, db, "opencl")
    assert "__global__" in at.show(n, db, "cuda")
    assert "blockIdx" in at.show(n, db, "ir")
    assert at.show(n, db).startswith("[")
    assert at.verify(n, db).seconds > 0
    facts = at.explain(n, db)
    assert facts["threads_per_block"] >= 1
    assert facts["fraction_of_roofline"] > 0
    for kind, suffix in (("opencl", "cl"), ("cuda", "cu")):
        (path,) = at.export(n, db, kind, db.parent / f"k.{suffix}")
        assert path.read_text().startswith("// autosched: matmul")
    for refused in (lambda: at.show(n, db, "llvm"), lambda: at.export(n, db, "so")):
        with pytest.raises(UsageError, match=f"record {n} is for opencl"):
            refused()


def test_resumes(tuned: tuple[Any, Path]) -> None:
    result, db = tuned
    again = at.tune("matmul", shape=(M, N, K), target="opencl", trials=8, db=db, resume=True)
    assert again.resumed == 6
    assert again.trials == 8
    assert again.best_s < 1.5 * result.best_s + 1e-3


def test_threads_belong_to_processors() -> None:
    with pytest.raises(UsageError, match="threads are those of a processor"):
        at.tune("matmul", shape=(M, N, K), target="cuda", threads=2)
