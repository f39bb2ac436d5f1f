"""Random pipelines of stages, and the programs of `experiments.pipelines`, as subjects of regret."""

from __future__ import annotations

import numpy as np

from autosched.errors import UsageError
from experiments.pipelines.contest import Contest
from experiments.pipelines.programs import PROGRAMS
from experiments.pipelines.random_pipelines import PipelineSizes, pipeline_dag
from experiments.regret.measure import Subject

SIZES = PipelineSizes(
    rows=(512, 768, 1000), columns=(512, 640, 1000), largest=1280, stages=10, dtypes=(("float32",),)
)  # fmt: skip


def pipeline_subject(seed: str, sizes: PipelineSizes = SIZES) -> Subject:
    """The pipeline of a seed, with arrays for its inputs."""
    dag, rng = pipeline_dag(seed, sizes), np.random.default_rng(0)
    arrays = [(rng.random(t.shape) + 0.1).astype(t.dtype) for t in dag.inputs]
    return Subject(f"pipeline {seed}", tuple(dag.outputs), tuple(arrays))


def program_subject(name: str, size: tuple[int, int]) -> Subject:
    """Raises UsageError for a program that there is not."""
    if name not in PROGRAMS:
        raise UsageError(f"there is no program {name}; there are {', '.join(PROGRAMS)}")
    contest = Contest.of(name, size)
    return Subject(name, (contest.result,), tuple(contest.arrays))
