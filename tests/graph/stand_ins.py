"""Operators that tests of passes need, as plain as possible, for names that the table does not have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from autosched import te
from autosched.graph.operators import operator, operators
from autosched.graph.operators.elementwise import broadcast_shape, map_elements
from autosched.te import Tensor

Axes = tuple[int, ...]


def _elementwise() -> dict[str, Any]:
    two = {
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": lambda a, b: a / b,
        "pow": te.pow,
        "maximum": te.maximum,
        "minimum": te.minimum,
    }
    one = {
        "neg": lambda a: -a,
        "exp": te.exp,
        "sqrt": te.sqrt,
        "rsqrt": te.rsqrt,
        "reciprocal": lambda a: 1.0 / a,
        "tanh": te.tanh,
        "erf": te.erf,
        "sigmoid": te.sigmoid,
        "silu": lambda a: a * te.sigmoid(a),
        "identity": lambda a: a,
        "logical_not": te.logical_not,
    }
    return {name: _mapped(name, f) for name, f in {**two, **one, "where": te.select}.items()}


def _mapped(name: str, function: Any) -> Any:
    return lambda *tensors: map_elements(function, *tensors, name=name)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    def exact(a: Any) -> Any:
        return a * 0.5 * (te.erf(a * math.sqrt(0.5)) + 1.0)

    def tanh(a: Any) -> Any:
        return a * 0.5 * (te.tanh((a + a * a * a * 0.044715) * math.sqrt(2 / math.pi)) + 1.0)

    return map_elements(tanh if approximate == "tanh" else exact, x, name="gelu")


def clip(x: Tensor, low: float | None = None, high: float | None = None) -> Tensor:
    ends = (-math.inf if low is None else low, math.inf if high is None else high)
    return map_elements(lambda a: te.min(te.max(a, float(ends[0])), float(ends[1])), x, name="clip")


def hard_sigmoid(x: Tensor, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return map_elements(lambda a: te.min(te.max(a * alpha + beta, 0.0), 1.0), x, name="hard_sigmoid")


def hard_swish(x: Tensor) -> Tensor:
    return map_elements(lambda a: a * te.min(te.max(a + 3.0, 0.0), 6.0) / 6.0, x, name="hard_swish")


def cast(x: Tensor, dtype: str, saturate: bool = False) -> Tensor:
    return map_elements(lambda a: te.cast(a, dtype), x, name="cast")


def reshape(x: Tensor, shape: Axes) -> Tensor:
    def at(*index: Any) -> Any:
        flat: Any = 0
        for i, size in zip(index, shape, strict=True):
            flat = flat * size + i
        places = []
        for size in reversed(x.shape):
            places.append(flat % size)
            flat = flat // size
        return x[tuple(reversed(places))]

    return te.compute(shape, at, name="reshape")


def transpose(x: Tensor, perm: Axes) -> Tensor:
    shape = tuple(x.shape[axis] for axis in perm)
    return te.compute(shape, lambda *i: x[tuple(i[perm.index(n)] for n in range(len(perm)))], name="transpose")


def expand(x: Tensor, shape: Axes) -> Tensor:
    whole, lead = broadcast_shape(x.shape, shape), len(shape) - len(x.shape)
    return te.compute(
        whole, lambda *i: x[tuple(0 if s == 1 else j for s, j in zip(x.shape, i[lead:], strict=True))], name="expand"
    )


def slice_(x: Tensor, starts: Axes, stops: Axes, axes: Axes, steps: Axes) -> Tensor:
    ranges = [range(size) for size in x.shape]
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        ranges[axis] = range(x.shape[axis])[start:stop:step]
    return te.compute(
        tuple(map(len, ranges)),
        lambda *i: x[tuple(j * r.step + r.start for j, r in zip(i, ranges, strict=True))],
        name="slice",
    )


def split(x: Tensor, sizes: Axes, axis: int) -> tuple[Tensor, ...]:
    stops = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return tuple(slice_(x, (b - s,), (b,), (axis,), (1,)) for s, b in zip(sizes, stops, strict=True))


def concat(*x: Tensor, axis: int) -> Tensor:
    (whole,) = x  # the tests join nothing
    return map_elements(lambda a: a, whole, name="concat")


def pad(x: Tensor, pads: Sequence[tuple[int, int]], mode: str = "constant", value: float = 0.0) -> Tensor:
    def at(*index: Any) -> Any:
        places = [i - low for i, (low, _) in zip(index, pads, strict=True)]
        inside = [te.all(p >= 0, p < size) for p, size in zip(places, x.shape, strict=True)]
        return te.select(te.all(*inside), x[tuple(places)], value)

    return te.compute(tuple(s + a + b for s, (a, b) in zip(x.shape, pads, strict=True)), at, name="pad")


def _sum(x: Tensor, axes: Axes, square: bool = False) -> Tensor:
    """Over `axes`, which stay with size 1."""
    places = [axis % len(x.shape) for axis in axes]

    def at(*index: Any) -> Any:
        over = {p: te.reduce_axis(x.shape[p], name=f"r{p}") for p in places}
        element = x[tuple(over.get(n, i) for n, i in enumerate(index))]
        return te.sum(element * element if square else element, axis=tuple(over.values()))

    return te.compute(tuple(1 if n in places else s for n, s in enumerate(x.shape)), at, name="sum")


def reduce_sum(x: Tensor, axes: Axes, keepdims: bool = True) -> Tensor:
    kept = _sum(x, axes)
    own = tuple(s for n, s in enumerate(x.shape) if n not in {axis % len(x.shape) for axis in axes})
    return kept if keepdims else reshape(kept, own)


def reduce_mean(x: Tensor, axes: Axes, keepdims: bool = True) -> Tensor:
    count = math.prod(x.shape[axis] for axis in axes)
    return map_elements(lambda a: a / float(count), reduce_sum(x, axes, keepdims), name="mean")


def softmax(x: Tensor, axis: int) -> Tensor:
    powers = map_elements(te.exp, x, name="powers")
    return map_elements(lambda a, b: a / b, powers, _sum(powers, (axis,)), name="softmax")


def _normalised(x: Tensor, axes: Axes, epsilon: float, centred: bool = True) -> Tensor:
    count = float(math.prod(x.shape[axis] for axis in axes))
    middle = map_elements(lambda a, s: a - s / count, x, _sum(x, axes), name="middle") if centred else x
    squares = _sum(middle, axes, square=True)
    return map_elements(
        lambda a, s: te.cast(a / te.sqrt(s / count + epsilon), x.dtype), middle, squares, name="normalised"
    )


def _scaled(x: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    if scale is not None:
        x = map_elements(lambda a, b: a * b, x, scale, name="scaled")
    return x if bias is None else map_elements(lambda a, b: a + b, x, bias, name="shifted")


def _for_channels(x: Tensor | None, rank: int) -> Tensor | None:
    return None if x is None else reshape(x, (x.shape[0], *(1,) * (rank - 2)))


def layer_norm(
    x: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, *, axes: int, epsilon: float
) -> Tensor:
    return _scaled(_normalised(x, tuple(range(-axes, 0)), epsilon), scale, bias)


def rms_norm(x: Tensor, scale: Tensor | None = None, *, axes: int, epsilon: float) -> Tensor:
    return _scaled(_normalised(x, tuple(range(-axes, 0)), epsilon, centred=False), scale, None)


def instance_norm(x: Tensor, scale: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    rank = len(x.shape)
    found = _normalised(x, tuple(range(2, rank)), epsilon)
    return _scaled(found, _for_channels(scale, rank), _for_channels(bias, rank))


def group_norm(
    x: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, *, groups: int, epsilon: float
) -> Tensor:
    grouped = reshape(x, (x.shape[0], groups, math.prod(x.shape[1:]) // groups))
    found = reshape(_normalised(grouped, (2,), epsilon), x.shape)
    return _scaled(found, _for_channels(scale, len(x.shape)), _for_channels(bias, len(x.shape)))


def batch_norm(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, epsilon: float) -> Tensor:
    s, b, m, v = (_for_channels(t, len(x.shape)) for t in (scale, bias, mean, var))
    return map_elements(lambda a, s, b, m, v: (a - m) * s / te.sqrt(v + epsilon) + b, x, s, b, m, v, name="batch_norm")


def matmul(a: Tensor, b: Tensor) -> Tensor:
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    k = te.reduce_axis(a.shape[-1], name="k")

    def place(t: Tensor, outer: tuple[Any, ...], *inner: Any) -> Any:
        own = outer[len(outer) - len(t.shape) + 2 :]
        return t[(*(0 if s == 1 else i for s, i in zip(t.shape[:-2], own, strict=True)), *inner)]

    return te.compute(
        (*batch, a.shape[-2], b.shape[-1]),
        lambda *i: te.sum(place(a, i[:-2], i[-2], k) * place(b, i[:-2], k, i[-1]), axis=k),
        name="matmul",
    )


def linear(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return _scaled(matmul(x, transpose(w, (1, 0))), None, b)


def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Tensor:
    left, right = (transpose(t, (1, 0)) if turned else t for t, turned in ((a, trans_a), (b, trans_b)))
    made = map_elements(lambda x: x * alpha, matmul(left, right), name="scaled")
    return made if c is None else map_elements(lambda x, y: x + y * beta, made, c, name="gemm")


def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    strides: Axes = (),
    pads: Sequence[tuple[int, int]] = (),
    dilations: Axes = (),
    groups: int = 1,
) -> Tensor:
    """Of stride 1 and without dilation."""
    padded = pad(x, ((0, 0), (0, 0), *(pads or [(0, 0)] * (len(x.shape) - 2))))
    per_group, taps = w.shape[1], w.shape[2:]

    def at(n: Any, co: Any, *place: Any) -> Any:
        ci = te.reduce_axis(per_group, name="ci")
        over = [te.reduce_axis(size, name=f"t{d}") for d, size in enumerate(taps)]
        channel = co // (w.shape[0] // groups) * per_group + ci
        shifted = [p + t for p, t in zip(place, over, strict=True)]
        return te.sum(padded[(n, channel, *shifted)] * w[(co, ci, *over)], axis=(ci, *over))

    out = tuple(size - tap + 1 for size, tap in zip(padded.shape[2:], taps, strict=True))
    made = te.compute((x.shape[0], w.shape[0], *out), at, name="conv")
    return _scaled(made, None, _for_channels(b, len(x.shape)))


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, scale: float | None = None, causal: bool = False
) -> Tensor:
    rank = len(q.shape)
    k, v = (
        te.compute(
            (*q.shape[:-2], *t.shape[-2:]),
            lambda *i, t=t: t[(*i[:-3], i[-3] // (q.shape[-3] // t.shape[-3]), *i[-2:])],
            name=name,
        )
        for name, t in (("keys", k), ("values", v))
    )
    turned = transpose(k, (*range(rank - 2), rank - 1, rank - 2))
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = map_elements(lambda a: a * factor, matmul(q, turned), name="scores")
    if mask is not None:
        scores = map_elements(
            lambda a, b: te.select(b, a, -math.inf) if mask.dtype == "bool" else a + b, scores, mask, name="masked"
        )
    if causal:
        seen = scores
        scores = te.compute(seen.shape, lambda *i: te.select(i[-1] <= i[-2], seen[i], -1e30), name="causal")
    return matmul(softmax(scores, -1), v)


FUNCTIONS = (
    gelu, clip, hard_sigmoid, hard_swish, cast, reshape, transpose, expand, slice_, split, concat, pad, reduce_sum,
    reduce_mean, softmax, layer_norm, rms_norm, instance_norm, group_norm, batch_norm, matmul, linear, gemm, conv,
    attention,
)  # fmt: skip


for _name, _function in _elementwise().items():
    _function.__name__ = _name
    if _name not in operators():
        operator(_function)
for _function in FUNCTIONS:
    if _function.__name__.rstrip("_") not in operators():
        operator(_function)
