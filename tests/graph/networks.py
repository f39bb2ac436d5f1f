"""Small networks built by hand: each shows one thing that partitioning and linking must get right."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from autosched.graph.graph import Graph, Node, Value
from autosched.graph.operators import results_of


class Builder:
    """Adds nodes one by one; shapes and types follow."""

    def __init__(self, **inputs: tuple[int, ...]) -> None:
        self.inputs = tuple(inputs)
        self.values = {name: Value(name, shape, "float32") for name, shape in inputs.items()}
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}
        self.rng = np.random.default_rng(0)

    def constant(self, *shape: int) -> str:
        """Random numbers with deviation 1 / sqrt(size of the first dimension)."""
        name = f"c{len(self.constants)}"
        scale = 1 / np.sqrt(shape[0]) if shape else 1.0
        self.constants[name] = (scale * self.rng.normal(size=shape)).astype("float32")
        self.values[name] = Value(name, shape, "float32")
        return name

    def add(self, operator: str, *inputs: str | None, **attributes: Any) -> str:
        node = Node(operator, inputs, (f"{operator}{len(self.nodes)}",), attributes)
        (value,) = results_of(node, self.values)
        self.values[value.name] = value
        self.nodes.append(node)
        return value.name

    def graph(self, *outputs: str) -> Graph:
        return Graph(self.inputs, outputs, tuple(self.nodes), self.values, self.constants)


def residual(channels: int = 5, size: int = 7) -> Graph:
    """relu(conv(relu(conv(x) + b)) + x)."""
    b = Builder(x=(1, channels, size, size))
    same = {"strides": (1, 1), "pads": ((1, 1), (1, 1)), "dilations": (1, 1)}
    inner = b.add("relu", b.add("conv", "x", b.constant(channels, channels, 3, 3), b.constant(channels), **same))
    outer = b.add("conv", inner, b.constant(channels, channels, 3, 3), None, **same)
    return b.graph(b.add("relu", b.add("add", outer, "x")))


def perceptron(sizes: Sequence[int] = (3, 17, 17, 5)) -> Graph:
    """Products with bias and relu; two of them are the same task."""
    b = Builder(x=(2, sizes[0]))
    value = "x"
    for ins, outs in itertools.pairwise(sizes):
        value = b.add("relu", b.add("linear", value, b.constant(outs, ins), b.constant(outs)))
    return b.graph(value)


def attention_block(length: int = 6, width: int = 8, heads: int = 2) -> Graph:
    """softmax(q k) v with heads taken apart and put together by reshape and transpose, and a residual."""
    b = Builder(x=(1, length, width))
    q, k, v = (
        b.add(
            "transpose",
            b.add("reshape", b.add("matmul", "x", b.constant(width, width)), shape=(1, length, heads, width // heads)),
            perm=perm,
        )
        for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    )
    shares = b.add("softmax", b.add("mul", b.add("matmul", q, k), b.constant()), axis=-1)
    joined = b.add(
        "reshape", b.add("transpose", b.add("matmul", shares, v), perm=(0, 2, 1, 3)), shape=(1, length, width)
    )
    return b.graph(b.add("add", b.add("matmul", joined, b.constant(width, width)), "x"))


def parts() -> Graph:
    """Rows of the input, of a result and of a constant, read by kernels and given out; with odd sizes, so that they
    begin anywhere in a cache line."""
    b = Builder(x=(7, 3, 5))
    turned = b.add("softmax", "x", axis=1)

    def rows(of: str, start: int, stop: int) -> str:
        return b.add("slice", of, starts=(start,), stops=(stop,), axes=(0,))

    weights, table = b.constant(5, 5), b.constant(4, 3, 5)
    products = [b.add("softmax", b.add("linear", rows(of, 1, 3), weights), axis=-1) for of in ("x", turned, table)]
    last = b.add("slice", rows(turned, 6, 7), starts=(1,), stops=(2,), axes=(1,))
    return b.graph(turned, rows(turned, 2, 5), rows("x", 1, 4), b.add("relu", last), last, *products)


def loop(steps: int = 5, batch: int = 2, hidden: int = 5) -> Graph:
    """h = tanh(x[t] + h @ w) with equal weights in each step, both ways."""
    b = Builder(x=(steps, batch, 3))
    ends = []
    for turn in (1, -1):
        rows = b.add("linear", "x", b.constant(hidden, 3), b.constant(hidden))
        weights, h = b.constant(hidden, hidden), b.constant(batch, hidden)
        for t in range(steps)[::turn]:
            row = b.add("reshape", b.add("slice", rows, starts=(t,), stops=(t + 1,)), shape=(batch, hidden))
            h = b.add("tanh", b.add("add", row, b.add("linear", h, weights)))
            ends.append(b.add("reshape", h, shape=(1, batch, hidden)))
    return b.graph(b.add("concat", *ends, axis=0))


def joined() -> Graph:
    """Results of odd sizes behind each other, read whole, in part and by themselves; and some as an output."""
    b = Builder(x=(3, 5))
    rows = [b.add("softmax", b.add("matmul", b.constant(n, 3), "x"), axis=-1) for n in (1, 4, 2)]
    whole = b.add("concat", *rows, axis=0)
    middle = b.add("slice", whole, starts=(2,), stops=(6,), axes=(0,))
    last = [
        b.add("linear", b.add("reshape", y, shape=(1, 20)), b.constant(n, 20)) for n, y in ((7, rows[1]), (3, middle))
    ]
    return b.graph(b.add("softmax", whole, axis=0), b.add("concat", *last, axis=1))


def views_out() -> Graph:
    """Outputs without memory of their own: the input, one result twice, another shape of it."""
    b = Builder(x=(2, 6))
    y = b.add("relu", "x")
    return b.graph("x", y, b.add("reshape", y, shape=(3, 4)))
