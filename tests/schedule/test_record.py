"""Schedules as JSON: what goes out comes back, and what did not come from us is refused with one error."""

from __future__ import annotations

import json
import random
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosched.errors import ScheduleError
from autosched.ir.printer import func_text
from autosched.lower import concretise, lower
from autosched.schedule import (
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    FetchAhead,
    Fuse,
    Pack,
    Parallel,
    Prefetch,
    Reindex,
    Reorder,
    Rfactor,
    Split,
    Step,
    Stream,
    Unroll,
    Vectorize,
    initial_state,
    replay,
    steps_from_json,
    steps_to_json,
)
from autosched.schedule.record import STEPS
from tests.schedule.graphs import dense_relu
from tests.schedule.random_steps import random_schedule

DAG = dense_relu(13, 17, 7)
STEPS_OF_ALL_KINDS: tuple[Step, ...] = (
    Rfactor("C", "k", "kc", "outer"),
    Split("D", "i", (2, "ti")),
    Split("D", "j", ("tj",)),
    Reorder("D", ("i.0", "j.0", "i.1", "i.2", "j.1")),
    Parallel("D", ("i.0", "j.0")),
    Vectorize("D", "j.1"),
    ComputeAt("C", "D", "i.1"),
    CacheRead("bias", "D"),
    ComputeInline("bias.cache"),
    Reindex("bias", "D", "each"),
    CacheWrite("C.rf"),
    Fuse("C.rf.acc", ("k.o", "i")),
    Unroll("C.rf.acc", "j"),
    CacheRead("B", "C.rf.acc", "pack"),
    Pack("B.pack", (1, 0), ((1, "tj"),)),
    Prefetch("C.rf.acc", "B.pack", "k.i", 2, 2),
    CacheRead("A", "C.rf.acc", "tile"),
    ComputeAt("A.tile", "C.rf.acc", "k.o@i"),
    FetchAhead("C.rf.acc", "k.o@i", "A.tile", "A", 3),
    Stream("D"),
)
VALUES = {"kc": 4, "ti": 3, "tj": 8}


def test_every_step_goes_out_and_comes_back():
    elsewhere = {
        "AcrossLanes",
        "Atomic",
        "Average",
        "Bind",
        "Cooperate",
        "CrossThread",
        "DivideLast",
        "Factor",
        "Flatten",
        "LaunchBounds",
        "Lengthen",
        "Matricize",
        "Mma",
        "NarrowPlaces",
        "Once",
        "Online",
        "Pad",
        "Partition",
        "Pipeline",
        "Raster",
        "RunningSum",
        "Separate",
        "ShareTiles",
        "Slide",
        "Spread",
        "StoreTiles",
        "Team",
        "Tensorize",
        "WarpgroupMma",
        "Widen",
        "Winograd",
        "WithinReach",
        "WriteOut",
    }  # test_gpu_steps.py, test_(winograd|places|flatten|widen|separate|online|shares)_step.py, test_pipelining.py, ...
    assert {type(s).__name__ for s in STEPS_OF_ALL_KINDS} == set(STEPS) - elsewhere
    state = initial_state(DAG).apply(*STEPS_OF_ALL_KINDS)
    text = steps_to_json(state, VALUES)
    again = replay(DAG, text)
    assert steps_to_json(again, {}) == text
    assert func_text(lower(again)) == func_text(lower(replay(DAG, steps_to_json(again, {}))))
    assert func_text(concretise(lower(again), {})[0]) == func_text(concretise(lower(state), VALUES)[0])


def test_the_text_is_canonical_and_holds_no_parameter():
    state = initial_state(DAG).apply(Split("D", "i", ("t", 4)), ComputeAt("C", "D", "i.0"))
    assert steps_to_json(state, {"t": 3}) == '[["Split","D","i",[3,4]],["ComputeAt","C","D","i.0","local"]]'
    assert steps_from_json(steps_to_json(state, {"t": 3}))[0] == Split("D", "i", (3, 4))
    with pytest.raises(KeyError):
        steps_to_json(state, {})


