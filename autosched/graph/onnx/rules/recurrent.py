"""Rules of recurrent networks as loops; products that do not depend on the state are one product for all steps.

The rows of a weight matrix are grouped by gate: input, output, forget, cell of LSTM; update, reset, hidden of GRU. A
step after the end of a sequence keeps the state, and its output is 0. DynamicQuantizeLSTM, of ONNX Runtime's
domain, has weights of bytes, turned, and quantises what is multiplied with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Shape
from autosched.graph.loop_builder import Row
from autosched.graph.onnx.rules.microsoft import DOMAIN
from autosched.graph.onnx.rules.quantised import dynamically_quantised, integer_product
from autosched.graph.onnx.rules.quantised_runtime import with_scale
from autosched.graph.onnx.site import Results, Site, refuse, rule
from autosched.ir.size import has_size

DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}  # whether backwards
# Ours, its attributes, and the defaults of alpha and beta.
ACTIVATIONS: dict[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    **{name: (name.lower(), ()) for name in ("Sigmoid", "Tanh", "Relu", "Softsign", "Softplus")},
    "LeakyRelu": ("leaky_relu", (("alpha", 0.01),)),
    "Elu": ("elu", (("alpha", 1.0),)),
    "ThresholdedRelu": ("thresholded_relu", (("alpha", 1.0),)),
    "HardSigmoid": ("hard_sigmoid", (("alpha", 0.2), ("beta", 0.5))),
}
Activation = Callable[[str], str]
Product = Callable[[str], str]  # of rows with weights, plus a bias


@dataclass(frozen=True)
class Cell:
    """One direction. `products` are those with a state, by their first and last gate, the same in each step; `of_input`
    is that with the rows of all steps. `peepholes`: [3 * H]."""

    site: Site
    hidden: int
    products: Mapping[tuple[int, int], Product]
    of_input: Product
    peepholes: str | None
    activations: tuple[Activation, ...]
    clip: float | None

    def gates(self, x: str) -> list[str]:
        return [self.gate(x, n) for n in range(self.site.shape(x)[-1] // self.hidden)]

    def gate(self, x: str, n: int) -> str:
        return self.site.part(x, self.site.rank(x) - 1, n * self.hidden, (n + 1) * self.hidden)

    def product(self, h: str, first: int, last: int) -> str:
        """h @ weights.T + bias of gates `first` to `last`."""
        return self.products[first, last](h)

    def add(self, a: str, b: str) -> str:
        return self.site.emit("add", a, b)

    def mul(self, a: str, b: str) -> str:
        return self.site.emit("mul", a, b)

    def activate(self, n: int, x: str) -> str:
        if self.clip is not None:
            x = self.site.emit("clip", x, low=-self.clip, high=self.clip)
        return self.activations[n](x)

    def complement(self, x: str) -> str:
        return self.site.emit("sub", self.site.constant(1.0, self.site.dtype(x)), x)


def rnn_step(cell: Cell, x: str, state: tuple[str, ...]) -> tuple[str, ...]:
    return (cell.activate(0, cell.add(x, cell.product(state[0], 0, 1))),)


def gru_step(cell: Cell, x: str, state: tuple[str, ...]) -> tuple[str, ...]:
    (h,) = state
    linear = bool(cell.site.attribute("linear_before_reset", 0))
    sums = cell.gates(cell.product(h, 0, 3 if linear else 2))
    update, reset = (cell.activate(0, cell.add(cell.gate(x, n), sums[n])) for n in (0, 1))
    inner = cell.mul(reset, sums[2]) if linear else cell.product(cell.mul(reset, h), 2, 3)
    new = cell.activate(1, cell.add(cell.gate(x, 2), inner))
    return (cell.add(cell.mul(cell.complement(update), new), cell.mul(update, h)),)


def lstm_step(cell: Cell, x: str, state: tuple[str, ...]) -> tuple[str, ...]:
    h, c = state
    i, o, f, g = cell.gates(cell.add(x, cell.product(h, 0, 4)))

    def peek(gate: str, n: int, at: str) -> str:
        return gate if cell.peepholes is None else cell.add(gate, cell.mul(cell.gate(cell.peepholes, n), at))

    i = cell.activate(0, peek(i, 0, c))
    f = cell.complement(i) if cell.site.attribute("input_forget", 0) else cell.activate(0, peek(f, 2, c))
    c = cell.add(cell.mul(f, c), cell.mul(i, cell.activate(1, g)))
    o = cell.activate(0, peek(o, 1, c))
    return cell.mul(o, cell.activations[2](c)), c


STEPS = {"LSTM": lstm_step, "GRU": gru_step, "RNN": rnn_step}


def kind_of(site: Site) -> str:
    return site.operator.removeprefix("DynamicQuantize")


@rule("DynamicQuantizeLSTM", domain=DOMAIN)
@rule("LSTM", "GRU", "RNN")
def recurrent(site: Site) -> Results:
    """Inputs: x, weights of inputs and of states, biases, lengths, first h, then of an LSTM first c and peepholes. Of
    weights that are bytes scale and zero follow."""
    direction = site.attribute("direction", "forward")
    refuse(direction not in DIRECTIONS, f"the direction {direction}")
    directions = DIRECTIONS[direction]
    batch_first = bool(site.attribute("layout", 0))
    x, states = site.input(0), [site.optional(5), site.optional(6)][: 2 if kind_of(site) == "LSTM" else 1]
    if batch_first:
        x = site.emit("transpose", x, perm=(1, 0, 2))
        states = [None if s is None else site.emit("transpose", s, perm=(1, 0, 2)) for s in states]
    site.ignore("hidden_size", "linear_before_reset", "input_forget")
    runs = [one_direction(site, x, states, n, backwards) for n, backwards in enumerate(directions)]
    steps, batch, hidden = site.shape(runs[0][0])
    every = joined(site, [site.reshape(run[0], (steps, 1, batch, hidden)) for run in runs], 1)
    ends = [joined(site, [site.reshape(run[1][n], (1, batch, hidden)) for run in runs], 0) for n in range(len(states))]
    if batch_first:
        every = site.emit("transpose", every, perm=(2, 0, 1, 3))
        ends = [site.emit("transpose", end, perm=(1, 0, 2)) for end in ends]
    return every, *ends


def joined(site: Site, parts: list[str], axis: int) -> str:
    return parts[0] if len(parts) == 1 else site.emit("concat", *parts, axis=axis)


def one_direction(site: Site, x: str, states: list[str | None], n: int, backwards: bool) -> tuple[str, tuple[str, ...]]:
    """h of every step in the order of time, [T, B, H], 0 behind the end of a sequence, and the last states, [B, H]."""
    steps, batch, width = site.sizes(x, 3)
    steps = index(steps)

    def own(name: str | None) -> str | None:
        """The part of direction `n`, without that axis."""
        return None if name is None else site.reshape(site.part(name, 0, n, n + 1), site.shape(name)[1:])

    cell = cell_of(site, own, n)
    zero = zeros(site, (batch, cell.hidden), site.dtype(x))
    first = tuple(own(state) or zero for state in states)
    if not steps:
        return zeros(site, (0, batch, cell.hidden), site.dtype(x)), first
    products = cell.of_input(site.reshape(x, (steps * batch, width)))
    rows = [Row(site.reshape(products, (steps, batch, site.shape(products)[1])), backwards)]
    inside = within(site, steps)
    if inside is not None:
        rows.append(Row(inside, backwards))

    def iteration(now: tuple[str, ...], given: tuple[str, ...]) -> tuple[Sequence[str], Sequence[Row]]:
        new = STEPS[kind_of(site)](cell, given[0], now)
        if inside is None:
            return new, [Row(new[0], backwards)]
        kept = [site.emit("where", given[1], *pair) for pair in zip(new, now, strict=True)]
        return kept, [Row(site.emit("where", given[1], new[0], zero), backwards)]

    ends, (every,) = site.builder.repeat(steps, first, rows, iteration, site.origin)
    if inside is not None:  # the last states of an empty sequence are 0, as in ONNX Runtime, whatever the first are
        some = site.reshape(site.part(inside, 0, 0, 1), (batch, 1))
        ends = tuple(site.emit("where", some, end, zero) for end in ends)
    return every, ends


def zeros(site: Site, shape: Shape, dtype: str) -> str:
    if has_size(shape):
        return site.emit("expand", site.constant(0, dtype), shape=shape)
    return site.constant(np.zeros(shape), dtype)


def within(site: Site, steps: int) -> str | None:
    """Return which sequences have each step, [T, B, 1]; None if all have all."""
    name = site.optional(4)
    if name is None:
        return None
    lengths = site.builder.constants.get(name)
    if lengths is None:
        numbers = site.constant(np.arange(steps).reshape(steps, 1, 1), site.dtype(name))
        return site.emit("less", numbers, site.reshape(name, (1, site.shape(name)[0], 1)))
    if lengths.min() < 0 or lengths.max() > steps:
        raise GraphError(f"the lengths {lengths.tolist()} of sequences are not all within 0 to {steps}, the steps of x")
    inside = np.arange(steps)[:, None, None] < lengths[None, :, None]
    return None if inside.all() else site.constant(inside)


def cell_of(site: Site, own: Callable[[str | None], str | None], n: int) -> Cell:
    kind, biases, is_quantised = kind_of(site), own(site.optional(3)), site.operator != kind_of(site)
    of_input, of_hidden = own(site.input(1)), own(site.input(2))
    assert of_input is not None, "its schema asks for three inputs"
    assert of_hidden is not None, "its schema asks for three inputs"
    hidden = site.shape(of_hidden)[0 if is_quantised else 1]
    size = GATES[kind] * hidden
    bias = [None if biases is None else site.part(biases, 0, k * size, (k + 1) * size) for k in (0, 1)]
    peepholes = own(site.optional(7)) if kind == "LSTM" else None
    if is_quantised:
        scale, zero, hidden_scale, hidden_zero = (own(site.optional(k)) for k in range(8, 12))
        of_state: Product = partial(quantised_product, site, of_hidden, hidden_scale, hidden_zero, bias[1])
        products = {(0, GATES[kind]): of_state}
        whole: Product = partial(quantised_product, site, of_input, scale, zero, bias[0])
    else:
        products = {gates: product_of(site, of_hidden, bias[1], gates) for gates in products_of(site)}
        whole = product_of(site, of_input, bias[0], (0, GATES[kind]))
    return Cell(site, hidden, products, whole, peepholes, activations_of(site, n), site.attribute("clip"))


def products_of(site: Site) -> tuple[tuple[int, int], ...]:
    """The products with a state in a step, by their first and last gate."""
    is_apart = site.operator == "GRU" and not site.attribute("linear_before_reset", 0)
    return ((0, 2), (2, 3)) if is_apart else ((0, GATES[site.operator]),)


def product_of(site: Site, weights: str, bias: str | None, gates: tuple[int, int]) -> Product:
    """Return the products of some gates; weights [gates * H, width], bias [gates * H]."""
    hidden = site.shape(weights)[0] // GATES[site.operator]
    first, last = (n * hidden for n in gates)
    rows = site.part(weights, 0, first, last)
    added = None if bias is None else site.part(bias, 0, first, last)
    return lambda x: site.emit("linear", x, rows, added)


def quantised_product(site: Site, weights: str, scale: str | None, zero: str | None, bias: str | None, x: str) -> str:
    """Return the products of dynamically quantised x with quantised weights [width, gates * H].

    The weights have one scale and zero, or one for each column.
    """
    if scale is None:
        raise GraphError("the scales of its weights are missing")
    bytes_, own_scale, own_zero = dynamically_quantised(site, x)
    return with_scale(site, integer_product(site, bytes_, weights, own_zero, zero), [own_scale, scale], bias)


def activations_of(site: Site, direction: int) -> tuple[Activation, ...]:
    """Return the activations of one direction; alphas and betas go, in order, to those that have such a parameter."""
    count = len(DEFAULTS[kind_of(site)])
    names = tuple(site.attribute("activations", DEFAULTS[kind_of(site)] * 2))
    numbers = {name: list(site.attribute(f"activation_{name}", ())) for name in ("alpha", "beta")}
    known = {name.lower(): activation for name, activation in ACTIVATIONS.items()}
    made: list[Activation] = []
    for name in names:
        refuse(name.lower() not in known, f"the activation {name}")
        ours, takes = known[name.lower()]
        attributes = {key: numbers[key].pop(0) if numbers[key] else default for key, default in takes}
        made.append(partial(site.emit, ours, **attributes))
    return tuple(made[direction * count : (direction + 1) * count])
