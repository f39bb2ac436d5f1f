"""The lists of rules are the whole truth about their order: no rule calls another one."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import ModuleType

import pytest

import search_spaces.cpu
import search_spaces.gpu

PAGES = (search_spaces.cpu, search_spaces.gpu)


def calls_of(names: set[str], source: str) -> list[int]:
    """The lines that make one of `names`, outside of the list RULES."""
    tree = ast.parse(source)
    lists = [n for n in tree.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "RULES"]
    listed = {id(n) for rules in lists for n in ast.walk(rules)}
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and id(n) not in listed]
    return [n.lineno for n in calls if isinstance(n.func, ast.Name) and n.func.id in names]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__)
def test_no_rule_calls_another(page: ModuleType) -> None:
    rules = {type(rule).__name__ for rule in page.RULES} | {"AtomicSplit"}
    for path in sorted(Path(inspect.getfile(page)).parent.glob("*.py")):
        assert not calls_of(rules, path.read_text()), f"{path} makes a rule: let both call a function"


def test_a_rule_that_calls_another_is_seen() -> None:
    source = "RULES: tuple = (A(), B())\n\nclass B:\n    def apply(self, x):\n        return A().apply(x)\n"
    assert calls_of({"A", "B"}, source) == [5]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.__name__)
def test_each_rule_of_the_list_has_a_line_that_says_when_it_applies(page: ModuleType) -> None:
    source = inspect.getsource(page)
    lines = source[source.index("RULES: tuple") :].splitlines()
    for rule in page.RULES:
        place = lines.index(f"    {type(rule).__name__}(),")
        assert lines[place - 1].strip().startswith("#"), f"{type(rule).__name__} has no line"
