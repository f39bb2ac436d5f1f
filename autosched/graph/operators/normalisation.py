"""Normalisations. Every intermediate is a stage of its own, which schedules fuse."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.elementwise import broadcast_shape, counted, element
from autosched.graph.operators.images import Images
from autosched.graph.operators.pools import power_of_size, root
from autosched.ir.expr import Expr
from autosched.te import Tensor
from autosched.te.operators.normalise import folded_batch_norm, softmax_over
from autosched.te.operators.window import pad, stored

Index = Sequence[Expr]
T = TypeVar("T")


@operator
def batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    epsilon: float = 1e-5,
    channels_last: bool = False,
) -> Tensor:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, each of a channel of the images x."""
    images = Images(channels_last)
    channels = _channels(images, x)
    for given in (scale, bias, mean, var):
        _check_channels(given, channels)
    factor, shift = folded_batch_norm(scale, bias, mean, var, epsilon)

    def at(*i: Expr) -> Expr:
        c = images.channel(i)
        return x[i] * factor[c] + shift[c]

    return stored(te.compute(x.shape, at, name="batch_norm"), x.dtype)


@operator
def layer_norm(
    x: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, axes: int = 1, epsilon: float = 1e-5
) -> Tensor:
    """(x - mean) / sqrt(var + epsilon) * scale + bias over the last `axes` dimensions; var is the mean of squares."""
    start = _first_axis(x, axes)
    for given in (scale, bias):
        _check_broadcast(given, x)
    mean, factor = _moments(lambda i, k: x[(*i, *k)], x.shape[:start], x.shape[start:], epsilon)

    def at(*i: Expr) -> Expr:
        normal = (x[i] - mean[i[:start]]) * factor[i[:start]]
        return _affine(normal, scale, bias, lambda given: element(given, i))

    return stored(te.compute(x.shape, at, name="layer_norm"), x.dtype)


@operator
def rms_norm(x: Tensor, scale: Tensor | None = None, axes: int = 1, epsilon: float = 1e-5) -> Tensor:
    """x / sqrt(mean of x^2 + epsilon) * scale over the last `axes` dimensions."""
    start = _first_axis(x, axes)
    _check_broadcast(scale, x)
    count = counted(math.prod(x.shape[start:]))
    k = [te.reduce_axis(n, name="k") for n in x.shape[start:]]
    squares = te.compute(x.shape[:start], lambda *i: te.sum(x[(*i, *k)] * x[(*i, *k)], axis=k), name="squares")
    factor = te.compute(x.shape[:start], lambda *i: te.rsqrt(squares[i] / count + epsilon), name="scale")

    def at(*i: Expr) -> Expr:
        return _affine(x[i] * factor[i[:start]], scale, None, lambda given: element(given, i))

    return stored(te.compute(x.shape, at, name="rms_norm"), x.dtype)


