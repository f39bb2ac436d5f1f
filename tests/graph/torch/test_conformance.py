"""Some of the listed cases of torch's own samples; all of them by `python -m tests.graph.torch.conformance`."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

EVERY = 97  # of the listed cases one is tried
COMPILED = ("addmm:float32", "cumsum:int64", "logical_xor:bool", "nn.functional.layer_norm:float32", "where:int64")


@pytest.fixture(scope="module")
def conformance():
    from tests.graph.torch import conformance

    return conformance


def test_some_listed_cases_pass(conformance):
    names = set(conformance.listed()[::EVERY])
    found = {case.name: conformance.outcome_of(case) for case in conformance.all_cases() if case.name in names}
    assert set(found) == names
    assert {outcome.kind for outcome in found.values()} == {conformance.PASSED}, found


def test_some_listed_cases_pass_as_kernels(conformance):
    from autosched.executor.compile_graph import compile_graph

    def by_kernels(graph, inputs):
        results = compile_graph(graph, threads=1)(*inputs.values())
        return dict(zip(graph.outputs, results if isinstance(results, tuple) else (results,), strict=True))

    assert set(conformance.listed()) >= set(COMPILED)
    cases = [case for case in conformance.all_cases() if case.name in COMPILED]
    conformance.SAMPLES, before = 1, conformance.SAMPLES
    try:
        outcomes = {case.name: conformance.outcome_of(case, by_kernels) for case in cases}
    finally:
        conformance.SAMPLES = before
    assert {outcome.kind for outcome in outcomes.values()} == {conformance.PASSED}, outcomes
