"""The networks of the experiments, at reduced sizes: compiled from PyTorch and from ONNX, against float64 and eager."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from autosched.executor.compile_graph import compile_graph  # noqa: E402
from autosched.executor.load import load_network  # noqa: E402
from autosched.graph.interpret import interpret  # noqa: E402
from experiments.networks.models import NETWORKS, build  # noqa: E402

ROUNDING = 1e-6  # of the root mean square: what any order of additions in float32 may come to
Arrays = list[np.ndarray[Any, Any]]


def arrays(results: Any) -> Arrays:
    return [t.numpy() for t in (results if isinstance(results, tuple) else (results,))]


def rms(array: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64))))


def error(got: Sequence[np.ndarray[Any, Any]], want: Sequence[np.ndarray[Any, Any]]) -> float:
    """The largest of all outputs: rms(got - want) / rms(want)."""
    return max(rms(g.astype(np.float64) - w) / rms(w) for g, w in zip(got, want, strict=True))


@lru_cache(maxsize=1)
def case(name: str) -> tuple[Any, tuple[Any, ...], Arrays, Arrays]:
    """(module, inputs, results of eager in float32, in float64)."""
    module, inputs = build(name, reduced=True)
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    with torch.no_grad():
        return module, inputs, arrays(module(*inputs)), arrays(copy.deepcopy(module).double()(*wide))


def exported(module: Any, inputs: Sequence[Any], folder: Path) -> Path:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    with torch.no_grad():
        torch.onnx.export(module, tuple(inputs), dynamo=True, verbose=False).save(str(folder / "model.onnx"))
    return folder / "model.onnx"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("origin", ["torch", "onnx"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_as_exact_as_eager(name, origin, tmp_path):
    module, inputs, eager, exact = case(name)
    graph, _ = load_network(module if origin == "torch" else exported(module, inputs, tmp_path), inputs)
    bound = max(4 * error(eager, exact), ROUNDING)
    given = dict(zip(graph.inputs, arrays(inputs), strict=True))
    reference = interpret(graph, given)
    assert error([reference[name] for name in graph.outputs], exact) <= bound
    got = compile_graph(graph, threads=2)(**given)
    assert error(got if isinstance(got, tuple) else (got,), exact) <= bound
