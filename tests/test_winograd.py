"""Winograd from outside: asked for, recorded apart, held to its own error, shown, checked again and exported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched import te
from autosched.cli.tune import summary
from autosched.errors import UsageError
from autosched.schedule import largest_tile, steps_from_json
from autosched.target import parse_target
from autosched.te import Tensor
from autosched.te.operators.registry import WORKLOADS, build
from autosched.te.rewrites.collapse import collapse
from autosched.tuner.policy import SearchSetup
from search_spaces import cpu
from search_spaces.space import Sketch

H, W, CI, CO = 9, 7, 20, 18


@at.workload
def smoothed(H: int = H, W: int = W, CI: int = CI, CO: int = CO) -> Tensor:
    """A user's own 3x3 convolution without padding, and what follows it."""
    x, w = te.placeholder((H, W, CI), name="x"), te.placeholder((3, 3, CI, CO), name="w")
    bias = te.placeholder((CO,), name="bias")
    kh, kw, c = te.reduce_axis(3, "kh"), te.reduce_axis(3, "kw"), te.reduce_axis(CI, "c")
    y = te.compute(
        (H - 2, W - 2, CO), lambda i, j, o: te.sum(x[i + kh, j + kw, c] * w[kh, kw, c, o], axis=[kh, kw, c]), name="y"
    )
    result: Tensor = te.compute((H - 2, W - 2, CO), lambda i, j, o: te.max(y[i, j, o] + bias[o], 0.0), name="z")
    return result


def arrays() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in ((H, W, CI), (3, 3, CI, CO), (CO,)))


def expected() -> Any:
    x, w, bias = (a.astype(np.float64) for a in arrays())
    taps = [(i, j) for i in range(3) for j in range(3)]
    found = sum(x[i : i + H - 2, j : j + W - 2] @ w[i, j] for i, j in taps)
    return np.maximum(found + bias, 0)


def by_winograd(sketches: tuple[Sketch, ...]) -> tuple[Sketch, ...]:
    return tuple(s for s in sketches if largest_tile(s.state.steps))