def test_an_empty_schedule():
    assert steps_to_json(initial_state(DAG), {}) == "[]"
    assert replay(DAG, "[]") == initial_state(DAG)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("nonsense", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("1" * 10_000, "is not JSON"),
        ("{}", "must be a list of steps, got dict"),
        ("3", "must be a list of steps, got int"),
        ("null", "must be a list of steps, got NoneType"),
        ("[3]", "unknown step 3"),
        ("[[]]", r"unknown step \[\]"),
        ("[[[]]]", "unknown step"),
        ('[["Explode","D"]]', "unknown step"),
        ('[[["Split"],"D","i",[2]]]', "unknown step"),
        ('[[{"a":1},"D","i",[2]]]', "unknown step"),
        ('[["__class__","D"]]', "unknown step"),
        ('[["Split","D","i"]]', "the stored step Split has 2 fields, expected 3"),
        ('[["Split","D","i",[2],1]]', "the stored step Split has 4 fields, expected 3"),
        ('[["Split","D","i",2]]', r"the stored step Split holds 2 where tuple\[int, ...\] is expected"),
        ('[["Split","D","i","22"]]', r"the stored step Split holds '22' where tuple\[int, ...\] is expected"),
        ('[["Split","D","i",["t"]]]', "the stored step Split holds 't' where int is expected"),
        ('[["Split","D","i",[2.0]]]', "the stored step Split holds 2.0 where int is expected"),
        ('[["Split","D","i",[NaN]]]', "the stored step Split holds nan where int is expected"),
        ('[["Split","D","i",[true]]]', "the stored step Split holds True where int is expected"),
        ('[["Split","D","i",[null]]]', "the stored step Split holds None where int is expected"),
        ('[["Split","D","i",[[2]]]]', r"the stored step Split holds \[2\] where int is expected"),
        ('[["Split","D",1,[2]]]', "the stored step Split holds 1 where str is expected"),
        ('[["Split",["D"],"i",[2]]]', r"the stored step Split holds \['D'\] where str is expected"),
        (
            '[["Split","D","i",[10000000000000000000000]]]',
            "the stored step Split holds 10000000000000000000000, beyond the 1099511627776 allowed",
        ),
        ('[["Reorder","D","ij"]]', r"the stored step Reorder holds 'ij' where tuple\[str, ...\] is expected"),
        ('[["Reorder","D",["i",1]]]', "the stored step Reorder holds 1 where str is expected"),
        ('[["Fuse","D",[]]]', "at least two loops are needed"),
        ('[["Prefetch","D","C","i","3"]]', "the stored step Prefetch holds '3' where int is expected"),
        ('[["Prefetch","D","C","i",1e9]]', "the stored step Prefetch holds 1000000000.0 where int is expected"),
        ('[["ComputeAt","C","D","i","global"]]', "scope must be one of local, register, shared, warp, got 'global'"),
        ('[["Pack","C",["1",0],[]]]', "the stored step Pack holds '1' where int is expected"),
        ('[["Pack","C",[1,0],[1,4]]]', r"the stored step Pack holds 1 where tuple\[int, int\] is expected"),
        ('[["Pack","C",[1,0],[[1,4,2]]]]', r"holds \[1, 4, 2\] where tuple\[int, int\] is expected"),
        ('[["Pack","C",[1,0],[["1",4]]]]', "the stored step Pack holds '1' where int is expected"),
        ('[["Rfactor","C","k","f","inner"]]', "the stored step Rfactor holds 'f' where int is expected"),
        ('[["Rfactor","C","k",4,7]]', "the stored step Rfactor holds 7 where str is expected"),
    ],
)
def test_hostile_text_is_refused(text, message):
    with pytest.raises(ScheduleError, match=message) as caught:
        replay(DAG, text)
    assert len(str(caught.value)) < 600


def test_a_huge_value_does_not_fill_the_message():
    with pytest.raises(ScheduleError) as caught:
        steps_from_json(json.dumps([["Split", "D", "i", ["x" * 100_000]]]))
    assert len(str(caught.value)) < 600


VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["C", "D", "i", "k"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=6,
)
ROW = st.builds(lambda name, rest: [name, *rest], st.sampled_from(sorted(STEPS)), st.lists(VALUE, max_size=5))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(ROW | VALUE, max_size=3))
def test_any_json_gives_a_schedule_or_a_schedule_error(rows):
    with suppress(ScheduleError):
        replay(DAG, json.dumps(rows))


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_record_gives_a_schedule_or_a_schedule_error(seed):
    """Records of real schedules with one value exchanged or a row dropped, repeated or moved."""
    rng = random.Random(seed)
    dag, state = random_schedule(seed)
    rows = json.loads(steps_to_json(state, {}))
    if not rows:
        return
    for _ in range(20):
        damaged = json.loads(json.dumps(rows))
        row = rng.choice(damaged)
        match rng.randrange(4):
            case 0:
                row[rng.randrange(len(row))] = rng.choice([0, -1, 7, "C", "i", [], [1], [["i"]], None, 2.5, 1 << 70])
            case 1:
                damaged.remove(row)
            case 2:
                damaged.insert(rng.randrange(len(damaged)), row)
            case 3:
                rng.shuffle(damaged)
        try:
            changed = replay(dag, json.dumps(damaged))
        except ScheduleError:
            continue
        concretise(lower(changed), {})
