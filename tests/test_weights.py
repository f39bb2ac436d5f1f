"""Weights from outside: searched, recorded apart, shown, checked again, exported to C and resumed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched import te
from autosched.errors import UsageError
from autosched.te import Tensor

M, N, K = 37, 21, 30


@at.workload
def layer(M: int = M, N: int = N, K: int = K) -> Tensor:
    X, W = te.placeholder((M, K), name="X"), te.placeholder((N, K), name="W")
    scale = te.placeholder((N,), name="scale")
    folded = te.compute((N, K), lambda j, k: W[j, k] * scale[j], name="folded")
    k = te.reduce_axis(K, name="k")
    C = te.compute((M, N), lambda i, j: te.sum(X[i, k] * folded[j, k], axis=k), name="C")
    result: Tensor = te.compute((M, N), lambda i, j: te.max(C[i, j], 0.0), name="Y")
    return result


def arrays() -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in ((M, K), (N, K), (N,)))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A search with weights, in a database that has one without as well."""
    db = tmp_path_factory.mktemp("weights") / "records.db"
    at.tune(layer, trials=2, threads=1, db=db)
    return db, at.tune(layer, weights=["scale", "W"], trials=4, threads=1, db=db)


def test_the_kernel_is_bound_to_its_weights(tuned: Any) -> None:
    db, result = tuned
    assert (result.weights, result.to_json()["weights"]) == (("W", "scale"), ["W", "scale"])
    assert (result.verified, result.failed) == (True, 0)
    X, W, scale = arrays()
    expected = np.maximum(X @ (W * scale[:, None]).T, 0)
    for kernel in (result.compile(), at.compile(layer, weights=["W", "scale"], threads=1, db=db)):
        bound = kernel.bind(W=W, scale=scale)
        np.testing.assert_allclose(bound(X), expected, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(kernel(X, W, scale), expected, rtol=1e-4, atol=1e-4)
    unmeasured = at.compile(layer, weights=["W"], threads=1, db=db)
    np.testing.assert_allclose(unmeasured.bind(W=W)(X, scale), expected, rtol=1e-4, atol=1e-4)


def test_records_are_those_of_another_task(tuned: Any, cli: Any) -> None:
    db, result = tuned
    (best,) = at.best(layer, weights=["W", "scale"], threads=1, db=db)
    (plain,) = at.best(layer, threads=1, db=db)
    assert best.id == result.record_id
    assert plain.workload != best.workload
    assert at.best(layer, weights=["W"], threads=1, db=db) == []
    rows = cli("best", "--db", db, "--json").json["records"]
    assert {row["record_id"]: row["weights"] for row in rows} == {best.id: ["W", "scale"], plain.id: []}
    (row,) = cli("best", "--weights", "scale,W", "--db", db, "--json").json["records"]
    assert row["record_id"] == best.id
    assert "layer weights=W,scale" in cli("best", "--db", db).out


def test_show_verify_and_explain(tuned: Any) -> None:
    db, result = tuned
    text = at.show(result.record_id, db, "ir", workload=layer)
    ahead, _, rest = text.partition("\nrun:\n")
    assert "prepare, once:" in ahead
    assert "folded[" in ahead
    assert "W[" not in rest.replace("folded", "")
    assert "@kernel.prepare(" in at.show(result.record_id, db, "llvm", workload=layer)
    assert at.verify(result.record_id, db, workload=layer).seconds > 0
    assert str(at.explain(result.record_id, db, workload=layer)["weights"]).startswith("W, scale")


def test_resuming_takes_the_records_of_this_task_alone(tuned: Any, tmp_path: Path) -> None:
    db, result = tuned
    copy = tmp_path / "copy.db"
    shutil.copy(db, copy)
    again = at.tune(layer, weights=["W", "scale"], trials=result.trials, threads=1, db=copy, resume=True)
    assert (again.resumed, again.trials) == (result.trials, result.trials)


C_MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "k.h"
int main(void) {{
    static float X[{x}], W[{w}], scale[{s}], out[{out}];
    void *workspace = aligned_alloc(64, ({macro}_WORKSPACE_BYTES + 63) / 64 * 64 + 64);
    void *packed = aligned_alloc(64, {macro}_PACKED_BYTES);
    if (fread(X, 4, {x}, stdin) != {x} || fread(W, 4, {w}, stdin) != {w} || fread(scale, 4, {s}, stdin) != {s}) return 2;
    int status = {symbol}_prepare(W, scale, packed, workspace);
    for (int i = 0; i < {w}; i++) W[i] = 0.0f / 0.0f;
    for (int i = 0; i < 2; i++) status |= {symbol}(X, out, packed, workspace);
    fwrite(out, 4, {out}, stdout);
    return status;
}}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_an_exported_kernel_prepares_once_in_a_c_program(tuned: Any, tmp_path: Path) -> None:
    db, result = tuned
    at.export(result.record_id, db, "object", tmp_path / "k.o", workload=layer)
    symbol = f"autosched_layer_{result.record_id}"
    numbers = {"x": M * K, "w": N * K, "s": N, "out": M * N}
    (tmp_path / "main.c").write_text(C_MAIN.format(symbol=symbol, macro=symbol.upper(), **numbers))
    flags = ("-std=c11", "-Wall", "-Wextra", "-Werror")
    files = (tmp_path / "main.c", tmp_path / "k.o")
    subprocess.run(["cc", *flags, "-o", tmp_path / "main", *files, "-lm", "-lpthread"], check=True)
    X, W, scale = arrays()
    given = b"".join(a.tobytes() for a in (X, W, scale))
    done = subprocess.run([tmp_path / "main"], input=given, capture_output=True, check=True)
    out = np.frombuffer(done.stdout, np.float32).reshape(M, N)
    np.testing.assert_allclose(out, np.maximum(X @ (W * scale[:, None]).T, 0), rtol=1e-4, atol=1e-4)


def test_names_are_a_list() -> None:
    with pytest.raises(UsageError, match=r"weights=\['W'\]"):
        at.compile(layer, weights="W")
