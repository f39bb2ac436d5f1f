"""Networks as one program: what is computed together, where it lies, and that results are the reference's."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from autosched.executor.compile_graph import compile_graph
from autosched.graph.fusion.partition import partition
from autosched.graph.graph import Graph, Node, Value
from autosched.graph.interpret import interpret
from autosched.graph.operators import results_of
from autosched.graph.steps import Alias, Group, Join
from autosched.planning.device_passes import with_own_outputs
from autosched.planning.kernel_table import HEAD
from autosched.verification.sample_inputs import input_sets
from autosched.verification.verify import verify_network
from tests.graph import networks

NETWORKS = {
    "residual": networks.residual,
    "perceptron": networks.perceptron,
    "attention": networks.attention_block,
    "views": networks.views_out,
    "parts": networks.parts,
    "loop": networks.loop,
    "joined": networks.joined,
}


def inputs_of(graph: Graph) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=graph.values[name].shape).astype("float32") for name in graph.inputs}


def operators(graph: Graph) -> list[str]:
    return [" ".join(n.operator for n in s.nodes) if isinstance(s, Group) else "=" for s in partition(graph)]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_program_computes_the_network(name, threads):
    graph = NETWORKS[name]()
    given = inputs_of(graph)
    model = compile_graph(graph, threads=threads)
    wanted = interpret(graph, given)
    for _ in range(2):  # the arena is dirty the second time
        results = model(**given)
        for output, got in zip(graph.outputs, results if isinstance(results, tuple) else (results,), strict=True):
            np.testing.assert_allclose(got, wanted[output], rtol=0, atol=2e-6 * max(1.0, np.abs(wanted[output]).max()))


def test_what_follows_a_product_is_computed_with_it():
    assert operators(networks.perceptron()) == ["linear relu"] * 3
    assert operators(networks.residual()) == ["conv relu", "conv add relu"]


def test_equal_kernels_are_one_task():
    tasks = compile_graph(networks.perceptron((17, 17, 17)), threads=1).tasks
    assert [task.count for task in tasks] == [2]


def test_steps_with_the_same_weights_have_them_once():
    program = compile_graph(networks.loop(), threads=1).program
    places = [program.packed_offsets[n] for task in program.tasks for n in task.steps if n in program.packed_offsets]
    assert [count for _, count in Counter(places).most_common(2)] >= [4, 4]


@pytest.mark.parametrize("words", [1, 13])
def test_a_table_lies_as_it_is_once(words):
    """Rows of it are looked up where they are added to products, whose weights alone are packed."""
    rng, columns = np.random.default_rng(3), 17
    constants = {
        "table": rng.standard_normal((words, columns)).astype("float32"),
        "w": rng.standard_normal((columns, columns)).astype("float32"),
        "v": rng.standard_normal((columns, columns)).astype("float32"),
    }
    values = {name: Value(name, array.shape, "float32") for name, array in constants.items()}
    values |= {"x": Value("x", (1, columns), "float32"), "ids": Value("ids", (1,), "int64")}
    nodes = []
    for name, operator, inputs in (
        ("row", "gather", ("table", "ids")),
        ("y", "linear", ("x", "w")),
        ("first", "add", ("y", "row")),
        ("z", "linear", ("first", "v")),
        ("sum", "add", ("z", "row")),
    ):
        nodes.append(Node(operator, inputs, (name,)))
        values |= {v.name: v for v in results_of(nodes[-1], values)}
    graph = Graph(("x", "ids"), ("sum",), tuple(nodes), values, constants)
    model = compile_graph(graph, threads=1)
    readers = [step for step in model.program.steps if isinstance(step, Group) and "table" in step.inputs]
    assert len(readers) == 2
    assert model.program.weights_bytes < 3 * 4096
    given = {"x": rng.standard_normal((1, columns)).astype("float32"), "ids": np.array([words - 1])}
    for factor in (1, 2):
        other = model.with_weights({"table": factor * constants["table"]})
        want = interpret(other.original, given)["sum"]
        np.testing.assert_allclose(other(**given), want, rtol=0, atol=1e-5 * np.abs(want).max())
    assert verify_network(model, input_sets(graph)).passed


def test_parts_are_written_where_the_whole_lies():
    for make, count in ((networks.loop, 1), (networks.joined, 2)):
        program = compile_graph(make(), threads=1).program
        assert sum(isinstance(step, Join) for step in program.steps) == count
        assert not any(task.name.endswith("concat") for task in program.tasks)


def test_movement_goes_into_the_reader_or_the_writer():
    found = operators(networks.attention_block())
    assert sum("transpose" in words for words in found) == 3
    assert "transpose" not in found


def test_a_result_may_be_a_constant():
    """Alone or beside others, and in another shape."""
    x, y, table = (Value(n, (3,), "float32") for n in ("x", "y", "table"))
    column, array = Value("column", (3, 1), "float32"), np.arange(3, dtype="float32")
    nodes = (Node("relu", ("x",), ("y",)), Node("reshape", ("table",), ("column",), {"shape": (3, 1)}))
    values = {v.name: v for v in (x, y, table, column)}
    graph = Graph(("x",), ("table", "y", "column"), nodes, values, {"table": array})
    results = compile_graph(graph, threads=1)(np.full(3, -1, "float32"))
    for got, want in zip(results, (array, np.zeros(3), array[:, None]), strict=True):
        np.testing.assert_array_equal(got, want)
    alone = Graph((), ("table",), (), {"table": table}, {"table": array})
    np.testing.assert_array_equal(compile_graph(alone, threads=1)(), array)


def test_each_value_is_made_before_it_is_read():
    for make in NETWORKS.values():
        graph = with_own_outputs(make())
        known = {*graph.inputs, *graph.constants}
        for step in partition(graph):
            match step:
                case Alias():
                    read, made = {step.base}, {step.output}
                case Join():
                    read, made = set(step.parts), {step.output}
                case Group():
                    read, made = set(step.inputs), set(step.outputs)
            assert read <= known
            known |= made
        assert set(graph.outputs) <= known


def test_the_debug_level_has_a_table_of_kernels(monkeypatch, capsys):
    monkeypatch.setenv("AUTOSCHED_DEBUG", "4")
    compile_graph(networks.perceptron((17, 17, 17)), threads=1)
    lines = capsys.readouterr().err.splitlines()
    start = lines.index(HEAD)
    assert lines[start + 1].split()[:3] == ["2", str(2 * 2 * 17 * (2 * 17 + 2)), str(2 * 4 * (2 * 34 + 17 * 17 + 17))]
    assert lines[start + 1].endswith("  linear relu")
    assert lines[start + 2].endswith("  in 1 tasks")
