"""Schedules of a stranger's record that ask for too much memory, code, or too large numbers, are refused in a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autosched import te
from autosched.codegen import build_source
from autosched.errors import ScheduleError
from autosched.ir.expr import Expr
from autosched.lower import lower
from autosched.schedule import check_target, replay, steps_to_json
from autosched.target import parse_target
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from tests.gpu_schedules import cases

HUGE = 1 << 40
MATMUL = collapse(build("matmul", (64, 64, 64))[0])
STAGE, RIGHT = MATMUL.stages[0].name, MATMUL.inputs[1].name
COPY = f"{RIGHT}.cache"


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([["Split", STAGE, "i", [1] * 2000]], "2000 factors are more than the 8 allowed"),
        ([["Split", STAGE, "i", [1 << 30, 1 << 30]]], "make a tile of"),
        ([["Split", STAGE, "i", [1 << 63]]], "beyond the"),
        ([["Unroll", STAGE, "i"]] * 600, "600 steps, more than the 512 allowed"),
    ],
)
def test_numbers_are_bounded_before_a_step_is_applied(steps: list[Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        replay(MATMUL, json.dumps(steps))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (
            [
                ["CacheRead", RIGHT, STAGE, "cache"],
                ["ComputeAt", COPY, STAGE, "i", "register"],
                ["Pack", COPY, [0, 1], [[0, 1 << 21], [1, 16]]],
            ],
            "bytes of private buffers on the stack, more than the 1048576 allowed",
        ),
        (
            [["CacheRead", RIGHT, STAGE, "cache"], ["Pack", COPY, [0, 1], [[0, HUGE], [1, HUGE]]]],
            "bytes of workspace, more than",
        ),
        (
            [
                ["CacheRead", RIGHT, STAGE, "cache"],
                ["ComputeAt", COPY, STAGE, "i"],
                ["Pack", COPY, [0, 1], [[0, HUGE]]],
            ],
            "bytes of private buffers, more than",
        ),
        ([["Rfactor", STAGE, "k", HUGE, "inner"]], "bytes of workspace, more than"),
        ([["Unroll", STAGE, "i"], ["Unroll", STAGE, "j"], ["Unroll", STAGE, "k"]], "statements written out, more than"),
    ],
)
def test_what_a_nest_amounts_to_is_bounded(steps: list[Any], message: str) -> None:
    nest = lower(replay(MATMUL, json.dumps(steps)))
    with pytest.raises(ScheduleError, match=message):
        build_source(nest, {}, parse_target("llvm -mcpu=haswell"), 2)


def test_a_team_of_any_size_is_refused_where_no_device_has_so_many_threads() -> None:
    for dag, state, values in cases().values():
        rows = json.loads(steps_to_json(state, values))
        teams = [row for row in rows if row[0] == "Team"]
        if not teams:
            continue
        teams[0][2] = 1 << 31
        with pytest.raises(ScheduleError, match="more than"):
            build_source(lower(replay(dag, json.dumps(rows))), {}, parse_target("cuda"))
        return
    raise AssertionError("no case has a team")


def test_a_frame_of_many_pages_probes_each() -> None:
    source = build_source(lower(replay(MATMUL, "[]")), {}, parse_target("llvm -mcpu=haswell"), 1)
    assert '"probe-stack"="inline-asm"' in source.ir


@pytest.mark.parametrize(
    ("step", "kind"), [(["Bind", STAGE, "i", "blockIdx.x"], "cpu"), (["Parallel", STAGE, ["i"]], "cuda")]
)
def test_steps_of_another_kind_of_device_are_refused(step: list[Any], kind: str) -> None:
    state = replay(MATMUL, json.dumps([step]))
    check_target(state, "cuda" if kind == "cpu" else "cpu")
    with pytest.raises(ScheduleError, match=f"but the target is {kind}"):
        check_target(state, kind)


def test_long_expressions_count_for_what_they_are() -> None:
    n, length = 64, 90
    A = te.placeholder((n, n), name="A")

    def long(x: Expr) -> Expr:
        for step in range(length):
            x = x * x + float(step)
        return x

    dag = te.ComputeDAG(te.compute((n, n), lambda i, j: long(A[i, j]), name="C"))
    nest = lower(replay(dag, json.dumps([["Unroll", "C", "i"], ["Unroll", "C", "j"]])))
    with pytest.raises(ScheduleError, match="nodes of expressions written out, more than"):
        build_source(nest, {}, parse_target("llvm -mcpu=haswell"), 1)
