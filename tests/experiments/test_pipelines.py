"""The pipelines beside Halide: what te makes of them is what NumPy does, at odd sizes."""

from __future__ import annotations

import numpy as np
import pytest

import autosched as at
from experiments.pipelines.__main__ import Contest, main
from experiments.pipelines.programs import PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("size", [(67, 131), (1, 40)])
def test_programs_compute_what_numpy_does(name, size):
    contest = Contest.of(name, size)
    out = contest.out()
    at.compile(contest.workload, threads=2)(*contest.arrays, out=out)
    assert contest.is_right(out)
    assert np.isfinite(out).all()
    out[(0,) * out.ndim] += 9
    assert not contest.is_right(out), "a wrong element is seen"


def test_an_unknown_program_is_named(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["pipelines", "blurr"])
    with pytest.raises(SystemExit):
        main()
    assert "there is no program blurr; there are blur, " in capsys.readouterr().err
