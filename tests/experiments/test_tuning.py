"""The experiments' own logic, with answers put in where a run would give them."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from autosched.cli import options
from autosched.cli.tune import add_parser
from autosched.errors import UsageError
from autosched.te.operators.registry import WORKLOADS
from autosched.tuner.options import WorkloadOptions
from experiments import cost_model_quality, search_throughput, tuning
from experiments.tuning import BenchmarkCase, answer, parse_cases, write_results

ROOT = Path(__file__).resolve().parents[2]
ANSWER = {
    "shape": [1], "threads": 2, "best_s": 1e-4, "best_ci_s": [9e-5, 2e-4], "gflops": 50.0, "peak_gflops": 80.0,
    "fraction_of_peak": 0.625, "trials": 64, "failed": 3, "failures": {"wrong_result": 1, "hang": 2}, "verified": True,
    "wall_s": 8.0, "first_result_s": 2.0, "curve": [],
}  # fmt: skip


def test_cases_by_name_and_index():
    cases = parse_cases("c2d:1, gmm,layer_norm")
    assert cases == (BenchmarkCase("c2d", 1), *(BenchmarkCase("gmm", i) for i in range(4)), BenchmarkCase("layer_norm"))
    assert [c.label for c in cases[:2]] == ["c2d:1", "gmm:0"]
    assert cases[0].shape == WORKLOADS["c2d"].shapes[1]
    assert cases[-1].shape is None


def test_a_case_of_ones_own_shape():
    (case,) = parse_cases("matmul:333x777x64")
    assert (case.label, case.shape, case.index) == ("matmul:333x777x64", (333, 777, 64), None)
    (case,) = parse_cases("matmul:333x777x64@bfloat16")
    assert (case.label, case.shape, case.dtype) == ("matmul:333x777x64@bfloat16", (333, 777, 64), "bfloat16")
    assert [c.label for c in parse_cases("gmm:1@float16,softmax@float16")] == ["gmm:1@float16", "softmax@float16"]


@pytest.mark.parametrize(
    "text",
    [
        "c2d:4",
        "c2d:x",
        "matmul:3x",
        "matmul:3x-4x5",
        "relu:0",
        "nothing_like_it",
        "layer_norm:0",
        "gmm@",
        "gmm@float3",
        "",
    ],
)
def test_unknown_cases_are_refused(text):
    with pytest.raises(UsageError):
        parse_cases(text)


@pytest.mark.parametrize("text", ["", "no json", "3", '{"a": 1'])
def test_output_without_an_object_is_an_error(text):
    command = ["sh", "-c", 'printf "%s" "$0"; echo why >&2; exit 3', text]
    assert answer(command, 60.0)["error"] == {"class": "NoAnswer", "message": "exit code 3: why"}


def test_the_object_is_on_the_last_line():
    assert answer(["printf", 'noise\n{"best_s": 1}\n'], 60.0) == {"best_s": 1}
    assert answer(["sleep", "60"], 0.01)["error"]["class"] == "Timeout"


def test_a_command_ends_with_the_process_that_waits_for_it(tmp_path):
    """By SIGTERM, which a shell or a scheduler sends: a search that goes on would disturb whatever comes next."""
    file = tmp_path / "pid"
    code = f"from experiments.tuning import answer; answer(['sh', '-c', 'echo $$ > {file}; exec sleep 60'], 60.0)"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        while not (file.is_file() and file.read_text().endswith("\n")):
            assert process.poll() is None
            time.sleep(0.01)
        process.terminate()
    pid, end = int(file.read_text()), time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:  # until whoever inherits it has noticed
        time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def test_tune_asks_for_what_it_is_told(monkeypatch, tmp_path):
    seen = []

    def run(command, **_):
        seen.append(command)
        return tuning.subprocess.CompletedProcess(command, 0, json.dumps(ANSWER), "")

    monkeypatch.setattr(tuning.subprocess, "run", run)
    asked = WorkloadOptions(shape=(1, 512, 32, 512), threads=2, batch=16)
    found = tuning.tune("gmm", asked, trials=8, database=tmp_path / "a.db", timeout_s=1.0)
    assert found == ANSWER
    words = " ".join(seen[0])
    for part in ("tune gmm --json", "--trials 8", "--shape 1,512,32,512", "--batch 16", "--threads 2", "--seed 0"):
        assert part in words


@pytest.mark.parametrize(
    "asked",
    [
        WorkloadOptions(),
        WorkloadOptions(shape=(1, 2, 3), batch=4, threads=2),
        WorkloadOptions(settings={"M": 3, "layout": "NCHW"}, dtype="float64", target="llvm -mcpu=haswell"),
        WorkloadOptions(weights=("W", "bias"), winograd=True, target="cuda"),
    ],
)
def test_the_command_asks_for_the_same(asked):
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["tune", "conv2d", *tuning.option_words(asked)])
    assert WorkloadOptions(**options.workload_keywords(args)) == replace(asked, settings=asked.settings or {})


def test_results_say_where_they_come_from(tmp_path):
    path = tmp_path / "deep" / "results.json"
    write_results(path, {"cases": []})
    document = json.loads(path.read_text())
    assert document["cases"] == []
    assert document["host"]["cpu_model"]
    assert list(path.parent.iterdir()) == [path]


def test_search_throughput_counts_what_it_judges(capsys):
    assert search_throughput.main(["--workload", "gmm", "--rows", "64", "--rounds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["candidates"] == 64 * found["sketches"]
    assert found["measurements_fitted"] == search_throughput.MEASUREMENTS
    assert set(found["us_per_candidate"]) == set(search_throughput.PHASES)
    assert all(found[name] > 0 for name in ("draft_per_s", "ranked_per_s", "sampled_per_s"))


@pytest.mark.parametrize(
    ("command", "words", "sentence"),
    [
        (search_throughput, "--workload foo", "there is no workload 'foo'"),
        (search_throughput, "--rows 0", "a whole number of at least 1 is needed"),
        (search_throughput, "--rounds 0", "a whole number of at least 1 is needed"),
        (cost_model_quality, "--db none.db", "there is no database at"),
        (cost_model_quality, f"--data {__file__}", "holds no measured programs"),
        (cost_model_quality, "--out .", ". is a directory; name a file in it"),
    ],
)
def test_commands_refuse_in_one_sentence_before_they_begin(command, words, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        command.main(words.split())
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