def some(sketches: tuple[Sketch, ...]) -> tuple[Sketch, ...]:
    """Three of Winograd's, of both tiles."""
    found = by_winograd(sketches)
    return (found[0], found[len(found) // 2], found[-1])


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A search of some of Winograd's sketches, in a database that has a search without as well."""
    db = tmp_path_factory.mktemp("winograd") / "records.db"
    at.tune(smoothed, trials=2, threads=1, db=db, search=SearchSetup(narrow=lambda sketches: sketches[:1]))
    return db, at.tune(smoothed, winograd=True, trials=4, threads=1, db=db, search=SearchSetup(narrow=some))


def test_what_is_found_computes_the_convolution(tuned: Any) -> None:
    db, result = tuned
    assert (result.winograd, result.verified, result.failed) == (True, True, 0)
    assert result.to_json()["winograd"] is True
    for kernel in (result.compile(), at.compile(smoothed, winograd=True, threads=1, db=db)):
        np.testing.assert_allclose(kernel(*arrays()), expected(), rtol=1e-3, atol=1e-3)


def test_nobody_gets_it_who_does_not_ask(tuned: Any, cli: Any) -> None:
    db, result = tuned
    (asked,) = at.best(smoothed, winograd=True, threads=1, db=db)
    plain = at.best(smoothed, threads=1, db=db, n=9)
    assert asked.id == result.record_id
    assert largest_tile(steps_from_json(asked.steps))
    assert plain
    assert not any(largest_tile(steps_from_json(r.steps)) for r in plain)
    rows = cli("best", "--db", db, "--json").json["records"]
    assert [row["record_id"] for row in rows] == [plain[0].id]
    (row,) = cli("best", "--winograd", "--db", db, "--json").json["records"]
    assert (row["record_id"], row["winograd"]) == (asked.id, True)
    assert "smoothed winograd" in cli("best", "--winograd", "--db", db).out


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_search_space_has_it_by_default(name: str) -> None:
    if name == "winograd":  # the operator of that name is a user's own choice of stages
        return
    state = cpu.sketches(collapse(build(name)[0]), parse_target("llvm -mcpu=haswell"), 2)
    assert not by_winograd(state)


def test_the_search_space_has_both_where_it_is_accepted() -> None:
    dag = collapse(build("conv2d")[0].with_winograd())
    found = [largest_tile(s.state.steps) for s in cpu.sketches(dag, parse_target("cpu"), 2)]
    assert set(found) == {0, 2, 4}


def test_show_verify_and_explain(tuned: Any) -> None:
    db, result = tuned
    assert at.show(result.record_id, db, workload=smoothed).startswith('["Winograd", "y"')
    assert "y.product" in at.show(result.record_id, db, "ir", workload=smoothed)
    assert at.verify(result.record_id, db, workload=smoothed).seconds > 0
    assert "3 x 3" in str(at.explain(result.record_id, db, workload=smoothed)["winograd"])


def test_records_go_to_another_database_and_come_back(tuned: Any, cli: Any, tmp_path: Path) -> None:
    db, result = tuned
    assert cli("db", "export", tmp_path / "all.jsonl", "--db", db).code == 0
    assert cli("db", "import", tmp_path / "all.jsonl", "--db", tmp_path / "other.db").code == 0
    (there,) = at.best(smoothed, winograd=True, threads=1, db=tmp_path / "other.db")
    (here,) = at.best(smoothed, winograd=True, threads=1, db=db)
    assert there.steps == here.steps
    again = at.tune(smoothed, winograd=True, trials=4, threads=1, db=db, search=SearchSetup(narrow=some), resume=True)
    assert again.resumed == result.trials


LOADS = """
import ctypes, sys
import numpy as np
library = ctypes.CDLL(sys.argv[1])
arrays = [np.load(f"{sys.argv[2]}/{i}.npy") for i in range(3)]
out = np.empty(%s, np.float32)
workspace = np.empty(%d + 64, np.uint8)
place = workspace.ctypes.data + -workspace.ctypes.data %% 64
pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*arrays, out)]
assert library["%s"](*pointers, ctypes.c_void_p(place)) == 0
np.save(f"{sys.argv[2]}/out.npy", out)
"""


def test_an_exported_library_needs_no_autosched(tuned: Any, tmp_path: Path) -> None:
    db, result = tuned
    at.export(result.record_id, db, "so", tmp_path / "k.so", workload=smoothed)
    for i, array in enumerate(arrays()):
        np.save(tmp_path / f"{i}.npy", array)
    symbol = f"autosched_smoothed_{result.record_id}"
    header = (tmp_path / "k.h").read_text()
    n_bytes = int(header.partition("_WORKSPACE_BYTES ")[2].split()[0])
    code = LOADS % ((H - 2, W - 2, CO), n_bytes, symbol)
    subprocess.run([sys.executable, "-c", code, tmp_path / "k.so", tmp_path], check=True, cwd=tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "out.npy"), expected(), rtol=1e-3, atol=1e-3)


def test_the_command_line_asks_for_it(cli: Any, tmp_path: Path) -> None:
    words = ("tune", "conv2d", "--shape", "1,6,6,4,8,3,1,1", "--winograd", "--trials", "1", "--threads", "1")
    found = cli(*words, "--db", tmp_path / "r.db", "--json").json
    assert found["winograd"] is True
    assert found["verified"]


def test_the_next_command_finds_the_record(tuned: Any) -> None:
    text = summary(tuned[1])
    assert "smoothed --winograd" in text
    assert "Winograd's error is accepted" in text


def test_weights_are_transformed_ahead() -> None:
    kernel = at.compile(smoothed, winograd=True, weights=["w"], threads=1, db=None)
    x, w, bias = arrays()
    np.testing.assert_allclose(kernel.bind(w=w)(x, bias), expected(), rtol=1e-3, atol=1e-3)


def test_refusals() -> None:
    with pytest.raises(UsageError, match="matmul has no 3x3 convolution of stride 1"):
        at.compile("matmul", winograd=True)
    with pytest.raises(UsageError, match="for processors only"):
        at.tune("conv2d", winograd=True, target="cuda -arch=sm_80", search=SearchSetup(measure=False))
