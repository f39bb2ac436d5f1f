"""Clusters in closed form: which tiles their blocks share, what that saves, where there are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autosched.ir.closed_forms.program import Program
from autosched.target import parse_target
from autosched.te.rewrites.collapse import collapse
from cost_model.analysis.access import Geometry
from cost_model.analysis.statements import analyse
from cost_model.gpu.constants import CardConstants
from cost_model.gpu.latency import gpu_analytic_latency
from cost_model.gpu.machine import SECTOR, gpu_machine
from search_spaces.gpu import sketches
from tests.matrix_products import product
from tests.search_spaces.gpu_candidates import Drawn, draw

SM_90 = parse_target("cuda -arch=sm_90")


def by_warpgroups(m: int, n: int, k: int, order: str = "nn") -> Drawn:
    return next(draw(collapse(product(m, n, k, order)), SM_90, 1, mark="wgmma"))


def row(one: Drawn, **values: int) -> Any:
    """Two warpgroups of 64 rows by 16 units of 8 columns, a ring of four places; `values` by the ends of names."""
    usual = {"i.g": 2, "i.s": 1, "j.s": 16, "j.p": 1, "resident": 1, "raster": 1, "k.c": 4, "stages": 4}
    chosen = {
        **usual,
        "i.cluster": 1,
        "j.cluster": 1,
        "turns": 1,
        **{name.replace("_", "."): v for name, v in values.items()},
    }
    names = [p.name for p in one.sketch.params]
    return np.array([next(v for end, v in chosen.items() if name.endswith(end)) for name in names], np.int64)


@pytest.mark.parametrize(
    ("m", "n", "order", "columns", "down", "across", "broken"),
    [
        (1024, 1024, "nn", 16, 2, 1, ()),
        (1024, 1024, "nn", 16, 1, 2, ()),
        (1024, 1024, "nn", 16, 2, 2, ("blocks of a cluster",)),
        (384, 1024, "nn", 16, 2, 1, ("clusters in the grid",)),
        (384, 1024, "nn", 16, 1, 2, ()),
        (1024, 384, "nn", 16, 1, 2, ("clusters in the grid",)),
        (1024, 1024, "nt", 4, 2, 1, ()),
    ],
)
def test_where_there_are_clusters(
    m: int, n: int, order: str, columns: int, down: int, across: int, broken: tuple[str, ...]
) -> None:
    one = by_warpgroups(m, n, 512, order)
    values = row(one, j_s=columns, i_cluster=down, j_cluster=across)
    assert one.model.broken_rules(0, values) == broken


def test_what_is_loaded_together_comes_from_l2_by_halves() -> None:
    """Of equal tiles of both operands one is: with half of its bytes they are three quarters; results are few."""
    one = by_warpgroups(4096, 4096, 4096)
    latency = gpu_analytic_latency(analyse(one.func, Geometry(SECTOR)), gpu_machine(SM_90, CardConstants()))
    program = Program([latency.kernels[0].l2], [p.name for p in one.sketch.params])
    rows = np.stack([row(one), row(one, i_cluster=2), row(one, j_cluster=2)]).astype(np.float64)
    alone, *shared = program(rows)[0]
    assert np.divide(shared, alone) == pytest.approx([0.75, 0.75], abs=0.01)


@pytest.mark.parametrize(
    ("groups", "tiles", "units", "resident", "broken"),
    [
        (1, 2, 4, 1, ()),
        (1, 1, 8, 1, ()),
        (2, 1, 4, 1, ("warpgroups in turn",)),
        (1, 2, 8, 1, ("registers",)),
        (1, 1, 2, 2, ("warpgroups in turn",)),
    ],
)
def test_where_warpgroups_take_turns(
    groups: int, tiles: int, units: int, resident: int, broken: tuple[str, ...]
) -> None:
    """Each has all registers of two that share a tile, for a tile of its own."""
    one = by_warpgroups(1024, 1024, 512)
    values = row(one, i_g=groups, i_s=tiles, j_s=units, j_p=4, resident=resident, stages=2, turns=2)
    found = one.model.broken_rules(0, values)
    assert set(found) >= set(broken)
    assert bool(found) == bool(broken)


@pytest.mark.parametrize(("tiles", "units"), [(2, 4), (1, 8)])
def test_turns_hide_what_a_tile_takes_to_store(tiles: int, units: int) -> None:
    """A few percent of one of 128 by 128 or 64 by 256."""
    one = by_warpgroups(4096, 4096, 4096)
    rows = np.stack([row(one, i_g=1, i_s=tiles, j_s=units, j_p=4, turns=turns) for turns in (1, 2)])
    alone, in_turn = one.model.analytic_latency(0, rows)
    assert 1.001 < alone / in_turn < 1.1


def test_sketches_of_warpgroups_have_the_parameters() -> None:
    for sketch in sketches(collapse(product(256, 256, 256)), SM_90):
        clusters = [p.domain for p in sketch.params if p.kind == "cluster"]
        assert clusters == [(1, 2)] * (2 if "wgmma" in sketch.name else 0), sketch.name
