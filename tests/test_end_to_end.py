"""The whole system from outside: the command line in processes of its own, on small shapes and with few trials."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched import te
from autosched.store import Database
from autosched.te import Tensor

ROOT = Path(__file__).resolve().parent.parent
SHAPE = "1,48,40,64"
B, N, M, K = (int(n) for n in SHAPE.split(","))
FIELDS = {
    "schema_version": int, "workload": str, "shape": list, "dtype": str, "target": str, "threads": int, "trials": int,
    "failed": int, "wall_s": float, "search_s": float, "build_s": float, "measure_s": float, "first_result_s": float,
    "best_s": float, "best_ci_s": list, "gflops": float, "peak_gflops": float, "fraction_of_peak": float,
    "record_id": int, "verified": bool,
}  # fmt: skip
PATIENCE_S = 120.0
OWN = """
from autosched import te

def rms_norm(M=24, N=40, eps=1e-5):
    X, G = te.placeholder((M, N), name="X"), te.placeholder((N,), name="G")
    k = te.reduce_axis(N, name="k")
    S = te.compute((M,), lambda i: te.sum(X[i, k] * X[i, k], axis=k), name="S")
    return te.compute((M, N), lambda i, j: X[i, j] * te.rsqrt(S[i] / N + eps) * G[j], name="Y")

