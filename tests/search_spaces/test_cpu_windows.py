"""Long windows in parts: each part is made for the tasks that go on with it, in vectors, whatever its length."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.target import parse_target
from autosched.te import ComputeDAG
from autosched.te.reference.inputs import make_inputs
from autosched.te.rewrites.collapse import collapse
from search_spaces.cpu import sketches
from search_spaces.space import sample
from tests.codegen.running import check_candidate
from tests.te.test_windows import window

HASWELL = parse_target("llvm -mcpu=haswell")


@pytest.mark.parametrize(("shape", "lengths", "parts"), [((500, 9), (31,), 1), ((60, 70), (31, 17), 3)])
def test_parts_stay_with_their_tasks(shape, lengths, parts):
    dag = collapse(ComputeDAG(window(shape, lengths)))
    names = {s.name for s in dag.stages if ".run" in s.name}
    assert len(names) >= parts
    for sketch in (s for s in sketches(dag, HASWELL, 1) if not s.name.startswith("taps")):
        assert all(sketch.state.stage(name).at is not None for name in names), "a part is in memory as a whole"


def test_a_candidate_in_parts_runs():
    dag = collapse(ComputeDAG(window((20, 37), (13, 31))))
    sketch = sketches(dag, parse_target("cpu"), 2)[0]
    (values,) = sample(sketch, 1, np.random.default_rng(2))
    row = {p.name: int(v) for p, v in zip(sketch.params, values, strict=True)}
    check_candidate(dag, sketch, row, make_inputs(dag, 0, "normal"))


def test_windows_beside_each_other_are_in_the_lanes():
    """Not the elements of one: those that neighbours share would be read, and added, again."""
    for sketch in sketches(collapse(ComputeDAG(window((500,), (9,)))), HASWELL, 1):
        assert "lanes" not in sketch.name
