"""Plans of loops: where each iteration finds its arrays, and that a wrong plan is found out."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from autosched.codegen.calls import ARENA, ARGUMENT, LoopArgument, Pointer
from autosched.executor.compile_graph import compile_graph
from autosched.graph.memory.storage import StorageError
from autosched.planning.execution_plan import NetworkProgram
from autosched.planning.loop_program import LoopProgram
from tests.graph.loops import counter, looped


def program_of(seed: int, steps: int = 6) -> NetworkProgram:
    return compile_graph(looped(steps, random.Random(seed)), threads=1).program


def with_arguments(loop: LoopProgram, arguments: tuple[LoopArgument, ...]) -> LoopProgram:
    other = replace(loop)
    other.__dict__["arguments"] = arguments
    return other


def test_rows_advance_and_a_state_is_the_row_before() -> None:
    program = compile_graph(counter(7), threads=1).program
    (loop,) = program.loops.values()
    state, row, result, _ = loop.arguments
    assert [state.at(n) for n in range(3)] == [Pointer(ARGUMENT, 0), Pointer(ARGUMENT, 2), Pointer(ARGUMENT, 2, 12)]
    assert [row.at(n).offset for n in (0, 1, 6)] == [0, 12, 72]
    assert [result.at(n).offset for n in (0, 1, 6)] == [0, 12, 72]
    assert loop.workspace_bytes == loop.body.workspace_bytes, "no state has a second home"


@pytest.mark.parametrize("steps", [5, 6])
def test_a_state_that_is_no_row_alternates_and_ends_in_the_result(steps: int) -> None:
    graph = counter(steps)
    (node,) = graph.nodes
    last = replace(node, attributes={**node.attributes, "results": ("last",)})
    values = {**graph.values, "y": replace(graph.values["y"], shape=(3,))}
    program = compile_graph(replace(graph, nodes=(last,), values=values), threads=1).program
    (loop,) = program.loops.values()
    state, _, result, _ = loop.arguments
    assert [result.at(n).place for n in reversed(range(steps))] == [ARGUMENT, ARENA, ARGUMENT, ARENA, ARGUMENT, ARENA][
        :steps
    ]
    assert [state.at(n) for n in range(1, steps)] == [result.at(n) for n in range(steps - 1)]


@pytest.mark.parametrize("seed", range(6))
def test_each_argument_that_is_elsewhere_is_found_out(seed: int) -> None:
    (loop,) = program_of(seed).loops.values()
    loop.verify()
    for n, argument in enumerate(loop.arguments[:-1]):
        moved = replace(argument, pointer=argument.pointer.moved(4 if argument.stride >= 0 else -4))
        far = replace(argument, stride=argument.stride + 4096)
        for wrong in (moved, far):
            arguments = (*loop.arguments[:n], wrong, *loop.arguments[n + 1 :])
            with pytest.raises(StorageError):
                with_arguments(loop, arguments).verify()


def test_a_workspace_over_a_result_is_found_out() -> None:
    found = 0
    for program in map(program_of, range(8)):
        (n,) = program.loops
        offsets = dict(program.memory.offsets)
        for result in {*program.loops[n].step.outputs} & {*offsets} if f"workspace of step {n}" in offsets else ():
            moved = {**offsets, f"workspace of step {n}": offsets[result]}
            wrong = replace(program, memory=replace(program.memory, offsets=moved, nbytes=1 << 20))
            with pytest.raises(StorageError, match="would write"):
                wrong.verify()
            found += 1
    assert found


def test_weights_of_a_body_over_others_are_found_out() -> None:
    program = program_of(0)
    ((n, loop),) = program.loops.items()
    assert program.raw_offsets
    wrong = replace(program, loops={n: replace(loop, weights_at=0)})
    with pytest.raises(StorageError, match="is from the start"):
        wrong.verify()
