"""The README of the package: its words are in the code, and its rule makes sketches that are exact and measured."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autosched.target import parse_target
from autosched.te import ComputeDAG
from search_spaces.cpu import RULES, SketchRule, sketches
from search_spaces.space import Sketch, sample
from tests.helpers import exact, python
from tests.schedule.graphs import dense_relu, matmul

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "search_spaces" / "README.md").read_text(encoding="utf-8")
RULE, USE = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
HASWELL = parse_target("llvm -mcpu=haswell")


@pytest.fixture(scope="module")
def rule(tmp_path_factory: pytest.TempPathFactory) -> SketchRule:
    file = tmp_path_factory.mktemp("readme") / "rule.py"
    file.write_text(RULE, encoding="utf-8")
    made: SketchRule = runpy.run_path(str(file))["RowUpdates"]()
    return made


def with_rule(rule: SketchRule, dag: ComputeDAG, threads: int) -> tuple[Sketch, ...]:
    return sketches(dag, HASWELL, threads, rules=(rule, *RULES))


@pytest.mark.parametrize("graph", [matmul, dense_relu])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_sketch_of_the_rule_is_there_and_exact(rule: SketchRule, graph: Any, threads: int) -> None:
    dag = graph(5, 13, 3)
    ours = [s for s in with_rule(rule, dag, threads) if "row-updates" in s.name]
    assert ours
    for sketch in ours:
        assert "C.width" in [p.name for p in sketch.params]
        for values in sample(sketch, 3, np.random.default_rng(0)):
            exact(dag, sketch.state, {p.name: int(v) for p, v in zip(sketch.params, values, strict=True)})


def test_the_built_in_sketches_of_the_stage_stay(rule: SketchRule) -> None:
    dag = matmul(5, 13, 3)
    names = {s.name for s in with_rule(rule, dag, 1)}
    assert {s.name for s in sketches(dag, HASWELL, 1)} < names


def test_the_example_is_tuned_and_verified(tmp_path: Path) -> None:
    file = tmp_path / "example.py"
    file.write_text(f"{RULE}\n{USE}assert result.verified\n", encoding="utf-8")
    done = python(file, XDG_DATA_HOME=str(tmp_path / "data"), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    assert re.match(r"\{'matmul\.width': \d+\} [\d.]+", done.stdout), done.stdout


def test_every_place_in_it_exists() -> None:
    places = re.findall(r"`([\w/]+(?:\.py|/))`", TEXT)
    assert len(places) > 8
    assert not [p for p in places if not ((ROOT / p).exists() or (ROOT / "search_spaces" / p).exists())]


def test_its_moves_and_steps_exist() -> None:
    import autosched.schedule
    from search_spaces import space

    row = next(line for line in TEXT.splitlines() if line.startswith("| move |"))
    moves = re.findall(r"`(\w+)`", row.split("|")[2])
    assert moves == ["sample", "mutate", "crossover", "neighbours"]
    assert all(callable(getattr(space, name)) for name in moves)
    steps = re.findall(
        r"`(\w+)`", next(line for line in TEXT.splitlines() if line.startswith("| step |")).split("|")[2]
    )
    assert all(hasattr(autosched.schedule, name) for name in steps)
