"""Random graphs of all kinds of operators: small and odd sizes, broadcasts, several users of a value, several outputs.

In one of five there are sizes of 0 as well.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np

from autosched.graph.graph import Graph
from autosched.graph.operators.index_maps import replaced
from autosched.ir.dtype import DTYPES
from tests.graph.drafts import Draft

SIZES = (1, 2, 3, 5, 17)
MOST_ELEMENTS = 1500  # of a value
INTEGERS = tuple(name for name, row in DTYPES.items() if row.is_integer)
UNARY = ("relu", "tanh", "sigmoid", "neg", "abs", "silu", "gelu", "sin", "identity", "hard_swish", "erf")
BINARY = ("add", "mul", "sub", "maximum", "minimum")
REDUCTIONS = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_sum_square")


class GraphMaker:
    """A draft and the values that the next node may read; of those made last one is read most often. `has_empty`:
    whether some have a size of 0."""

    def __init__(self, rng: random.Random, has_empty: bool = False) -> None:
        self.rng, self.draft, self.has_empty = rng, Draft(), has_empty
        self.pool = [self.draft.input(*self.shape(rank)) for rank in rng.choices((1, 2, 3, 4), k=2)]

    def shape(self, rank: int) -> list[int]:
        while True:
            sizes = self.rng.choices((0, *SIZES) if self.has_empty else SIZES, k=rank)
            if math.prod(sizes) <= MOST_ELEMENTS:
                return sizes

    def of(self, name: str) -> tuple[int, ...]:
        return self.draft.values[name].shape

    def draws_empty(self) -> bool:
        """Whether the next size is 0."""
        return self.has_empty and self.rng.random() < 0.15

    def pick(self, least_rank: int = 0) -> str | None:
        known = [name for name in self.pool if len(self.of(name)) >= least_rank]
        recent = known[-3:] if self.rng.random() < 0.7 else known
        return self.rng.choice(recent) if recent else None

    def keep(self, *names: str) -> None:
        self.pool += [name for name in names if math.prod(self.of(name)) <= MOST_ELEMENTS]

    def grow(self) -> None:
        """One more node, or a few that belong together."""
        self.rng.choice(STEPS)(self)

    def graph(self, count: int) -> Graph:
        while len(self.draft.nodes) < count:
            self.grow()
        made = [name for node in self.draft.nodes for name in node.outputs]
        read = {name for node in self.draft.nodes for name in node.used}
        ends = [name for name in made if name not in read] or made[-1:]
        others = [name for name in made if name in read]
        ends += self.rng.sample(others, min(len(others), self.rng.choice((0, 0, 1))))
        if self.rng.random() < 0.5:
            ends += self.shared(ends, made)
            self.rng.shuffle(ends)
        return self.draft.graph(*ends)

    def shared(self, ends: list[str], made: list[str]) -> list[str]:
        """More outputs, which a plan of memory has to keep apart from others or may store with them: views of values,
        of parts and of joined values, values that are joined, outputs again, inputs and constants."""
        found: list[str] = []
        for _ in range(self.rng.randint(1, 3)):
            name = self.rng.choice([*ends, *found] if self.rng.random() < 0.5 else made)
            found += self.rng.choice(ENDS)(self, name)
        return found


def random_graph(seed: int, most: int = 14) -> Graph:
    rng = random.Random(seed)
    return GraphMaker(rng, random.Random(-1 - seed).random() < 0.2).graph(rng.randint(2, most))


def view(m: GraphMaker, name: str) -> str:
    """All of a value in another shape, or rows of it."""
    sizes = m.of(name)
    if sizes and sizes[0] > 1 and m.rng.random() < 0.4:
        start = m.rng.randrange(sizes[0])
        stop = m.rng.randint(start + 1, sizes[0])
        made = m.draft.add_node("slice", name, starts=(start,), stops=(stop,), axes=(0,), steps=(1,))
    elif 1 in sizes and m.rng.random() < 0.5:
        order = sorted(range(len(sizes)), key=lambda d: (sizes[d] != 1, d))
        made = m.draft.transpose(name, perm=tuple(order))
    else:
        flat = math.prod(sizes)
        made = m.draft.reshape(name, shape=m.rng.choice(((flat,), (1, *sizes), (1, flat), (flat, 1, 1))))
    return str(made)


def joined(m: GraphMaker, name: str, axis: int = 0) -> str:
    """The value behind others that fit, in another shape perhaps."""
    sizes = m.of(name)
    if not sizes:
        return view(m, name)
    fits = [n for n in m.draft.values if replaced(m.of(n), axis, 0) == replaced(sizes, axis, 0)
            and len(m.of(n)) == len(sizes) and m.draft.values[n].dtype == m.draft.values[name].dtype]  # fmt: skip
    parts = [name, *m.rng.choices(fits, k=m.rng.randint(1, 3))]
    m.rng.shuffle(parts)
    return str(m.draft.concat(*parts, axis=axis))


def read_again(m: GraphMaker, name: str) -> str:
    """A value computed from another one, so that this is no output."""
    return str(m.draft.sigmoid(name) if m.draft.values[name].dtype == "float32" else m.draft.identity(name))


ENDS: tuple[Callable[[GraphMaker, str], list[str]], ...] = (
    lambda m, name: [view(m, name)],
    lambda m, name: [view(m, view(m, name))],
    lambda m, name: [joined(m, name)],
    lambda m, name: [joined(m, name), view(m, name)],
    lambda m, name: [read_again(m, joined(m, name)), view(m, name)],
    lambda m, name: [view(m, joined(m, joined(m, name)))],
    lambda m, name: [name],
    lambda m, name: [m.draft.inputs[0], view(m, m.draft.inputs[-1])],
    lambda m, name: [m.draft.random(2, 3)],
)


def unary(m: GraphMaker) -> None:
    if x := m.pick():
        m.keep(m.draft.add_node(m.rng.choice(UNARY), x))


def binary(m: GraphMaker) -> None:
    """With another value of the shape, or with a constant that is stretched."""
    if not (x := m.pick()):
        return
    same = [name for name in m.pool if m.of(name) == m.of(x)]
    stretched = [size if m.rng.random() < 0.6 else 1 for size in m.of(x)][m.rng.randint(0, len(m.of(x))) :]
    other = m.rng.choice(same) if m.rng.random() < 0.6 else m.draft.random(*stretched)
    pair = [x, other] if m.rng.random() < 0.5 else [other, x]
    m.keep(m.draft.add_node(m.rng.choice(BINARY), *pair))


def without_sign(m: GraphMaker) -> None:
    """Floats whose bits are integers for a moment."""
    if x := m.pick():
        bits = m.draft.bitwise_and(m.draft.bitcast(x, dtype="uint32"), m.draft.constant(0x7FFFFFFF, "uint32"))
        m.keep(m.draft.bitcast(bits, dtype="float32"))


def whole_numbers(m: GraphMaker) -> None:
    """Integers of which some are zero by algebra, as floats again."""
    if not (x := m.pick()):
        return
    near = m.draft.round(m.draft.mul(m.draft.tanh(x), 9.0))
    ids = m.draft.cast(m.draft.cast(near, dtype="int32"), dtype=m.rng.choice(INTEGERS))
    zero = m.draft.constant(0, m.draft.values[ids].dtype)
    way = m.rng.choice(("sub", "bitwise_xor", "not_equal", "mul", "bitwise_and"))
    none = m.draft.add_node(way, ids, zero if way in ("mul", "bitwise_and") else ids)
    total = m.draft.add(m.draft.cast(none, dtype="float32"), m.draft.cast(ids, dtype="float32"))
    m.keep(m.rng.choice((total, m.draft.cast(none, dtype="float32"))))


def choice(m: GraphMaker) -> None:
    if x := m.pick():
        other = m.rng.choice([name for name in m.pool if m.of(name) == m.of(x)])
        m.keep(m.draft.where(m.draft.less(x, m.draft.random(*m.of(x))), x, other))


def transpose(m: GraphMaker) -> None:
    if x := m.pick(2):
        perm = list(range(len(m.of(x))))
        m.rng.shuffle(perm)
        m.keep(m.draft.transpose(x, perm=tuple(perm)))


def reshape(m: GraphMaker) -> None:
    """Two dimensions as one, one as two, or all in another way."""
    if not (x := m.pick()):
        return
    sizes = list(m.of(x))
    way = m.rng.randrange(3)
    if way == 0 and len(sizes) >= 2:
        d = m.rng.randrange(len(sizes) - 1)
        sizes[d : d + 2] = [sizes[d] * sizes[d + 1]]
    elif way == 1 and sizes and len(sizes) < 5:
        d = m.rng.randrange(len(sizes))
        part = m.rng.choice([n for n in range(1, sizes[d] + 1) if sizes[d] % n == 0] or [3])
        sizes[d : d + 1] = [sizes[d] // part, part]
    else:
        m.rng.shuffle(sizes)
    m.keep(m.draft.reshape(x, shape=tuple(sizes)))


def slice_or_flip(m: GraphMaker) -> None:
    if not (x := m.pick(1)):
        return
    axis = m.rng.randrange(len(m.of(x)))
    size = m.of(x)[axis]
    if m.rng.random() < 0.3:
        m.keep(m.draft.flip(x, axes=(axis,)))
        return
    start = size if not size or m.draws_empty() else m.rng.randrange(size)
    step = m.rng.choice((1, 1, 2))
    m.keep(m.draft.add_node("slice", x, starts=(start,), stops=(size,), axes=(axis,), steps=(step,)))


def split(m: GraphMaker) -> None:
    if x := m.pick(1):
        axis = m.rng.randrange(len(m.of(x)))
        size = m.of(x)[axis]
        if size > 1:
            first = 0 if m.draws_empty() else m.rng.randint(1, size - 1)
            m.keep(*m.draft.add_node("split", x, outputs=2, sizes=(first, size - first), axis=axis))


def concat(m: GraphMaker) -> None:
    if x := m.pick(1):
        axis = m.rng.randrange(len(m.of(x)))
        others = [n for n in m.pool if len(m.of(n)) == len(m.of(x))]
        fits = [n for n in others if replaced(m.of(n), axis, 0) == replaced(m.of(x), axis, 0)]
        m.keep(m.draft.concat(x, *m.rng.choices(fits, k=m.rng.randint(1, 2)), axis=axis))


def expand(m: GraphMaker) -> None:
    if x := m.pick():
        m.keep(m.draft.expand(x, shape=(0 if m.draws_empty() else m.rng.choice((1, 2, 3)), *m.of(x))))


def gather(m: GraphMaker) -> None:
    if x := m.pick(1):
        axis = m.rng.randrange(len(m.of(x)))
        shape = (0,) if not m.of(x)[axis] or m.draws_empty() else m.rng.choice(((), (3,), (2, 2)))
        ids = np.random.default_rng(len(m.pool)).integers(0, max(m.of(x)[axis], 1), shape)
        m.keep(m.draft.gather(x, m.draft.constant(ids, "int64"), axis=axis))


def at_indices(m: GraphMaker) -> None:
    """A gather or a scatter at places that an input says, as it is or rearranged."""
    if not (x := m.pick(1)):
        return
    axis = m.rng.randrange(len(m.of(x)))
    if m.rng.random() < 0.6:
        shape = (0,) if not m.of(x)[axis] or m.draws_empty() else m.rng.choice(((), (3,), (2, 2)))
        ids = m.draft.input(*shape, dtype=m.rng.choice(INTEGERS))
        if m.rng.random() < 0.5:
            ids = m.draft.cast(m.draft.reshape(ids, shape=(1, *m.of(ids))), dtype="int64")
        m.keep(m.draft.gather(x, ids, axis=axis, indexing=m.rng.choice(("wrapped", "plain"))))
    else:
        count = 0 if not m.of(x)[axis] or m.draws_empty() else m.rng.choice((1, 2, 5))
        shape = replaced(m.of(x), axis, count)
        ids = m.draft.input(*shape, dtype="int64")
        ids = m.draft.minimum(ids, m.draft.constant(1 << 40, "int64")) if m.rng.random() < 0.3 else ids
        reduction = m.rng.choice(("none", "add", "max"))
        m.keep(m.draft.scatter_elements(x, ids, m.draft.random(*shape), axis=axis, reduction=reduction))


def reduction(m: GraphMaker) -> None:
    if x := m.pick(1):
        axes = m.rng.sample(range(len(m.of(x))), m.rng.randint(1, min(2, len(m.of(x)))))
        finite = REDUCTIONS if all(m.of(x)[axis] for axis in axes) else ("reduce_sum", "reduce_sum_square")
        m.keep(m.draft.add_node(m.rng.choice(finite), x, axes=tuple(sorted(axes)), keepdims=m.rng.random() < 0.6))


def rows(m: GraphMaker) -> None:
    """Softmax, a norm or running sums."""
    if x := m.pick(1):
        size = m.of(x)[-1]
        made: Callable[[], str] = m.rng.choice(
            (
                lambda: m.draft.softmax(x, axis=m.rng.randrange(len(m.of(x)))),
                lambda: m.draft.layer_norm(x, m.draft.random(size), m.draft.random(size)),
                lambda: m.draft.rms_norm(x, m.draft.random(size)),
                lambda: m.draft.cumsum(x, axis=m.rng.randrange(len(m.of(x)))),
            )
        )
        m.keep(made())


def product(m: GraphMaker) -> None:
    """With weights, or of a value with itself."""
    if not (x := m.pick(2)):
        return
    depth, width = m.of(x)[-1], 0 if m.draws_empty() else m.rng.choice(SIZES)
    if m.rng.random() < 0.3:
        perm = (*range(len(m.of(x)) - 2), len(m.of(x)) - 1, len(m.of(x)) - 2)
        m.keep(m.draft.matmul(x, m.draft.transpose(x, perm=perm)))
    elif m.rng.random() < 0.5:
        m.keep(m.draft.linear(x, m.draft.random(width, depth), m.draft.random(width)))
    else:
        m.keep(m.draft.matmul(x, m.draft.random(depth, width)))


def convolution(m: GraphMaker) -> None:
    if not (x := m.pick(4)) or len(m.of(x)) != 4 or 0 in m.of(x)[2:]:
        return
    channels, taps = m.of(x)[1], m.rng.choice((1, 3))
    pads = ((taps // 2, taps // 2),) * 2
    if m.rng.random() < 0.3:
        m.keep(m.draft.max_pool(x, kernel=(taps, taps), pads=pads))
        return
    weights = m.draft.random(m.rng.choice((1, 3, 5)), channels, taps, taps)
    m.keep(m.draft.conv(x, weights, strides=(1, 1), pads=pads, dilations=(1, 1)))


def attention(m: GraphMaker) -> None:
    """Of one value in three roles, the heads apart or in one dimension with the rest."""
    if not (x := m.pick(3)):
        return
    if len(m.of(x)) == 3:
        heads = m.rng.choice([n for n in (1, 2, 3, 5) if m.of(x)[-1] % n == 0])
        x = m.draft.reshape(x, shape=(*m.of(x)[:2], heads, m.of(x)[2] // heads))
        x = m.draft.transpose(x, perm=(0, 2, 1, 3))
    mixed = m.draft.attention(x, x, x)
    m.keep(mixed if m.rng.random() < 0.4 or len(m.of(mixed)) != 4 else m.draft.transpose(mixed, perm=(0, 2, 1, 3)))


def recurrence(m: GraphMaker) -> None:
    """Steps of a cell, each of the row of its time and the state before; all states as one, and the last one, in the
    shapes of ONNX. One direction, or both as one; one layer, or several."""
    if not (x := m.pick(1)) or 0 in m.of(x):
        return
    steps, width, hidden = m.rng.randint(1, 4), m.of(x)[-1], m.rng.choice((1, 3, 5))
    rows = m.draft.reshape(x, shape=(math.prod(m.of(x)) // width, width))
    steps = min(steps, m.of(rows)[0])
    layer = [m.draft.add_node("slice", rows, starts=(t,), stops=(t + 1,), axes=(0,), steps=(1,)) for t in range(steps)]
    for _ in range(m.rng.choice((1, 1, 2))):
        ways = [_direction(m, layer, hidden, way) for way in m.rng.choice(((1,), (-1,), (1, -1)))]
        stacked = [m.draft.reshape(h, shape=(1, 1, 1, hidden)) for states in ways for h in states]
        lasts = [
            m.draft.reshape(states[::way][-1], shape=(1, 1, hidden)) for states, way in zip(ways, (1, -1), strict=False)
        ]
        if len(ways) == 1:
            m.keep(m.draft.concat(*stacked, axis=0), *lasts)
            layer = ways[0]
        else:
            pairs = [m.draft.concat(*pair, axis=1) for pair in zip(stacked[:steps], stacked[steps:], strict=True)]
            m.keep(m.draft.concat(*pairs, axis=0), m.draft.concat(*lasts, axis=0))
            layer = [m.draft.reshape(pair, shape=(1, 2 * hidden)) for pair in pairs]


def _direction(m: GraphMaker, rows: list[str], hidden: int, way: int) -> list[str]:
    """The states of all times in their order, computed from the first to the last, or backwards."""
    weights, recurrent = m.draft.random(hidden, m.of(rows[0])[1]), m.draft.random(hidden, hidden)
    state = m.draft.constant(np.zeros((1, hidden)))
    found = []
    for row in rows[::way]:
        state = m.draft.tanh(m.draft.add(m.draft.linear(row, weights), m.draft.linear(state, recurrent)))
        found.append(state)
    return found[::way]


STEPS: tuple[Callable[[GraphMaker], None], ...] = (
    *(
        unary,
        binary,
        binary,
        whole_numbers,
        without_sign,
        choice,
        transpose,
        transpose,
        reshape,
        reshape,
        slice_or_flip,
        split,
    ),
    *(concat, expand, gather, at_indices, reduction, rows, product, product, convolution, attention, recurrence),
)