@operator
def group_norm(
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    groups: int = 1,
    epsilon: float = 1e-5,
    channels_last: bool = False,
) -> Tensor:
    """(x - mean) / sqrt(var + epsilon) * scale[C] + bias[C] over each group of channels of the images x."""
    images = Images(channels_last)
    channels = _channels(images, x)
    if groups < 1 or channels % groups:
        raise GraphError(f"{channels} channels do not fit {groups} groups")
    for given in (scale, bias):
        _check_channels(given, channels)
    size, (n, _, sizes) = channels // groups, images.parts(x.shape)

    def read(i: Index, k: Index) -> Expr:
        _, c, position = images.parts((i[0], *k))
        return x[images.index(i[0], i[1] * size + c, position)]

    mean, factor = _moments(read, (n, groups), images.index(n, size, sizes)[1:], epsilon)

    def at(*i: Expr) -> Expr:
        c = images.channel(i)
        group = (i[0], c // size)
        return _affine((x[i] - mean[group]) * factor[group], scale, bias, lambda given: given[c])

    return stored(te.compute(x.shape, at, name="group_norm"), x.dtype)


@operator
def instance_norm(
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    epsilon: float = 1e-5,
    channels_last: bool = False,
) -> Tensor:
    """(x - mean) / sqrt(var + epsilon) * scale[C] + bias[C] over each channel of each of the images x."""
    return group_norm(x, scale, bias, max(_channels(Images(channels_last), x), 1), epsilon, channels_last)


@operator
def lrn(
    x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, channels_last: bool = False
) -> Tensor:
    """x / (bias + alpha / size * s)^beta, where s is the sum of squares over `size` channels, this one in their middle;
    of an even number one more comes after it."""
    images = Images(channels_last)
    _channels(images, x)
    if size < 1:
        raise GraphError(f"lrn takes at least one channel but size is {size}")
    before = (size - 1) // 2
    around = images.index((0, 0), (before, size - 1 - before), ((0, 0),) * (len(x.shape) - 2))
    padded, k = pad(x, around), te.reduce_axis(size, name="k")

    def square(n: Expr, c: Expr, *rest: Expr) -> Expr:
        value = padded[images.index(n, c + k, rest)]
        return te.sum(value * value, axis=k)

    squares = te.compute(x.shape, images.by(square), name="squares")

    def at(*i: Expr) -> Expr:
        return x[i] / te.pow(squares[i] * (alpha / size) + bias, float(beta))

    return stored(te.compute(x.shape, at, name="lrn"), x.dtype)


@operator
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x - max) / sum(exp(x - max)) over one axis."""
    return stored(softmax_over(x, _axis(x, axis)), x.dtype)


@operator
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """x - max - log(sum(exp(x - max))) over one axis."""
    axis = _axis(x, axis)
    outer, k, r = _without(x.shape, axis), te.reduce_axis(x.shape[axis], "k"), te.reduce_axis(x.shape[axis], "k")
    peak: Tensor = te.compute(outer, lambda *i: te.max(x[_along(i, axis, k)], axis=k), name="peak")
    total = te.compute(outer, lambda *i: te.sum(te.exp(x[_along(i, axis, r)] - peak[i]), axis=r), name="total")
    shift: Tensor = te.compute(outer, lambda *i: te.log(total[i]), name="log_total")

    def at(*i: Expr) -> Expr:
        row = _without(i, axis)
        return x[i] - peak[row] - shift[row]

    return stored(te.compute(x.shape, at, name="log_softmax"), x.dtype)


@operator
def hardmax(x: Tensor, axis: int = -1) -> Tensor:
    """1 at the first maximum along one axis, 0 elsewhere."""
    axis = _axis(x, axis)
    k = te.reduce_axis(x.shape[axis], name="k")
    place, _ = te.compute(_without(x.shape, axis), lambda *i: te.argmax(x[_along(i, axis, k)], axis=k), name="first")

    def at(*i: Expr) -> Expr:
        return te.select(te.equal(i[axis], place[_without(i, axis)]), te.const(1, x.dtype), te.const(0, x.dtype))

    made: Tensor = te.compute(x.shape, at, name="hardmax")
    return made


@operator
def lp_normalize(x: Tensor, axis: int = -1, p: float = 2, epsilon: float = 0.0) -> Tensor:
    """x / max(norm, epsilon) along one axis, with norm = (sum of |x|^p)^(1/p); 0 where that is 0 as well."""
    axis = _axis(x, axis)
    if p < 1:
        raise GraphError(f"a norm has p >= 1 but p is {p}")
    outer, k = _without(x.shape, axis), te.reduce_axis(x.shape[axis], name="k")
    total = te.compute(outer, lambda *i: te.sum(power_of_size(x[_along(i, axis, k)], p), axis=k), name="total")
    norm = te.compute(outer, lambda *i: te.max(root(total[i], p), float(epsilon)), name="norm")

    def at(*i: Expr) -> Expr:
        size = norm[_without(i, axis)]
        return x[i] / size if epsilon else te.select(te.equal(size, 0.0), 0.0, x[i] / size)

    return stored(te.compute(x.shape, at, name="lp_normalize"), x.dtype)


def _moments(
    at: Callable[[Index, Index], Expr], outer: Sequence[int], inner: Sequence[int], epsilon: float
) -> tuple[Tensor, Tensor]:
    """For each i the mean of at(i, k) over all k, and 1 / sqrt(var + epsilon) with the mean var of (at(i, k) - mean)^2:
    two passes, since the difference of mean squares would cancel."""
    count = counted(math.prod(inner))
    k, r = ([te.reduce_axis(n, name="k") for n in inner] for _ in range(2))
    total = te.compute(outer, lambda *i: te.sum(at(i, k), axis=k), name="total")
    mean = te.compute(outer, lambda *i: total[i] / count, name="mean")

    def square(*i: Expr) -> Expr:
        centred = at(i, r) - mean[i]
        return te.sum(centred * centred, axis=r)

    squares = te.compute(outer, square, name="squares")
    return mean, te.compute(outer, lambda *i: te.rsqrt(squares[i] / count + epsilon), name="scale")


def _affine(x: Expr, scale: Tensor | None, bias: Tensor | None, at: Callable[[Tensor], Expr]) -> Expr:
    """Return x * scale + bias, each optional; `at`: the index of their element."""
    x = x if scale is None else x * at(scale)
    return x if bias is None else x + at(bias)


def _along(i: Index, axis: int, place: Expr) -> tuple[Expr, ...]:
    """The index `i` of a row with a place in it."""
    return (*i[:axis], place, *i[axis:])


def _without(items: Sequence[T], axis: int) -> tuple[T, ...]:
    return (*items[:axis], *items[axis + 1 :])


def _axis(x: Tensor, axis: int) -> int:
    if not -len(x.shape) <= axis < len(x.shape):
        raise GraphError(f"there is no axis {axis} in {list(x.shape)}")
    return axis % len(x.shape)


def _first_axis(x: Tensor, axes: int) -> int:
    """The first of the last `axes` dimensions."""
    if not 1 <= axes <= len(x.shape):
        raise GraphError(f"axes is how many of the last dimensions of {list(x.shape)} are normalised, but is {axes}")
    return len(x.shape) - axes


def _channels(images: Images, x: Tensor) -> int:
    if len(x.shape) < 2:
        raise GraphError(f"images are {images} but x is {list(x.shape)}")
    return images.channel(x.shape)


def _check_channels(given: Tensor | None, channels: int) -> None:
    if given is not None and given.shape != (channels,):
        raise GraphError(f"{given.name} is {list(given.shape)} but there are {channels} channels")


def _check_broadcast(given: Tensor | None, x: Tensor) -> None:
    if given is not None and broadcast_shape(given.shape, x.shape) != x.shape:
        raise GraphError(f"{given.name} of shape {list(given.shape)} does not fit {list(x.shape)}")
