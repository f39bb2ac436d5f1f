"""The oracle: a concrete loop nest must compute what the DAG's reference computes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.ir.interpreter.interpret import interpret
from autosched.ir.printer import func_text
from autosched.ir.stmt import Allocate, For, Func, If, Seq, Stmt
from autosched.lower import concretise, lower
from autosched.schedule import State
from autosched.te.dag import ComputeDAG
from autosched.te.reference.evaluate import Reference, evaluate, within
from autosched.te.reference.inputs import make_inputs
from search_spaces.space import Sketch, sample

ROOT = Path(__file__).resolve().parent.parent
SAMPLED = 16  # rows drawn to find one of not too much code


def check_nest(func: Func, dag: ComputeDAG, seed: int = 0) -> dict[str, int]:
    """Interprets `func` on small integers and compares with the reference; returns the stores done by stage.

    Sums of products of small integers have an error bound of 0, so wrong indexing cannot hide in a tolerance.
    Parallel loops run in a random order, and tasks that meet in memory fail.
    """
    rng = np.random.default_rng(seed)
    inputs, expected = _small_integers(dag, seed)
    counts: dict[str, int] = {}
    results = interpret(func, inputs, parallel_order=lambda n: rng.permutation(n).tolist(), counts=counts)
    for tensor, got, reference in zip(dag.outputs, results, expected, strict=True):
        seen = got.reshape(tensor.public_shape)
        wrong = np.argwhere(~within(reference, seen))
        if len(wrong):
            at = tuple(wrong[0].tolist())
            raise AssertionError(
                f"{tensor.name}{list(at)} is {seen[at]}, not {reference.value[at]} +- {reference.bound[at]}; "
                f"{len(wrong)} of {seen.size} elements are wrong in\n{func_text(func)}"
            )
    return counts


def exact(dag: ComputeDAG, state: State, values: Mapping[str, int] | None = None) -> Func:
    """The concrete nest of a schedule, checked."""
    func, _ = concretise(lower(state), values or {})
    check_nest(func, dag)
    return func


def without(func: Func, kind: type[Stmt], number: int) -> Func:
    """The function without its statement `number` of that kind."""
    seen = -1

    def go(s: Stmt) -> Stmt:
        nonlocal seen
        if isinstance(s, kind):
            seen += 1
            return Seq(()) if seen == number else s
        match s:
            case For() | Allocate():
                return replace(s, body=go(s.body))
            case Seq(stmts):
                return Seq(tuple(map(go, stmts)))
            case If():
                return replace(s, then=go(s.then), otherwise=None if s.otherwise is None else go(s.otherwise))
        return s

    return replace(func, body=go(func.body))


@lru_cache(maxsize=4)
def _small_integers(dag: ComputeDAG, seed: int) -> tuple[dict[str, npt.NDArray[Any]], tuple[Reference, ...]]:
    """Inputs and their reference, once for the candidates of a program."""
    inputs = make_inputs(dag, seed, "integers")
    for array in inputs.values():
        array.flags.writeable = False
    return inputs, evaluate(dag, inputs)


def python(*words: object, check: bool = False, **environment: str) -> subprocess.CompletedProcess[str]:
    """What this interpreter says, run with `words` from the top of the checkout."""
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=check,
    )  # fmt: skip


def in_threads(work: Callable[[Any], object], arguments: Iterable[Any]) -> None:
    """Calls `work` with each of `arguments` in a thread of its own, all at once, and waits for them."""
    threads = [threading.Thread(target=work, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def little_rows(sketch: Sketch, n: int, rng: np.random.Generator, copies: int = 512) -> list[dict[str, int]]:
    """`n` random rows that write the code of a stage out at most `copies` times, vectors by their elements; where too
    few are found, the row of the smallest tiles. Of many more copies are rows that no search would build."""
    names = [p.name for p in sketch.params]
    drawn = (dict(zip(names, map(int, values), strict=True)) for values in sample(sketch, SAMPLED * n, rng))
    rows = [row for row in drawn if copies_of(row) <= copies]
    return [*rows[:n], *[{p.name: p.domain[0] for p in sketch.params}] * (n - len(rows))]


def copies_of(row: Mapping[str, int]) -> int:
    """About how often the code of the largest stage is written out, vectors by their elements."""
    found: dict[str, int] = {}
    for name, value in row.items():
        if name.endswith((".r", ".u", ".l")):
            stage = name.split(".")[0]
            found[stage] = found.get(stage, 1) * value
    return max(found.values(), default=1)


def resident_bytes(path: Path) -> int:
    """The bytes of a mapped file that this process has in memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    return sum(
        next(int(fact.split()[1]) << 10 for fact in lines if fact.startswith("Rss:"))
        for line in lines
        if line.endswith(f" {path.resolve()}")
    )
