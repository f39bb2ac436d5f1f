"""Convolutions and transposed convolutions of 1 to 3 spatial dimensions, images with channels first."""

from __future__ import annotations

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.windows import Ints, Pads, Windows
from autosched.ir.dtype import promote
from autosched.ir.expr import Expr
from autosched.te import Tensor
from autosched.te.operators.conv import channels_first_sum
from autosched.te.operators.window import stored, widen


@operator
def conv(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    strides: Ints = (),
    pads: Pads = (),
    dilations: Ints = (),
    groups: int = 1,
) -> Tensor:
    """x[N, CI, ...] * w[CO, CI/groups, taps...] + b[CO] -> [N, CO, ...]; zeros are around the image."""
    windows = convolution_windows(x, w, strides, pads, dilations, groups)
    return stored(biased(convolved(windows.padded(x), w, windows, groups), b), promote(x.dtype, w.dtype))


def convolution_windows(x: Tensor, w: Tensor, strides: Ints, pads: Pads, dilations: Ints, groups: int) -> Windows:
    """Raises GraphError where image and weights do not fit each other."""
    if len(x.shape) < 3 or len(x.shape) != len(w.shape):
        raise GraphError(
            f"an image [N, C, ...] and weights of as many dimensions, not {list(x.shape)}, {list(w.shape)}"
        )
    if groups < 1 or x.shape[1] != w.shape[1] * groups or w.shape[0] % groups:
        raise GraphError(
            f"an image of {x.shape[1]} channels does not fit {w.shape[0]} filters of {w.shape[1]} channels in "
            f"{groups} groups"
        )
    return Windows.over(x, w.shape[2:], strides, pads, dilations)


def convolved(padded: Tensor, w: Tensor, windows: Windows, groups: int) -> Tensor:
    """The sums of the windows of a padded image, in the type that sums of products have."""
    co, per_group = w.shape[:2]
    term = channels_first_sum(padded, w, windows.strides, windows.dilations)

    def at(n: Expr, co: Expr, *position: Expr) -> Expr:
        return term(n, first_of_group(co, w.shape[0] // groups, per_group, groups), position, co)

    made: Tensor = te.compute((padded.shape[0], co, *windows.out), at, name="conv")
    return made


def first_of_group(channel: Expr, size: int, others: int, groups: int) -> Expr | int:
    """The first of the `others` channels that a channel's group has on the other side; groups have `size` channels."""
    return 0 if groups == 1 else channel // size * others


def biased(x: Tensor, b: Tensor | None) -> Tensor:
    """x[N, C, ...] + b[C]."""
    if b is None:
        return x
    if b.shape != x.shape[1:2]:
        raise GraphError(f"a bias of shape {list(b.shape)} does not fit {x.shape[1]} channels")
    made: Tensor = te.compute(x.shape, lambda *i: x[i] + b[i[1]], name="biased")
    return made


@operator
def conv_transpose(
    x: Tensor,
    w: Tensor,
    b: Tensor | None = None,
    strides: Ints = (),
    pads: Pads = (),
    dilations: Ints = (),
    groups: int = 1,
    output_padding: Ints = (),
) -> Tensor:
    """The gradient of a convolution by its image: x[N, CI, ...] and w[CI, CO/groups, taps...] give [N, CO, ...].

    Element i meets tap k at i * stride - pad + k * dilation. It is written with all taps, of which a condition leaves
    those that meet an element; `te.rewrites.phases` makes sums over these alone of it.
    """
    rank = len(x.shape) - 2
    if not 1 <= rank <= 3 or len(w.shape) != len(x.shape):
        raise GraphError(
            f"an image [N, C, ...] and weights of as many dimensions, not {list(x.shape)}, {list(w.shape)}"
        )
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    pads, more = pads or ((0, 0),) * rank, output_padding or (0,) * rank
    if not len(strides) == len(pads) == len(dilations) == len(more) == rank or min(*strides, *dilations) < 1:
        raise GraphError(f"strides, pads, dilations and output_padding must be {rank} numbers each, at least 1 or 0")
    (n, ci, *sizes), (channels, per_group, *taps) = x.shape, w.shape
    if groups < 1 or channels != ci or ci % groups:
        raise GraphError(f"an image of {ci} channels does not fit weights of {channels} channels in {groups} groups")
    out = [
        (size - 1) * s - low - high + d * (k - 1) + 1 + extra
        for size, s, (low, high), d, k, extra in zip(sizes, strides, pads, dilations, taps, more, strict=True)
    ]
    if min(out) < 1:
        raise GraphError(f"the pads {list(pads)} leave nothing of the image {list(sizes)}: its sizes would be {out}")
    rc = te.reduce_axis(ci // groups, name="ci")
    k = [te.reduce_axis(extent, name=f"k{d}") for extent, d in zip(taps, "dhw"[3 - rank :], strict=True)]

    def at(n: Expr, co: Expr, *position: Expr) -> Expr:
        moved = [p + low - t * d for p, (low, _), t, d in zip(position, pads, k, dilations, strict=True)]
        meets = [c for m, s, size in zip(moved, strides, sizes, strict=True) for c in _meets(m, s, size)]
        channel = first_of_group(co, per_group, ci // groups, groups) + rc
        element = x[(n, channel, *(m // s for m, s in zip(moved, strides, strict=True)))]
        weight = w[(channel, co if groups == 1 else co % per_group, *k)]
        return te.sum(widen(te.select(te.all(*meets), element, te.const(0, x.dtype))) * widen(weight), axis=[rc, *k])

    made = te.compute((n, per_group * groups, *out), at, name="conv_transpose")
    return stored(biased(made, b), promote(x.dtype, w.dtype))


def _meets(moved: Expr, stride: int, size: int) -> list[Expr]:
    """Whether moved / stride is one of `size` places."""
    exact = [te.equal(moved % stride, 0)] if stride > 1 else []
    return [moved // stride >= 0, *exact, moved // stride < size]
