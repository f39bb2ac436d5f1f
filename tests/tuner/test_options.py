"""The keywords that `tune`, `compile` and `best` share: stated once, spelled out to users, refused where misspelt."""

import inspect
from dataclasses import fields
from typing import Any

import pytest

import autosched as at
from autosched.errors import UsageError
from autosched.keywords import spelled_out
from autosched.tuner.options import WorkloadKeywords, WorkloadOptions


@spelled_out(WorkloadOptions)
def door(workload: str, *, trials: int = 64, **asked: Any) -> tuple[str, int, WorkloadOptions]:
    return workload, trials, WorkloadOptions(**asked)


def test_the_keywords_are_the_fields() -> None:
    types = {name: reference.__forward_arg__ for name, reference in WorkloadKeywords.__annotations__.items()}
    assert types == {f.name: f.type for f in fields(WorkloadOptions)}


def test_a_function_takes_them_beside_its_own() -> None:
    assert door("gmm", trials=3, batch=2, weights=["Y"]) == ("gmm", 3, WorkloadOptions(batch=2, weights=["Y"]))
    assert door("gmm") == ("gmm", 64, WorkloadOptions())


@pytest.mark.parametrize("verb", [at.tune, at.compile, at.best])
def test_signatures_spell_them_out_with_their_defaults(verb: Any) -> None:
    shown = inspect.signature(verb).parameters
    assert {f.name: f.default for f in fields(WorkloadOptions)}.items() <= {
        n: p.default for n, p in shown.items()
    }.items()
    assert all(p.kind is p.KEYWORD_ONLY for name, p in shown.items() if name != "workload")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("weigths", "did you mean weights?"),
        ("Batch", "did you mean batch?"),
        ("trial", "did you mean trials?"),
        (
            "zzz",
            "it takes workload, shape, settings, batch, dtype, weights, winograd, precision, target, threads, trials",
        ),
    ],
)
def test_a_keyword_that_there_is_not_is_refused_in_one_sentence(word: str, hint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        door("gmm", **{word: 1})
    assert str(refusal.value) == f"door has no keyword {word!r}; {hint}"


@pytest.mark.parametrize("verb", [at.tune, at.compile, at.best])
def test_the_verbs_refuse_it(verb: Any) -> None:
    with pytest.raises(UsageError, match=f"{verb.__name__} has no keyword 'thread'; did you mean threads"):
        verb("gmm", thread=2)
