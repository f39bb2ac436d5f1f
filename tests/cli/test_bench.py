import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched import api
from autosched.cli import bench, peers
from autosched.errors import UsageError, VerificationError
from autosched.te.operators.registry import WORKLOADS, build, small_numbers
from autosched.te.reference.evaluate import evaluate
from tests.cli.fakes import FakeMatmul, result

SMALL = {
    "c1d": (2, 16, 4, 6, 3, 2, 1),
    "c2d": (2, 9, 9, 3, 5, 3, 2, 1),
    "c3d": (2, 5, 6, 7, 3, 4, 3, 2, 1),
    "gmm": (2, 5, 6, 7),
    "grp": (2, 8, 8, 8, 12, 3, 2, 1, 1, 4),
    "dil": (2, 12, 12, 3, 5, 3, 1, 2, 2),
    "dep": (2, 9, 9, 8, 3, 2, 1),
    "t2d": (2, 5, 5, 6, 7, 4, 2, 1),
    "cap": (2, 7, 7, 3, 5, 3, 2, 1),
    "nrm": (3, 5, 7),
    "sfm": (5, 9),
    "cbr": (2, 9, 9, 3, 5, 3, 2, 1),
    "tbg": (2, 6, 3, 4),
    "tbs": (2, 6, 3, 4),
    "matmul": (5, 6, 7),
    "batch_matmul": (2, 5, 6, 7),
    "dense": (5, 6, 7),
    "conv2d": (2, 9, 9, 4, 8, 3, 2, 1, 1, 2),
    "depthwise": (2, 9, 9, 4, 3, 2, 1),
    "winograd": (2, 9, 9, 4, 8, 1),
    "max_pool2d": (2, 9, 9, 4, 3, 2, 1),
    "avg_pool2d": (2, 9, 9, 4, 3, 2, 1, 0),
    "global_max_pool2d": (2, 5, 6, 4),
    "global_avg_pool2d": (2, 5, 6, 4),
    "batch_norm": (2, 4, 5, 3),
}
CASES = [
    (peer, name, layout)
    for peer, formulations in (("numpy", peers.NUMPY), ("torch", peers.TORCH), ("torch.prepacked", peers.PREPACKED))
    for name in formulations
    for layout in ("NHWC", "NCHW")[: 1 + ("layout" in WORKLOADS[name].args)]
]


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    return parser.parse_args(["bench", *words])


