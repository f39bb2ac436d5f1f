"""Kernels that compute a whole graph in one launch, against the reference."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from autosched import te
from autosched.codegen import build_source
from autosched.codegen.c.source import GpuSource
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from tests.codegen.gpu import TARGETS, run
from tests.search_spaces.gpu_candidates import Drawn, check_candidates


def check_one_launch(dag: te.ComputeDAG, drawn: Iterable[Drawn], runs: int, kind: str = "cuda") -> None:
    """Up to `runs` candidates of each sketch are one kernel without workspace, and right."""

    def look(source: GpuSource) -> None:
        assert len(source.launches) == 1
        assert not source.workspace

    check_candidates(dag, drawn, TARGETS[kind], runs, look)


def check_rows_without_a_first_block(dag: te.ComputeDAG, one: Drawn) -> None:
    """Of a mask `mask` [24, 70] the last four columns alone are kept, so that the maximum is -inf in a first block; of
    one row none is."""
    inputs = make_inputs(dag, 0, "normal")
    kept = np.zeros((24, 70), bool)
    kept[:, 66:] = True
    kept[5] = False
    inputs["mask"] = kept
    (reference,) = evaluate(dag, inputs)
    source = build_source(one.func, next(one.candidates(1)), TARGETS["cuda"])
    (seen,) = run(source, one.func, inputs).values()
    assert np.isnan(seen[5]).all()
    rows = np.arange(24) != 5
    assert within(reference, seen)[rows].all()
