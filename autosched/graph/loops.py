"""Loops of a known number of iterations: nodes of the operator `repeat`, whose body is a graph.

    every, last = repeat(first, x, w) {steps: 8, operands: [0, "rows", "whole"], results: ["rows", "last"]}
        body(h, x, w) -> h, c

The attributes say what an input of the body is in an iteration, and what becomes of each output of the body:

    "whole"           the operand, the same in all iterations
    "rows"            the operand's row along its first axis that has the number of the iteration
    "rows backwards"  the row that has this number counted from the end
    an integer        the state: the operand in the first iteration, later this output of the iteration before

    "rows", "rows backwards"  the outputs of all iterations are the rows of the result
    "last"                    the result is the output of the last iteration

A body has no constants, so that a graph holds all of its own: they are operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Array, Graph, Node, Value

REPEAT = "repeat"
FEW_ITERATIONS = 4  # up to which a loop is unrolled
WHOLE, ROWS, BACKWARDS, LAST = "whole", "rows", "rows backwards", "last"
Read = str | int  # WHOLE, ROWS, BACKWARDS, or the number of an output


@dataclass(frozen=True)
class GraphLoop:
    """The attributes of a loop: the iterations `steps`, what inputs of the `body` are, and what becomes of outputs."""

    body: Graph
    steps: int
    operands: tuple[Read, ...]
    results: tuple[str, ...]

    def row(self, kind: str, step: int) -> int:
        """Return the row that an iteration reads or writes."""
        return self.steps - 1 - step if kind == BACKWARDS else step


def loop_of(node: Node) -> GraphLoop:
    """Return the loop that a node is."""
    assert node.body is not None, f"{node} is no loop"
    given = node.attributes
    operands, results = cast("tuple[Read, ...]", given["operands"]), cast("tuple[str, ...]", given["results"])
    return GraphLoop(node.body, cast("int", given["steps"]), operands, results)


def loop_node(
    body: Graph, steps: int, operands: Sequence[tuple[str, Read]], results: Sequence[tuple[str, str]], origin: str
) -> Node:
    """Return a loop. `operands` and `results`: names of values, in the order of the body's inputs and outputs, each
    with its attribute."""
    names, reads = zip(*operands, strict=True)
    outputs, kinds = zip(*results, strict=True)
    return Node(REPEAT, names, outputs, {"steps": steps, "operands": reads, "results": kinds}, origin, body)


def operands_at_run_time(graph: Graph, node: Node) -> tuple[tuple[str, Read], ...]:
    """Return the operands of a loop, and as what each is read, without those that `with_constants` makes constants of
    its body."""
    pairs = zip(node.inputs, loop_of(node).operands, strict=True)
    return tuple((x or "", read) for x, read in pairs if not (read == WHOLE and x in graph.constants))


def with_constants(graph: Graph, node: Node) -> Graph:
    """Return the body of a loop, whose inputs that are the same constant of the graph in all iterations are constants
    of the body."""
    loop = loop_of(node)
    triples = zip(loop.body.inputs, node.inputs, loop.operands, strict=True)
    constants = {own: graph.constants[x or ""] for own, x, read in triples if read == WHOLE and x in graph.constants}
    inputs = tuple(name for name in loop.body.inputs if name not in constants)
    return replace(loop.body, inputs=inputs, constants=constants, winograd=graph.winograd)


def results_of_loop(node: Node, values: Mapping[str, Value]) -> tuple[Value, ...]:
    """Return the results of a loop. Raises GraphError for operands and attributes that do not fit the body."""
    loop, label = loop_of(node), node.origin or node.operator
    body = loop.body
    made = [body.values[name] for name in body.outputs]
    numbers = len(node.inputs), len(loop.operands), len(node.outputs), len(loop.results)
    if loop.steps < 1 or body.constants or numbers != (len(body.inputs),) * 2 + (len(made),) * 2:
        raise GraphError(
            f"{label}: {loop.steps} iterations of a body with other operands, or with constants: not a loop"
        )
    for name, own, read in zip(node.inputs, body.inputs, loop.operands, strict=True):
        given, inner = values[name or ""], body.values[own]
        is_row = read in (ROWS, BACKWARDS)
        expected = (loop.steps, *inner.shape) if is_row else inner.shape
        if (given.shape, given.dtype) != (expected, inner.dtype):
            raise GraphError(f"{label}: {given} is read as {inner} ({read}), which needs {list(expected)}")
        if is_row or read == WHOLE:
            continue
        after = made[read] if isinstance(read, int) and 0 <= read < len(made) else None
        if after is None or (after.shape, after.dtype) != (inner.shape, inner.dtype):
            raise GraphError(f"{label}: the state {inner} becomes {after or read}, which is of another shape or type")
    if not {*loop.results} <= {LAST, ROWS, BACKWARDS}:
        raise GraphError(f"{label}: {loop.results} are no results of a loop")
    shapes = (v.shape if x == LAST else (loop.steps, *v.shape) for v, x in zip(made, loop.results, strict=True))
    return tuple(Value(name, shape, v.dtype) for name, shape, v in zip(node.outputs, shapes, made, strict=True))


def run_loop(
    node: Node, values: Mapping[str, Array], run_body: Callable[[Mapping[str, Array]], Sequence[Array]]
) -> tuple[Array, ...]:
    """Return the results of a loop. `run_body` maps the inputs of the body, by name, to its outputs."""
    loop = loop_of(node)
    each: list[Sequence[Array]] = []
    for step in range(loop.steps):
        given = {}
        for name, own, read in zip(node.inputs, loop.body.inputs, loop.operands, strict=True):
            operand = values[name or ""]
            if isinstance(read, int):
                given[own] = each[-1][read] if each else operand
            else:
                given[own] = operand if read == WHOLE else operand[loop.row(read, step)]
        each.append(run_body(given))
    columns = zip(*each, strict=True)
    return tuple(
        column[-1] if kind == LAST else np.stack(column if kind == ROWS else column[::-1])
        for kind, column in zip(loop.results, columns, strict=True)
    )
