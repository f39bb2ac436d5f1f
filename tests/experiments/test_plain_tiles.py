from __future__ import annotations

from autosched.schedule import Pack
from autosched.target import parse_target
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from experiments.plain_tiles import plain_tiles
from search_spaces.cpu import sketches
from search_spaces.space import Sketch

TARGET = parse_target("llvm -mcpu=skylake-avx512")


def packs(sketch: Sketch) -> int:
    return sum(isinstance(step, Pack) for step in sketch.state.steps)


def test_plain_tiles_are_a_smaller_space() -> None:
    dag = collapse(build("matmul", settings={"M": 48, "N": 64, "K": 40})[0])
    full = sketches(dag, TARGET, 2)
    some = plain_tiles(full)
    assert any(packs(s) for s in full)
    assert some
    assert not any(packs(s) for s in some)
    domains = {s.name: {p.name: p.domain for p in s.params} for s in full}
    for sketch in some:
        for param in sketch.params:
            assert set(param.domain) <= set(domains[sketch.name][param.name])
            assert all(param.extent % v == 0 for v in param.domain if param.extent)
    assert sum(len(p.domain) for p in some[0].params) < sum(map(len, domains[some[0].name].values()))


def test_where_every_sketch_packs_those_that_pack_least_stay() -> None:
    dag = collapse(build("matmul", settings={"M": 48, "N": 64, "K": 40})[0])
    packed = tuple(s for s in sketches(dag, TARGET, 2) if packs(s))
    kept = plain_tiles(packed)
    assert kept
    assert {packs(s) for s in kept} == {min(map(packs, packed))}
    prime = collapse(build("matmul", settings={"M": 7, "N": 17, "K": 5})[0])
    assert all(p.domain for s in plain_tiles(sketches(prime, TARGET, 1)) for p in s.params)
