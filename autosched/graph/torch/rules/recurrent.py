"""Rules of recurrent networks as loops; products with the inputs of all steps are one product.

The rows of a weight matrix are grouped by gate: input, forget, cell, output of LSTM; reset, update, new of GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import index

from autosched.errors import GraphError
from autosched.graph.graph import Value
from autosched.graph.loop_builder import Row, repeat
from autosched.graph.torch.builder import TraceBuilder
from autosched.graph.torch.rules import enter_all

States = tuple[Value, ...]
# Returns the states after a step, of the products with weights of its input and of h, [B, gates * H], and the states.
Cell = Callable[[TraceBuilder, Value, Value, States], States]


def lstm_cell(b: TraceBuilder, x: Value, h: Value, states: States) -> States:
    i, f, g, o = _gates(b, b.emit("add", x, h), 4)
    kept = b.emit("mul", b.emit("sigmoid", f), states[1])
    c = b.emit("add", kept, b.emit("mul", b.emit("sigmoid", i), b.emit("tanh", g)))
    return b.emit("mul", b.emit("sigmoid", o), b.emit("tanh", c)), c


def gru_cell(b: TraceBuilder, x: Value, h: Value, states: States) -> States:
    (r, z, n), (hr, hz, hn) = _gates(b, x, 3), _gates(b, h, 3)
    reset, update = (b.emit("sigmoid", b.emit("add", *pair)) for pair in ((r, hr), (z, hz)))
    new = b.emit("tanh", b.emit("add", n, b.emit("mul", reset, hn)))
    return (b.emit("add", new, b.emit("mul", update, b.emit("sub", states[0], new))),)


def rnn_cell(activation: str, b: TraceBuilder, x: Value, h: Value, states: States) -> States:
    return (b.emit(activation, b.emit("add", x, h)),)


def _gates(b: TraceBuilder, x: Value, n: int) -> list[Value]:
    size = x.shape[1] // n
    return [b.slice(x, 1, k * size, (k + 1) * size) for k in range(n)]


def recurrent(
    cell: Cell,
    b: TraceBuilder,
    x: Value,
    hx: Value | Sequence[Value],
    params: Sequence[Value],
    *options: bool | int | float,
) -> tuple[Value, ...]:
    """`hx`: the first states, h and of an LSTM c, [layers * directions, B, H]. `params`: of each layer and direction
    weights of inputs and of h, biases of both, and weights that h is projected by. `options`: has_biases, num_layers,
    dropout, train, bidirectional, batch_first."""
    has_biases, n_layers, dropout, is_training, is_bidirectional, is_batch_first = options
    if dropout and is_training and n_layers > 1:
        raise GraphError(f"{b.origin} has dropout {dropout}: call eval() of the module")
    directions = (False, True) if is_bidirectional else (False,)
    firsts = (hx,) if isinstance(hx, Value) else tuple(hx)
    n_runs = int(n_layers) * len(directions)
    n_params, n_named = len(params) // n_runs, 4 if has_biases else 2
    ends: list[States] = []
    every = b.transpose(x, (1, 0, 2)) if is_batch_first else x
    for _ in range(int(n_layers)):
        runs = []
        for backwards in directions:
            n = len(ends)
            own = params[n * n_params : (n + 1) * n_params]
            weights = (*own[:n_named], *(None for _ in range(4 - n_named)), *(own[n_named:] or (None,)))
            states = tuple(b.reshape(b.slice(s, 0, n, n + 1), s.shape[1:]) for s in firsts)
            result, after = _run(cell, b, every, states, weights, backwards)
            runs.append(result)
            ends.append(after)
        every = runs[0] if len(runs) == 1 else b.emit("concat", *runs, axis=2)
    columns = [[b.reshape(s, (1, *s.shape)) for s in column] for column in zip(*ends, strict=True)]
    last = (column[0] if len(column) == 1 else b.emit("concat", *column, axis=0) for column in columns)
    return b.transpose(every, (1, 0, 2)) if is_batch_first else every, *last


def _run(
    cell: Cell, b: TraceBuilder, x: Value, states: States, weights: Sequence[Value | None], backwards: bool
) -> tuple[Value, States]:
    """Return h of every step, [T, B, H], and the last states."""
    of_input, of_state, input_bias, state_bias, projection = weights
    steps, batch = index(x.shape[0]), x.shape[1]
    products = b.emit("linear", b.reshape(x, (steps * batch, x.shape[2])), of_input, input_bias)
    rows = b.reshape(products, (steps, batch, products.shape[1]))

    def iteration(names: tuple[str, ...], given: tuple[str, ...]) -> tuple[Sequence[str], Sequence[Row]]:
        now = tuple(b.values[name] for name in names)
        new = cell(b, b.values[given[0]], b.emit("linear", now[0], of_state, state_bias), now)
        if projection is not None:
            new = (b.emit("linear", new[0], projection, None), *new[1:])
        return [value.name for value in new], [Row(new[0].name, backwards)]

    first = [value.name for value in states]
    ends, (every,) = repeat(b, steps, first, [Row(rows.name, backwards)], iteration, b.origin)
    return b.values[every], tuple(b.values[name] for name in ends)


enter_all({
    "aten.lstm.input": partial(recurrent, lstm_cell),
    "aten.gru.input": partial(recurrent, gru_cell),
    "aten.rnn_tanh.input": partial(recurrent, partial(rnn_cell, "tanh")),
    "aten.rnn_relu.input": partial(recurrent, partial(rnn_cell, "relu")),
})  # fmt: skip
