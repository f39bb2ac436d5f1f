"""`autosched bench` of networks: who takes part, and what the rows say."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched import api
from autosched.cli.network import bench
from autosched.cli.network.bench import PeerProcess, relative_error
from autosched.cli.network.peers import why_missing
from tests.graph import networks

MODULE = """
import torch

def network(width=5):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, width), torch.nn.ReLU()).eval(), (torch.ones(2, 3),)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 2)
    monkeypatch.setattr(bench, "BLOCK_S", 0.001)
    monkeypatch.setattr(bench, "REST_S", 0.0)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    api.load(networks.perceptron(), threads=1).save(tmp_path / "net.asc")
    return tmp_path / "net.asc"


def test_a_network_without_peers_is_timed_alone(cli: Any, saved):
    answer = cli("bench", saved, "--threads", "1", "--json")
    assert (answer.code, answer.err) == (0, "")
    (row,) = answer.json["cases"]
    assert (row["model"], row["batch"], row["threads"]) == (str(saved), 2, 1)
    assert row["ours_s"] > 0.0
    assert row["peers"] == {}
    assert set(row["missing"]) == {"torch", "inductor", "onnxruntime", "openvino"}
    assert row["intervals"]["ours"][0] <= row["ours_s"] <= row["intervals"]["ours"][1]
    assert answer.json["geomean_against_best_peer"] is None


@pytest.mark.slow
def test_a_torch_module_beside_its_peers(cli: Any, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    (tmp_path / "nets.py").write_text(MODULE)
    words = ("bench", f"{tmp_path / 'nets.py'}:network", "--set", "width=3", "--threads", "1")
    answer = cli(*words, "--peers", "torch,onnxruntime", "--json")
    assert (answer.code, answer.err) == (0, "")
    (row,) = answer.json["cases"]
    assert set(row["peers"]) == {"torch", "onnxruntime"}
    assert row["missing"] == {}
    assert row["loaded"]["onnxruntime"]["version"]


def test_other_results_and_lost_processes_take_no_part(tmp_path):
    assert relative_error(np.array([3.0, 4.5]), np.array([3.0, 4.0])) == pytest.approx(0.1)
    for name, wide in (("ours", (1.0, 2.0)), ("other", (1.0, 2.1)), ("same", (1.0, 2.0)), ("longer", (1.0, 2.0, 3.0))):
        np.savez(tmp_path / f"{name}.npz", np.array(wide))
    assert bench._mismatch({}, tmp_path, "same", 2e-3) == ""
    assert "its results differ from ours by 0.0447" in bench._mismatch({}, tmp_path, "other", 2e-3)
    assert bench._mismatch({}, tmp_path, "other", bench._tolerance({"is_quantised": True})) == ""
    assert bench._tolerance({"is_quantised": False}) < 0.0447
    assert bench._mismatch({}, tmp_path, "longer", 1.0) == "its results have other shapes"
    process = PeerProcess(1)
    try:
        assert "KeyError" in process.ask({"op": "enter"}, 60.0)["reason"]
        os.kill(process._process.pid, signal.SIGSTOP)
        assert process.ask({"op": "time", "block_s": 0.1}, 0.2)["reason"].startswith(
            "its process gave no answer within 0.2 s"
        )
    finally:
        process.close()
    assert process.ask({"op": "time"}, 1.0)["reason"].startswith("its process ended with")


def test_files_are_not_for_torch(monkeypatch):
    monkeypatch.setattr("autosched.cli.network.peers.find_spec", lambda _: object())
    assert why_missing("torch", is_module=False) == "it takes FILE.py:FUNCTION, a torch module, and no files"
    assert why_missing("openvino", is_module=False) is None
    monkeypatch.setattr("autosched.cli.network.peers.find_spec", lambda _: None)
    assert "pip install 'autosched[peers]'" in (why_missing("onnxruntime", is_module=True) or "")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("bench {saved} --peers numpy", "there is no peer 'numpy' of networks: --peers takes torch, inductor"),
        ("bench {saved} --batch 2", "--shape, --batch and --dtype are for workloads"),
        ("bench {saved} --mcpu haswell", "leave --mcpu out"),
        ("bench {saved} --threads 1,0", "a whole number of at least 1 is needed"),
        ("bench {saved} matmul", "matmul is no network"),
        ("bench matmul --threads 1,2", "several numbers of threads are for networks"),
        ("bench matmul --size N=1", "--size is for networks"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_timed(cli: Any, saved, words, reason):
    answer = cli(*words.format(saved=saved).split())
    assert (answer.code, answer.out) == (2, "")
    assert reason in answer.err
