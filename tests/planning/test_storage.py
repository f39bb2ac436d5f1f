"""Where values are stored: smallest networks whose outputs share memory with others, and plans with planted faults."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from autosched.errors import InternalError
from autosched.executor import compile_graph as compile_module
from autosched.executor.compile_graph import compile_graph
from autosched.graph.graph import Graph
from autosched.graph.interpret import exact, interpret
from autosched.graph.memory.storage import StorageError, regions_of
from autosched.graph.steps import Alias, Group, Join
from autosched.kernel.device import find_device
from autosched.planning.execution_plan import NetworkProgram
from tests.graph.drafts import Draft, some_inputs
from tests.graph.fuzz import compiled_faults
from tests.planning.in_memory import planned, run_in_memory


def view_of_a_joined_value() -> Graph:
    d = Draft()
    e, t = d.exp(d.input(1, 11)), d.tanh(d.input(2, 11))
    return d.graph(d.reshape(e, shape=(11, 1)), d.sigmoid(d.concat(t, e, axis=0)))


def view_of_a_joined_output() -> Graph:
    d = Draft()
    e, t = d.exp(d.input(1, 11)), d.tanh(d.input(2, 11))
    return d.graph(d.concat(t, e, axis=0), d.reshape(e, shape=(1, 11, 1)))


def levels_and_their_concatenation() -> Graph:
    d = Draft()
    x = d.input(1, 17)
    levels = [d.linear(x, d.random(n, 17)) for n in (3, 5, 17)]
    flat = [d.reshape(level, shape=(d.values[level].shape[1], 1)) for level in levels]
    return d.graph(*levels, d.concat(*flat, axis=0))


def states_of_a_recurrence() -> Graph:
    d = Draft()
    weights, state, states = d.random(5, 5), d.input(1, 5), []
    for _ in range(3):
        state = d.tanh(d.linear(state, weights))
        states.append(d.reshape(state, shape=(1, 1, 1, 5)))
    return d.graph(d.concat(*states, axis=0), d.reshape(state, shape=(1, 1, 5)))


def concatenations_of_concatenations() -> Graph:
    d = Draft()
    x = d.input(8, 64)
    rows = [d.tanh(d.linear(x, d.random(64, 64))) for _ in range(4)]
    pairs = [d.concat(*(d.reshape(row, shape=(1, 8, 64)) for row in rows[n : n + 2]), axis=0) for n in (0, 2)]
    return d.graph(d.concat(*(d.reshape(pair, shape=(1, 2, 8, 64)) for pair in pairs), axis=0))


def view_of_a_concatenation_within_another() -> Graph:
    d = Draft()
    a, b, c = (d.exp(d.input(1, 7)) for _ in range(3))
    inner = d.concat(a, b, axis=0)
    return d.graph(d.reshape(inner, shape=(14,)), d.sigmoid(d.concat(inner, c, axis=0)), d.reshape(b, shape=(7, 1)))


def outputs_again() -> Graph:
    d = Draft()
    x = d.input(2, 3)
    y = d.relu(x)
    return d.graph(x, y, x, y, y, d.reshape(y, shape=(6,)), d.random(2, 3))


GRAPHS = {
    make.__name__: make
    for make in (
        *(view_of_a_joined_value, view_of_a_joined_output, levels_and_their_concatenation, states_of_a_recurrence),
        *(concatenations_of_concatenations, view_of_a_concatenation_within_another, outputs_again),
    )
}


@pytest.mark.parametrize("name", GRAPHS)
def test_calls_give_all_outputs_and_write_nowhere_else(name: str) -> None:
    graph = GRAPHS[name]()
    inputs = some_inputs(graph)
    assert compiled_faults(graph, inputs, interpret(graph, inputs, exact)) == []


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("target", ["cpu", "cuda -arch=sm_80"])
@pytest.mark.parametrize("threads", [1, 2])
def test_homes_hold_what_is_read(name: str, target: str, threads: int) -> None:
    graph = GRAPHS[name]()
    device = find_device(target, None if target != "cpu" else threads, runs=False)
    inputs = some_inputs(graph)
    wanted = interpret(graph, inputs, exact)
    got = run_in_memory(planned(graph, device, random.Random(threads)), inputs)
    for output, array in zip(graph.outputs, got, strict=True):
        np.testing.assert_allclose(array, wanted[output], rtol=0, atol=1e-5)


# Plans with faults


def some_program() -> NetworkProgram:
    d = Draft()
    x = d.input(3, 64)
    a = d.relu(d.linear(x, d.random(64, 64)))
    parts = [d.tanh(d.linear(a, d.random(n, 64))) for n in (64, 64)]
    whole = d.concat(*parts, axis=0)
    last = d.linear(d.softmax(whole, axis=0), d.random(64, 64))
    return planned(d.graph(d.reshape(last, shape=(2, 3, 64)), d.sigmoid(a)), find_device("cpu", 1), random.Random(3))


def with_offsets(program: NetworkProgram, changes: Mapping[str, int]) -> NetworkProgram:
    return replace(program, memory=replace(program.memory, offsets={**program.memory.offsets, **changes}))


def test_each_home_of_the_arena_is_checked() -> None:
    """Each value of the arena put over each other one: refused, unless they are never needed at once."""
    program = some_program()
    program.verify()
    alive = {t.name: (t.first, t.last) for t in program.buffers}
    assert len(alive) >= 3
    apart = 0
    for name in alive:
        for other in alive:
            moved = with_offsets(program, {name: program.memory.offsets[other]})
            (first, last), (begin, end) = alive[name], alive[other]
            if name != other and first <= end and begin <= last:
                with pytest.raises(StorageError):
                    moved.verify()
                apart += 1
    assert apart >= 4


def test_faults_of_plans_are_found() -> None:
    program = some_program()
    name, offset = next(iter(program.memory.offsets.items()))
    beyond = with_offsets(program, {name: program.memory.nbytes})
    with pytest.raises(StorageError, match=r"which has \d+ bytes"):
        beyond.verify()
    with pytest.raises(StorageError, match="must begin at a multiple of 64"):
        with_offsets(program, {name: offset + 4}).verify()
    others = {other: at for other, at in program.memory.offsets.items() if other != name}
    with pytest.raises(StorageError, match="is stored nowhere"):
        replace(program, memory=replace(program.memory, offsets=others)).verify()
    with pytest.raises(StorageError, match=r"which has \d+ bytes"):
        replace(program, weights_bytes=program.weights_bytes - 64).verify()
    groups = [n for n, step in enumerate(program.steps) if isinstance(step, Group)]
    steps = list(program.steps)
    steps[groups[0]], steps[groups[1]] = steps[groups[1]], steps[groups[0]]
    with pytest.raises(StorageError):
        replace(program, steps=tuple(steps)).verify()
    kernel = program.kernels[groups[0]]
    other = replace(kernel, array_bytes=(*kernel.array_bytes[:-1], kernel.array_bytes[-1] + 4))
    with pytest.raises(StorageError, match="has arrays of"):
        replace(program, kernels={**program.kernels, groups[0]: other}).verify()


@pytest.mark.parametrize("n_joins", [1, 2])
def test_faults_of_steps_are_found(n_joins: int) -> None:
    d = Draft()
    x = d.input(1, 4)
    a, b = d.exp(x), d.tanh(x)
    whole = d.concat(a, b, axis=0)
    graph = d.graph(whole)
    joins = [Join(whole, (a, b)), Join("other", (b,))][:n_joins]
    if n_joins == 1:
        assert regions_of(graph, joins)[b].offset == 4
    else:
        with pytest.raises(StorageError, match=f"{b} is stored within both"):
            regions_of(graph, joins)
    with pytest.raises(StorageError, match="within itself"):
        regions_of(graph, [Alias(a, b), Alias(b, a)])


def test_a_bug_of_a_network_names_it_and_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = states_of_a_recurrence()
    node = graph.nodes[1]

    def fails(*_: object) -> None:
        raise KeyError(node.outputs[0])

    monkeypatch.setattr(compile_module, "build_program", fails)
    with pytest.raises(
        InternalError, match=r"a bug of autosched: the network network cannot be compiled at v1a = tanh"
    ):
        compile_graph(graph, threads=1)
