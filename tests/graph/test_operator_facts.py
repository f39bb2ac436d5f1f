"""Facts about operators in the disk cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosched.errors import GraphError
from autosched.graph import operator_facts
from autosched.graph.fusion import node_properties
from autosched.graph.operator_facts import OperatorFact

X, W = ((2, 3, 8, 8), "float32"), ((4, 3, 3, 3), "float32")
NODES = [
    ("relu", (X,), (), 1),
    ("add", (X, ((1, 3, 1, 1), "float32")), (), 1),
    ("conv", (X, W), (("pads", ((1, 1), (1, 1))),), 1),
    ("reshape", (X,), (("shape", (6, 64)),), 1),
    ("transpose", (X,), (("perm", (0, 2, 3, 1)),), 1),
    ("concat", (X, X), (("axis", 1),), 1),
    ("softmax", (X,), (("axis", -1),), 1),
    ("conv", (X, W, None), (), 1),
]


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def fresh(fact: OperatorFact) -> OperatorFact:
    """The fact as another process has it."""
    return OperatorFact(fact._derive, fact._to_json, fact._from_json)


@pytest.mark.parametrize("fact", operator_facts._FACTS[:3], ids=lambda fact: fact._derive.__name__)
def test_facts_are_found_as_they_were_derived(fact: OperatorFact, monkeypatch: pytest.MonkeyPatch) -> None:
    first = fresh(fact)
    derived = [first(*node) for node in NODES]
    first.save()
    second = fresh(fact)
    monkeypatch.setattr(second, "_derive", lambda *key: pytest.fail(f"{key} is derived again"))
    second._derive.__qualname__ = fact._derive.__qualname__
    assert [second(*node) for node in NODES] == derived


def test_other_attributes_are_other_facts() -> None:
    fact = OperatorFact(lambda *key: repr(key), str, str)
    keys = [("f", (None,), (("a", value),), 1) for value in ((1,), (2.5,), "1", None)]
    for key in keys:
        fact(*key)
    fact.save()
    other = OperatorFact(lambda *key: "derived again", str, str)
    other._derive.__qualname__ = fact._derive.__qualname__
    assert [other(*key) for key in reversed(keys)] == [repr(key) for key in reversed(keys)]


def test_errors_are_not_kept() -> None:
    fact = fresh(node_properties._properties)
    for _ in range(2):
        with pytest.raises(GraphError, match="there is no operator strange"):
            fact("strange", (X,), (), 1)


def test_few_facts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_facts, "MAX_KEPT", 2)
    fact = OperatorFact(lambda name, *more: name, str, str)
    for name in "abc":
        fact(name, (), (), 1)
        fact.save()
    other = OperatorFact(lambda name, *more: f"new {name}", str, str)
    other._derive.__qualname__ = fact._derive.__qualname__
    assert [other(name, (), (), 1) for name in "abc"] == list("abc")
    other(name := "d", (), (), 1)
    other.save()
    assert fresh(other)(name, (), (), 1) == "new d"
