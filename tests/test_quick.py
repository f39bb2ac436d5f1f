"""The table of quick tests: it has every package, and every name in it is one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.quick import QUICK, has_quick, is_quick

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
CODE = ("autosched", "search_spaces", "cost_model", "experiments")
MODULES = ("autosched.errors", "autosched.target", "autosched.api")  # units of their own, though no folders
RUNS = ("tests.faults", "tests.fuzz", "tests.replay")  # which have longer runs than the suite's
DOCUMENTS = ("README.md", "pyproject.toml")


def packages() -> Iterator[str]:
    """All folders with modules, but for the top one of the library: its modules are units of their own."""
    for top in CODE:
        for folder in sorted({path.parent for path in (ROOT / top).rglob("*.py")} - {ROOT / "autosched"}):
            yield ".".join(folder.relative_to(ROOT).parts)


@cache
def functions(file: str) -> frozenset[str]:
    """Names of the tests at the top of a file."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_"))


def test_every_package_has_quick_tests() -> None:
    expected = {*packages(), *MODULES, *RUNS, *DOCUMENTS}
    assert expected - set(QUICK) == set(), "without quick tests in tests/quick.py"
    assert set(QUICK) - expected == set(), "in tests/quick.py, but no package"
    assert all(QUICK.values())


def test_what_is_named_is_a_test() -> None:
    for name in (name for names in QUICK.values() for name in names):
        file, _, function = name.partition("::")
        assert (TESTS / file).is_file(), name
        assert functions(file), name
        assert not function or function in functions(file), name
        assert has_quick(file), name


def test_a_mark_is_for_what_is_named(request: pytest.FixtureRequest) -> None:
    """Of all tests that were collected with this one."""
    for item in request.session.items:
        if isinstance(item, pytest.Function):
            named = is_quick(item.path.relative_to(TESTS).as_posix(), item.originalname)
            assert (item.get_closest_marker("quick") is not None) == named, item.nodeid


def test_nothing_is_named_twice() -> None:
    names = [name for names in QUICK.values() for name in names]
    assert len(set(names)) == len(names)
    assert not [name for name in names if "::" in name and name.partition("::")[0] in names]
