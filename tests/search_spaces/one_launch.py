"""Kernels that compute a whole graph in one launch, against the reference."""

from __future__ import annotations

from collections.abc import Iterable

from autosched import te
from autosched.codegen import build_source
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from tests.codegen import cuda, opencl
from tests.codegen.gpu import TARGETS
from tests.search_spaces.gpu_candidates import Drawn


def check_one_launch(dag: te.ComputeDAG, drawn: Iterable[Drawn], runs: int, kind: str = "cuda") -> None:
    """Up to `runs` candidates of each sketch are one kernel without workspace, and right."""
    inputs = make_inputs(dag, 0, "normal")
    references = evaluate(dag, inputs)
    for one in drawn:
        assert len(one.legal), f"no row is legal; the first breaks {', '.join(one.broken)}"
        for values in one.candidates(runs):
            source = build_source(one.func, values, TARGETS[kind])
            assert len(source.launches) == 1
            assert not source.workspace
            outputs = (cuda if kind == "cuda" else opencl).run(source, one.func, inputs)
            for tensor, reference in zip(dag.outputs, references, strict=True):
                seen = outputs[tensor.name].reshape(tensor.public_shape)
                assert within(reference, seen).all(), f"{values}\n{source.text}"
