"""Nothing waits without a limit: each call that may is here with what ends it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_structure import ROOT, python_files, tree_of

PRODUCT = ("autosched", "search_spaces", "cost_model")
WAITING = {"acquire", "communicate", "get", "join", "readline", "result", "wait"}  # methods, without an argument
PROGRAMS = {"run", "call", "check_call", "check_output"}  # of subprocess, without a timeout
MAY_WAIT = re.compile(
    rf"\.({'|'.join(WAITING)})\(\)|\bsubprocess\.({'|'.join(PROGRAMS)})\("
)  # most files need no parser
# Threads of this process end with what they compute, or stand still together with those who wait.
ENDS = {
    ("autosched/cli/bench.py", "call.result()"): "the arrays of a peer's call, which has ended",
    ("autosched/measure/process_pool.py", "starting.result()"): "the system makes a process",
    ("autosched/measure/measurer.py", "self.problem.wait()"): "a thread that computes the reference",
    ("autosched/measure/problem.py", "part.result()"): "a thread that computes the reference",
    ("autosched/executor/hot_swap.py", "jobs.get()"): "a thread that has no more work; nobody waits for it",
    ("autosched/runtime/jit.py", "answer.get()"): "a thread that compiles; Ctrl-C ends the wait",
    ("autosched/kernel/simulation.py", "problem.wait()"): "a thread that computes the reference",
    ("autosched/te/reference/parallel.py", "thread.join()"): "a thread that computes a part of an array",
}


def waits(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = node.func.value, node.func.attr
        words = {word.arg for word in node.keywords}
        if name == "get" and isinstance(owner, ast.Name) and owner.id.isupper():
            continue  # of a ContextVar, which is a constant of its module
        is_program = isinstance(owner, ast.Name) and owner.id == "subprocess" and name in PROGRAMS
        if (name in WAITING and not node.args and not words) or (is_program and "timeout" not in words):
            yield ast.unparse(node)


def test_each_wait_has_a_limit() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), text)
        for path in python_files(*PRODUCT)
        if MAY_WAIT.search(path.read_text(encoding="utf-8"))
        for text in waits(tree_of(path))
    }
    assert found == set(ENDS)


@pytest.mark.parametrize(
    ("text", "is_limited"),
    [
        ("process.wait()", False), ("process.wait(3)", True), ("subprocess.run(x, check=False)", False),
        ("subprocess.run(x, timeout=3)", True), ("q.get(timeout=1)", True), ("q.get()", False), ("lock.acquire()", False),
        ("_CURRENT.get()", True),
    ],
)  # fmt: skip
def test_the_reader_itself(text: str, is_limited: bool) -> None:
    assert (not [*waits(ast.parse(text))]) == is_limited