def gelu_matmul(M=24, N=40, K=16):
    A, B = te.placeholder((M, K), name="A"), te.placeholder((K, N), name="B")
    bias, k = te.placeholder((N,), name="bias"), te.reduce_axis(K, name="k")
    C = te.compute((M, N), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    D = te.compute((M, N), lambda i, j: C[i, j] + bias[j], name="D")
    return te.compute((M, N), lambda i, j: 0.5 * D[i, j] * (1.0 + te.erf(D[i, j] * 0.70710678)), name="E")
"""


KEY_HOME = "XDG_DATA_HOME"  # all are one installation: what one of them has measured, the others know


@dataclass
class Place:
    """Where one test works. Every process started here carries `home` in its environment, and so do its workers."""

    home: Path

    @property
    def db(self) -> Path:
        return self.home / "records.db"

    def command(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "autosched.cli.main", *map(str, words)]

    @property
    def environment(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k == KEY_HOME or not k.startswith(("XDG_", "AUTOSCHED_"))}
        return {**kept, "HOME": str(self.home), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), env=self.environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    def start(self, *words: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words),
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def processes(self) -> list[str]:
        """Command lines of the living processes that belong here."""
        mark, found = f"HOME={self.home}".encode(), []
        for path in Path("/proc").iterdir():
            try:
                if path.name.isdigit() and mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:  # it ended meanwhile, or is somebody else's
                continue
        return [line for line in found if line]  # a zombie has none

    def wait_for_no_process(self) -> None:
        deadline = time.monotonic() + 10.0
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert self.processes() == []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, dict[str, Any]]:
    """A search by the command line, and its JSON object."""
    place = Place(tmp_path_factory.mktemp("tuned"))
    done = place.run("tune", "gmm", "--shape", SHAPE, "--trials", 6, "--threads", 1, "--db", place.db, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return place, json.loads(done.stdout.splitlines()[-1])


def count_outcomes(db: Path) -> int:
    connection = sqlite3.connect(db)
    tables = ("measurements WHERE ci_lo IS NULL", "failures")
    n = sum(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)
    connection.close()
    return int(n)


def wait_for_trials(process: subprocess.Popen[str], n: int) -> int:
    """Reads progress lines until `n` trials are told of; how many were."""
    assert process.stdout is not None
    for line in process.stdout:
        words = line.split()
        if len(words) > 2 and words[2].startswith("trial") and int(words[1]) >= n:
            return int(words[1])
    raise AssertionError(f"the search ended before {n} trials: {process.stderr and process.stderr.read()}")


# One search, and everything that is done with its records


def test_the_json_object_keeps_the_contract(tuned: tuple[Place, dict[str, Any]]) -> None:
    _, data = tuned
    assert {name: type(data.get(name)) for name in FIELDS} == FIELDS
    assert (data["workload"], data["shape"], data["dtype"], data["target"]) == ("gmm", [B, N, M, K], "float32", "cpu")
    assert (data["threads"], data["trials"], data["verified"], data["interrupted"]) == (1, 6, True, False)
    lo, hi = data["best_ci_s"]
    assert 0 < lo <= data["best_s"] <= hi
    assert data["gflops"] == pytest.approx(2 * N * M * K / data["best_s"] / 1e9)
    assert data["fraction_of_peak"] == pytest.approx(data["gflops"] / data["peak_gflops"])
    assert 0 < data["first_result_s"] < data["wall_s"]
    assert data["failed"] == sum(data["failures"].values())


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("steps", '["'), ("ir", "for "), ("passes", "== partition_interior"), ("passes", "== register tiles"),
        ("llvm", "define i32 @"), ("asm", ".text"),
    ],
)  # fmt: skip
def test_show(tuned: tuple[Place, dict[str, Any]], cli: Any, form: str, expected: str) -> None:
    place, data = tuned
    answer = cli("show", data["record_id"], "--as", form, "--db", place.db)
    assert answer.code == 0
    assert expected in answer.out


def test_verify_best_and_explain(tuned: tuple[Place, dict[str, Any]], cli: Any) -> None:
    place, data = tuned
    checked = cli("verify", data["record_id"], "--db", place.db, "--json")
    assert (checked.code, checked.json["verified"]) == (0, True)
    (best,) = cli("best", "gmm", "--db", place.db, "--json").json["records"]
    assert (best["record_id"], best["shape"], best["best_s"]) == (data["record_id"], [B, N, M, K], data["best_s"])
    explained = cli("explain", data["record_id"], "--db", place.db, "--json").json
    facts = explained["facts"]
    assert (facts["flops"], facts["bytes"]) == (2 * N * M * K, 4 * (N * K + K * M + N * M))
    assert facts["shape"] == "1,48,40,64"  # the registry's order, not the alphabet's
    assert facts["predicted_s"] > 0
    assert facts["fraction_of_roofline"] == pytest.approx(facts["roofline_s"] / data["best_s"])
    assert facts["vector_lanes"] >= 1
    assert facts["predicted_limit"] in facts["predicted_limits"]
    assert explained["rank"] == 1


def test_records_move_between_databases(tuned: tuple[Place, dict[str, Any]], cli: Any, tmp_path: Path) -> None:
    place, data = tuned
    lines, other = tmp_path / "records.jsonl", tmp_path / "other.db"
    assert cli("db", "export", lines, "--db", place.db).code == 0
    assert cli("db", "import", lines, "--db", other).code == 0
    (best,) = cli("best", "gmm", "--db", other, "--json").json["records"]
    assert (best["best_s"], best["values"]) == (data["best_s"], data["values"])
    for form in ("steps", "llvm"):
        first = cli("show", data["record_id"], "--as", form, "--db", place.db).out
        assert cli("show", best["record_id"], "--as", form, "--db", other).out == first


def test_resuming_counts_records_as_trials(tuned: tuple[Place, dict[str, Any]], cli: Any, tmp_path: Path) -> None:
    place, data = tuned
    shutil.copy(place.db, tmp_path / "copy.db")
    words = ("tune", "gmm", "--shape", SHAPE, "--threads", 1, "--db", tmp_path / "copy.db", "--resume", "--json")
    again = cli(*words, "--trials", 6)
    assert (again.code, again.json["trials"], again.json["resumed"]) == (0, 6, 6)
    with Database(tmp_path / "copy.db") as database:
        assert len(database.runs()) == 2
    assert again.json["best_s"] > 0
    assert again.json["record_id"] in range(1, 7)
    assert count_outcomes(tmp_path / "copy.db") == count_outcomes(place.db)
    assert data["trials"] == 6


# Files for others


C_MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "{header}"
int main(void) {{
    static float X[{x}], Y[{y}], out[{out}];
    void *workspace = aligned_alloc(64, ({macro}_WORKSPACE_BYTES + 63) / 64 * 64 + 64);
    if (fread(X, 4, {x}, stdin) != {x} || fread(Y, 4, {y}, stdin) != {y}) return 2;
    int status = {symbol}(X, Y, out, workspace);
    fwrite(out, 4, {out}, stdout);
    return status;
}}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_an_exported_kernel_runs_in_a_c_program(tuned: tuple[Place, dict[str, Any]], cli: Any, tmp_path: Path) -> None:
    place, data = tuned
    made = cli("export", data["record_id"], "--kind", "object", "--out", tmp_path / "k.o", "--db", place.db, "--json")
    assert made.json["files"] == [str(tmp_path / "k.o"), str(tmp_path / "k.h")]
    symbol = f"autosched_gmm_{data['record_id']}"
    numbers = {"x": N * K, "y": K * M, "out": N * M}
    text = C_MAIN.format(header="k.h", symbol=symbol, macro=symbol.upper(), **numbers)
    (tmp_path / "main.c").write_text(text)
    flags = ("-std=c11", "-Wall", "-Wextra", "-Werror")
    libraries = ("-lm", "-lpthread")
    command = ["cc", *flags, "-o", tmp_path / "main", tmp_path / "main.c", tmp_path / "k.o", *libraries]
    subprocess.run(command, check=True)
    X, Y = (np.random.default_rng(n).standard_normal(s).astype(np.float32) for n, s in ((1, (N, K)), (2, (K, M))))
    done = subprocess.run([tmp_path / "main"], input=X.tobytes() + Y.tobytes(), capture_output=True, check=True)
    out = np.frombuffer(done.stdout, np.float32).reshape(N, M)
    np.testing.assert_allclose(out, X @ Y, rtol=1e-4, atol=1e-4)

    assert cli("export", data["record_id"], "--out", tmp_path / "k.so", "--db", place.db).code == 0
    function = ctypes.CDLL(str(tmp_path / "k.so"))[symbol]
    result, scratch = np.zeros((N, M), np.float32), np.zeros(1 << 20, np.uint8)
    aligned = scratch.ctypes.data + -scratch.ctypes.data % 64
    assert function(*(ctypes.c_void_p(a.ctypes.data) for a in (X, Y, result)), ctypes.c_void_p(aligned)) == 0
    np.testing.assert_array_equal(result, out)


def test_exports_that_cannot_be(
    tuned: tuple[Place, dict[str, Any]], cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, data = tuned
    words = ("export", data["record_id"], "--db", place.db)
    header = cli(*words, "--kind", "c-header", "--out", tmp_path / "only.h")
    assert (header.code, [p.name for p in tmp_path.glob("[!.]*")]) == (0, ["only.h"])
    for kind in ("cuda", "cubin", "opencl"):
        refused = cli(*words, "--kind", kind)
        assert (refused.code, "a schedule for a processor" in refused.err) == (2, True)
    assert cli(*words, "--kind", "object", "--out", tmp_path / "no" / "k.o").code == 2
    assert "is the header's name" in cli(*words, "--kind", "object", "--out", tmp_path / "k.h").err
    monkeypatch.setenv("PATH", "")
    refused = cli(*words, "--out", tmp_path / "k.so")
    assert refused.code == 2
    assert "--kind object needs no linker" in refused.err
    assert [p.name for p in tmp_path.glob("[!.]*")] == ["only.h"]
    assert list(tmp_path.glob("*.part")) == []


# Interruptions


def test_killed_again_and_again_nothing_acknowledged_is_lost(place: Place) -> None:
    rng = np.random.default_rng()  # the moment is different each time
    words = ("tune", "gmm", "--shape", SHAPE, "--threads", 1, "--trials", 18, "--db", place.db, "--resume")
    for n in (1, 6):
        process = place.start(*words)
        told = wait_for_trials(process, n)
        time.sleep(rng.uniform(0.0, 0.3))
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        place.wait_for_no_process()
        assert count_outcomes(place.db) >= told
    recorded = count_outcomes(place.db)
    done = place.run(*words, "--json")
    data = json.loads(done.stdout)
    assert (done.returncode, data["trials"], data["resumed"]) == (0, 18, recorded)
    with Database(place.db) as database:
        assert database.check().ok


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_polite_end_saves_and_shows_the_best(place: Place, number: signal.Signals) -> None:
    process = place.start("tune", "gmm", "--shape", SHAPE, "--threads", 1, "--trials", 500, "--db", place.db)
    told = wait_for_trials(process, 4)
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (130, "")
    assert "interrupted; everything measured so far is saved" in out
    assert "  best " in out
    assert count_outcomes(place.db) >= told
    place.wait_for_no_process()
    with Database(place.db) as database:
        assert [run.status for run in database.runs()] == ["interrupted"]
    assert list((place.home / ".cache" / "autosched" / "runs").iterdir()) == []


@pytest.mark.parametrize("gap_s", [0.0, 0.06])
def test_two_at_a_time_say_one_thing_and_leave_nothing(place: Place, gap_s: float) -> None:
    process = place.start("tune", "gmm", "--shape", SHAPE, "--threads", 1, "--trials", 500, "--db", place.db)
    told = wait_for_trials(process, 4)
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(gap_s)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert err in (
        "",
        *(f"autosched: error: interrupted{n}; everything measured so far is saved\n" for n in ("", " twice")),
    )
    assert count_outcomes(place.db) >= told
    assert list((place.home / ".cache" / "autosched" / "runs").iterdir()) == []
    place.wait_for_no_process()


def test_ctrl_c_on_a_terminal_leaves_it_as_it_was(place: Place) -> None:
    import pty
    import termios

    terminal, side = pty.openpty()
    termios.tcsetwinsize(side, (30, 120)) if hasattr(termios, "tcsetwinsize") else None
    before = termios.tcgetattr(side)
    process = subprocess.Popen(
        place.command("tune", "gmm", "--shape", SHAPE, "--threads", 1, "--trials", 500, "--db", place.db),
        env={**place.environment, "TERM": "xterm", "COLUMNS": "120"},
        stdin=side, stdout=side, stderr=side, start_new_session=True,
    )  # fmt: skip
    shown: list[bytes] = []
    seen = threading.Event()

    def read() -> None:
        while True:
            try:
                data = os.read(terminal, 65536)
            except OSError:
                return
            shown.append(data)
            if b"GFLOP/s" in data:
                seen.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    assert seen.wait(PATIENCE_S)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    assert termios.tcgetattr(side) == before
    os.close(side)
    reader.join(10.0)
    os.close(terminal)
    text = b"".join(shown).decode()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")  # the cursor is back
    assert "Traceback" not in text
    assert text.endswith("--resume goes on\r\n")
    place.wait_for_no_process()


def test_two_tuners_share_a_database_and_the_same_seed_means_the_same_search(place: Place) -> None:
    words = ("tune", "gmm", "--shape", SHAPE, "--threads", 1, "--trials", 6, "--db", place.db, "--json")
    both = [place.start(*words), place.start(*words)]
    answers = [process.communicate(timeout=PATIENCE_S) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert [json.loads(out)["trials"] for out, _ in answers] == [6, 6]
    assert count_outcomes(place.db) == 12
    with Database(place.db) as database:
        (run, other) = database.runs()
        assert run.workload == other.workload
        assert len(database.records(run.workload, run.target, run.threads)) == 6  # each was tried by both
        assert database.check().ok


# A user's own operators


def test_operators_from_a_file(cli: Any, tmp_path: Path) -> None:
    path, db = tmp_path / "own.py", tmp_path / "records.db"
    path.write_text(OWN)
    for name, setting in (("rms_norm", "M=20"), ("gelu_matmul", "K=24")):
        spec = f"{path}:{name}"
        words = ("--set", setting, "--threads", 1, "--trials", 2, "--db", db)
        data = cli("tune", spec, *words, "--json").json
        assert (data["workload"], data["verified"], data["failed"]) == (spec, True, 0)
        record = data["record_id"]
        assert cli("show", record, "--db", db).code == 2
        assert "for " in cli("show", record, "--db", db, "--workload", spec).out
        assert cli("verify", record, "--db", db, "--workload", spec).code == 0
        out = tmp_path / f"{name}.o"
        assert cli("export", record, "--db", db, "--workload", spec, "--kind", "object", "--out", out).code == 0
        assert f"autosched_{name}_{record}" in out.with_suffix(".h").read_text()


@at.workload
def matmul_relu(M: int = 32, N: int = 24, K: int = 40, dtype: str = "float32") -> Tensor:
    A, B = te.placeholder((M, K), dtype, name="A"), te.placeholder((K, N), dtype, name="B")
    k = te.reduce_axis(K, name="k")
    C = te.compute((M, N), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    result: Tensor = te.compute((M, N), lambda i, j: te.max(C[i, j], 0.0), name="D")
    return result


def test_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    db = tmp_path / "records.db"
    result = at.tune(matmul_relu, trials=6, threads=2, db=db)
    A, B = (np.random.default_rng(n).standard_normal(s).astype(np.float32) for n, s in ((1, (32, 40)), (2, (40, 24))))
    expected = np.maximum(A @ B, 0)
    assert result.curve[0].trial == 1
    assert len(result.records) == 6
    out = np.empty_like(expected)
    for kernel in (result.compile(), at.compile(matmul_relu, threads=2, db=db), at.compile(matmul_relu, threads=1)):
        np.testing.assert_allclose(kernel(A, B), expected, rtol=1e-4, atol=1e-4)
        assert kernel(A, B, out=out) is out
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
        out.fill(np.nan)
    assert result.record_id is not None
    files = at.export(result.record_id, db, "object", tmp_path / "k.o", workload=matmul_relu)
    assert [f.name for f in files] == ["k.o", "k.h"]
    assert at.explain(result.record_id, db, workload=matmul_relu)["flops"] == 2 * 32 * 24 * 40 + 32 * 24


# Without measuring


def test_without_running_anything(cli: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ("tune", "gmm", "--shape", SHAPE, "--no-run", "--out-dir", out, "--db", tmp_path / "records.db")
    data = cli(*words, "--json").json
    assert (data["verified"], data["trials"], data["record_id"], data["first_result_s"]) == (False, 0, None, None)
    assert data["best_s"] > 0
    assert "gmm-1.ll" in [p.name for p in out.iterdir()]
    assert not (tmp_path / "records.db").exists()
    assert "NOT verified" in cli(*words).out
    foreign = "llvm -mcpu=neoverse-n1"
    assert cli(*words, "--target", foreign, "--json").json["target"] == foreign
    assert 'target-cpu"="neoverse-n1' in (out / "gmm-1.ll").read_text()
    assert cli(*words, "--target", "cuda -arch=sm_80").code == 0
    assert '"C"' in (out / "gmm-1.cu").read_text()


# A command within this process


@pytest.fixture
def cli(cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    (tmp_path / ".cache").mkdir()
    return cli