@pytest.mark.parametrize(("peer", "name", "layout"), CASES)
def test_peers_compute_the_same(peer: str, name: str, layout: str) -> None:
    if peers.needs_torch(peer):
        pytest.importorskip("torch")
    shape = SMALL.get(name) or tuple(small_numbers(WORKLOADS[name]).values())
    dag, spec = build(name, shape, {"layout": layout} if "layout" in WORKLOADS[name].args else {})
    arrays = bench.random_inputs([(t.name, t.shape, t.dtype) for t in dag.inputs])
    call = peers.PEERS[peer](name, spec["args"], arrays)
    assert call is not None
    inputs = {t.name: a for t, a in zip(dag.inputs, arrays, strict=True)}
    expected = evaluate(dag, inputs)[0].value.reshape(dag.outputs[0].public_shape)
    bench.check_same(name, expected, {peer: call})
    np.testing.assert_allclose(call.result(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "dtypes", [("int8", "int8"), ("uint8", "int8"), ("bfloat16", "bfloat16"), ("float32", "float32")]
)
def test_products_of_other_types(cli: Any, tmp_path: Path, dtypes: tuple[str, str]) -> None:
    """Those who compute something else, or have no operator for it, do not take part."""
    words = (
        "--dtype",
        dtypes[0],
        "--set",
        f"w_dtype={dtypes[1]}",
        "--shape",
        "9,17,33",
        "--trials",
        "1",
        "--threads",
        "1",
    )
    answer = cli("bench", "matmul", *words, "--db", tmp_path / "r.db", "--json")
    assert (answer.code, answer.err) == (0, "")
    present = answer.json["cases"][0]["peers"]
    assert "numpy" in present
    assert ("torch" in present) == (dtypes[0] == "float32" and peers.has_torch())


def test_formulations_are_those_of_workloads() -> None:
    assert set(peers.TORCH) <= set(WORKLOADS)
    assert set(peers.NUMPY) <= set(WORKLOADS)


def test_unknown_and_missing_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no peer 'jax'"):
        peers.find_peers(["numpy", "jax"])
    monkeypatch.setattr(peers, "has_torch", lambda: False)
    with pytest.raises(UsageError, match="torch is not installed"):
        peers.find_peers(["torch"])


def test_blocks_alternate_and_the_median_counts() -> None:
    now, order = [0.0], []

    def contestant(name: str, seconds: float) -> Any:
        def run() -> None:
            order.append(name)
            now[0] += seconds

        return run

    runs = {"a": contestant("a", 1.0), "b": contestant("b", 3.0)}
    seconds = bench.time_interleaved(runs, rounds=4, block_s=0.5, clock=lambda: now[0])
    assert seconds == {"a": 1.0, "b": 3.0}
    assert order[-8:] == ["a", "b", "b", "a", "a", "b", "b", "a"]


def test_blocks_are_filled() -> None:
    now = [0.0]
    calls = [0]

    def run() -> None:
        calls[0] += 1
        now[0] += 1e-3

    bench.time_interleaved({"a": run}, rounds=1, block_s=0.05, clock=lambda: now[0])
    assert 100 <= calls[0] <= 200  # two blocks of 50 and the way there


def test_a_peer_that_computes_something_else_is_refused() -> None:
    ours = np.ones((2, 2), np.float32)
    for theirs in (np.ones((2, 3)), np.full((2, 2), 1.1), np.full((2, 2), np.nan)):
        call = peers.PeerCall(lambda: None, lambda theirs=theirs: theirs)
        with pytest.raises(VerificationError):
            bench.check_same("w", ours, {"peer": call})


def test_cases() -> None:
    everything = bench.choose_cases(options(), WORKLOADS)
    assert [c.workload for c in everything] == [w.name for w in WORKLOADS.values() if w.shapes]
    assert [c.shape for c in bench.choose_cases(options("gmm"), WORKLOADS)] == list(WORKLOADS["gmm"].shapes)
    (case,) = bench.choose_cases(options("conv2d", "--set", "layout=NCHW", "--set", "stride=2"), WORKLOADS)
    assert case.shape is None
    assert (case.params["layout"], case.params["stride"], case.params["pad"]) == ("NCHW", 2, 1)
    (case,) = bench.choose_cases(options("c2d", "--shape", "1,9,9,3,5,3,2,1"), WORKLOADS)
    assert (case.params["H"], case.params["stride"]) == (9, 2)


def test_bench_prints_one_object(cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def tune(workload: str, **keywords: Any) -> Any:
        seen.append(keywords)
        return result(kernel=FakeMatmul)

    monkeypatch.setattr(api, "tune", tune)
    monkeypatch.setattr(bench, "BLOCK_S", 1e-4)
    monkeypatch.setattr(bench, "time_interleaved", lambda runs: {name: 2.0 + len(name) for name in runs})
    for name in bench.THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    words = ("bench", "matmul", "--shape", "4,5,3", "--peers", "numpy", "--threads", "2", "--db", tmp_path / "r.db")
    answer = cli(*words, "--json")
    assert answer.json == {
        "schema_version": 1,
        "cases": [
            {
                "workload": "matmul",
                "shape": [4, 5, 3],
                "threads": 2,
                "ours_s": 6.0,
                "peers": {"numpy": 7.0},
                "record_id": 17,
            }
        ],
        "geomean_against_best_peer": pytest.approx(7 / 6),
    }
    assert seen[0]["resume"]
    assert seen[0]["db"] == tmp_path / "r.db"
    assert "matmul 4,5,3  ours 6.00 s  numpy 7.00 s (1.17x)" in cli(*words).out
