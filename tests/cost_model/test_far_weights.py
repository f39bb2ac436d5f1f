"""Weights from beyond the caches are paid for at each call, however few they are; nothing else is."""

from __future__ import annotations

import numpy as np
import pytest

from autosched.lower import lower
from autosched.target import parse_target
from autosched.target.far_weights import LAST_CACHE, MEMORY, NEAR
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from cost_model import CostModel
from search_spaces import space
from search_spaces.cpu import sketches

CORE = parse_target("llvm -mcpu=sapphirerapids")
PLACES = (NEAR, LAST_CACHE, MEMORY)


def seconds(shape: tuple[int, ...], weights: tuple[str, ...], threads: int) -> list[np.ndarray]:
    """Of a few rows of each sketch of a product, with its weights in each place: `[places, rows]`."""
    dag = collapse(build("gmm", shape)[0].with_weights(weights) if weights else build("gmm", shape)[0])
    found = sketches(dag, CORE, threads)
    nests = [lower(sketch.state) for sketch in found]
    names = [tuple(p.name for p in sketch.params) for sketch in found]
    rows = [space.sample(sketch, 8, np.random.default_rng(0)) for sketch in found]
    models = [CostModel(nests, names, CORE, threads, weights_in=place) for place in PLACES]
    return [np.array([m.analytic_latency(i, matrix) for m in models]) for i, matrix in enumerate(rows)]


@pytest.mark.parametrize(("shape", "threads"), [((1, 5, 96, 101), 1), ((1, 1, 64, 48), 2), ((1, 33, 17, 64), 1)])
def test_what_comes_from_further_takes_longer(shape: tuple[int, ...], threads: int) -> None:
    for near, cache, memory in seconds(shape, ("Y",), threads):
        assert (near < cache).all()
        assert (cache < memory).all()


def test_without_weights_the_place_does_not_matter() -> None:
    for near, cache, memory in seconds((1, 5, 96, 101), (), 1):
        np.testing.assert_array_equal(near, cache)
        np.testing.assert_array_equal(near, memory)
