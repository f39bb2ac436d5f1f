"""What users import: names, signatures in full, one sentence for a misspelt keyword, types of results."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autosched as at
from autosched.errors import AutoschedError, UsageError
from autosched.executor.compile_options import CompileKeywords
from autosched.inspection import record
from tests.graph import networks

FUNCTIONS = [name for name in at.__all__ if inspect.isfunction(getattr(at, name))]
MISSPELT = {
    "best": "shap", "compile": "chek_indices", "explain": "workloads", "export": "kinds", "load": "thread",
    "load_dynamic": "limit", "plan": "winogard", "show": "as", "tune": "budget", "tune_in_background": "budget",
    "verify": "sede",
}  # fmt: skip


def test_every_name_is_there() -> None:
    assert len(at.__all__) <= 30
    assert [name for name in at.__all__ if not hasattr(at, name)] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_signatures_are_shown_in_full(name: str) -> None:
    parameters = inspect.signature(getattr(at, name)).parameters.values()
    assert [p.name for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)] == []
    assert getattr(at, name).__doc__


@pytest.mark.parametrize("name", ["load", "load_dynamic"])
def test_options_have_the_defaults_of_the_record(name: str) -> None:
    parameters = inspect.signature(getattr(at, name)).parameters
    assert {f.name: f.default for f in fields(at.CompileOptions)} == {
        f.name: parameters[f.name].default for f in fields(at.CompileOptions)
    }
    assert set(CompileKeywords.__annotations__) == {f.name for f in fields(at.CompileOptions)}


@pytest.mark.parametrize("name", MISSPELT)
def test_a_misspelt_keyword_is_one_sentence_with_the_nearest(name: str) -> None:
    function: Any = getattr(at, name)
    with pytest.raises(UsageError, match=rf"^{name} has no keyword '{MISSPELT[name]}'; did you mean \w+\?$"):
        function("matmul", **{MISSPELT[name]: 1})


def test_what_is_of_records_is_refused_of_networks_and_the_other_way_round() -> None:
    graph = networks.perceptron((3, 4))
    for call, sentence in (
        (lambda: at.verify(graph, seed=3), "verify of networks has no seed"),
        (lambda: at.verify(1, locate=True), "verify of records has no locate"),
        (lambda: at.show(graph, workload="matmul"), "show of networks has no workload"),
        (lambda: at.show(1, sizes={"n": 1}), "show of records has no sizes"),
        (lambda: at.explain(graph, target="cpu"), "explain of networks has no target"),
    ):
        with pytest.raises(UsageError, match=sentence):
            call()


def test_a_form_of_a_record_is_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[object, str]] = []
    monkeypatch.setattr(record, "show", lambda what, db, form, **options: seen.append((db, form)))
    at.show(1, "llvm")
    at.show(1, "records.db", "ir")
    at.show(1, as_="asm", db="llvm")
    at.show(1)
    assert seen == [(None, "llvm"), ("records.db", "ir"), ("llvm", "asm"), (None, "steps")]


@pytest.mark.parametrize("wrong", [{"records": 1}, {"winograd": "yes"}, {"target": 3}], ids=str)
def test_options_are_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        at.load(networks.perceptron((3, 4)), **wrong)


def test_keywords_go_before_options() -> None:
    options = at.CompileOptions(threads=1, records=False)
    graph = networks.perceptron((3, 4))
    assert at.load(graph, options=options).threads == 1
    assert at.load(graph, options=options, threads=2).threads == 2


def test_results_have_types_with_names() -> None:
    model = at.load(networks.perceptron((3, 4)), threads=1, records=False)
    assert isinstance(model, at.Model)
    verification = model.verify()
    assert isinstance(verification, at.Verification)
    assert verification.passed
    assert isinstance(model.explain(), at.Explanation)
    assert model.show("groups") == at.show(model, "groups")
    assert isinstance(at.compile("matmul", shape=(4, 5, 6), threads=1), at.Kernel)
    assert isinstance(at.compile("matmul", sizes={"M": (1, 8)}, threads=1), at.SizedKernel)
    assert issubclass(at.errors.UsageError, AutoschedError)
    assert at.AutoschedError is AutoschedError
    assert model(np.ones(model.inputs[0].shape, "float32")).shape == model.outputs[0].shape


def test_no_submodule_hides_a_public_name() -> None:
    """Importing autosched.x sets the attribute `x` of the package."""
    folder = Path(at.__file__).parent
    submodules = {path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert submodules & set(at.__all__) == {"errors", "te"}
