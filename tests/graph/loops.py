"""Graphs with loops of random bodies: rows read forwards and backwards, states of several kinds, results of all kinds."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np

from autosched.graph.graph import Array, Graph, Node, Value
from autosched.graph.loop_builder import Row
from autosched.graph.onnx.builder import GraphBuilder


def looped(steps: int, rng: random.Random, width: int = 5) -> Graph:
    """A loop over the rows of `x` and `z`, some of whose results are outputs, alone or through another node."""
    builder, rows, random_array = GraphBuilder(), (steps, 3, width), np.random.default_rng(rng.randrange(1000))
    for name, shape in (("x", rows), ("z", (steps, width)), ("h", (3, width)), ("scale", (width,))):
        builder.add_value(Value(name, shape, "float32"))
    weights = builder.add_constant(random_array.normal(size=(width, width)).astype("float32") / width, "w")
    zero = builder.add_constant(np.zeros((3, width), np.float32), "zero")
    reads = [Row("x", rng.random() < 0.5), Row("z", rng.random() < 0.5)]
    if rng.random() < 0.5:
        reads.append(Row(builder.add_constant(random_array.normal(size=(steps, 1)).astype("float32"), "c"), True))

    def emit(operator: str, *inputs: str) -> str:
        return builder.add_node(operator, inputs, {}, 1, "node")[0]

    def iteration(states: tuple[str, ...], given: tuple[str, ...]) -> tuple[list[str], list[Row]]:
        h, c = states
        new = emit("tanh", emit("add", emit("linear", h, weights), given[0]))
        c = emit("add", emit("mul", c, "scale"), emit("mul", new, emit("relu", given[-1])))
        after = rng.choice(([new, c], [c, new], [h, c], [new, new], [new, weights_row(new)]))
        results = [rng.choice((new, c, given[0], h, weights_row(new))) for _ in range(rng.randrange(3))]
        return after, [Row(name, rng.random() < 0.5) for name in results]

    def weights_row(like: str) -> str:
        return emit("sub", like, "scale")

    ends, results = builder.repeat(steps, ("h", zero), reads, iteration, "loop")
    outputs = [emit("tanh", name) if rng.random() < 0.3 else name for name in (*ends, *results)]
    distinct = list(dict.fromkeys(outputs))
    return Graph(
        ("x", "z", "h", "scale"), tuple(distinct), tuple(builder.nodes), builder.values, builder.constants, "looped"
    )


def inputs_of(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(7)
    return {name: rng.normal(size=graph.values[name].shape).astype("float32") for name in graph.inputs}


def counter(steps: int, width: int = 3) -> Graph:
    """`y[i] = x[i] + s` where s is 0 and then the row before, so that y has the running sums of x; and the last one."""
    values = {n: Value(n, (width,), "float32") for n in ("s", "row", "sum", "first")}
    body = Graph(
        ("s", "row"), ("sum",), (Node("add", ("s", "row"), ("sum",)),), {n: values[n] for n in ("s", "row", "sum")}
    )
    attributes = {"steps": steps, "operands": (0, "rows"), "results": ("rows",)}
    loop = Node("repeat", ("first", "x"), ("y",), attributes, "sums", body)
    rows = {n: Value(n, (steps, width), "float32") for n in ("x", "y")}
    return Graph(("first", "x"), ("y",), (loop,), {"first": values["first"], **rows})


def nested(inner: Graph, steps: int) -> Graph:
    """A loop whose body is a graph with constants: all of its inputs have rows, and all of its outputs are rows."""
    constants = {f"outer.{name}": array for name, array in inner.constants.items()}
    body = replace(inner, inputs=(*inner.inputs, *inner.constants), constants={})
    values = {name: replace(inner.values[name], name=name) for name in body.values}
    rows = {
        n: replace(values[n], name=f"outer.{n}", shape=(steps, *values[n].shape))
        for n in (*inner.inputs, *inner.outputs)
    }
    own = {n: replace(values[n], name=f"outer.{n}") for n in inner.constants}
    attributes = {
        "steps": steps,
        "operands": (*("rows" for _ in inner.inputs), *("whole" for _ in inner.constants)),
        "results": tuple("rows backwards" for _ in inner.outputs),
    }
    outputs = tuple(f"outer.{name}" for name in inner.outputs)
    loop = Node("repeat", tuple(f"outer.{name}" for name in body.inputs), outputs, attributes, "outer", body)
    table = {value.name: value for value in (*rows.values(), *own.values())}
    return Graph(tuple(f"outer.{name}" for name in inner.inputs), outputs, (loop,), table, constants)
