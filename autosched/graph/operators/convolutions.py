"""Convolutions and transposed convolutions of 1 to 3 spatial dimensions."""

from __future__ import annotations

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.images import Images
from autosched.graph.operators.windows import Ints, Pads, Windows
from autosched.ir.dtype import promote
from autosched.ir.expr import Expr
from autosched.te import Tensor
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
    channels_last: bool = False,
) -> Tensor:
    """x[N, CI, ...] * w[CO, CI/groups, taps...] + b[CO] -> [N, CO, ...]; zeros are around the image. `channels_last`:
    x[N, ..., CI] -> [N, ..., CO]."""
    images = Images(channels_last)
    windows = convolution_windows(images, x, w, strides, pads, dilations, groups)
    return stored(biased(images, convolved(windows.padded(x), w, windows, groups), b), promote(x.dtype, w.dtype))


def convolution_windows(
    images: Images, x: Tensor, w: Tensor, strides: Ints, pads: Pads, dilations: Ints, groups: int
) -> Windows:
    """Raises GraphError where image and weights do not fit each other."""
    if len(x.shape) < 3 or len(x.shape) != len(w.shape):
        raise GraphError(f"an image {images} and weights of as many dimensions, not {list(x.shape)}, {list(w.shape)}")
    channels = images.channel(x.shape)
    if groups < 1 or channels != w.shape[1] * groups or w.shape[0] % groups:
        raise GraphError(
            f"an image of {channels} channels does not fit {w.shape[0]} filters of {w.shape[1]} channels in "
            f"{groups} groups"
        )
    return Windows.over(images, x, w.shape[2:], strides, pads, dilations)


def convolved(padded: Tensor, w: Tensor, windows: Windows, groups: int) -> Tensor:
    """The sums of the windows of a padded image, in the type that sums of products have."""
    (co, per_group, *_), images = w.shape, windows.images
    rc, taps = te.reduce_axis(per_group, name="ci"), windows.taps()

    def at(n: Expr, o: Expr, *position: Expr) -> Expr:
        channel = first_of_group(o, co // groups, per_group, groups) + rc
        product = widen(windows.element(padded, n, channel, position, taps)) * widen(w[(o, rc, *taps)])
        return te.sum(product, axis=images.terms(rc, taps))

    made: Tensor = te.compute(windows.shape(padded.shape[0], co), images.by(at), name="conv")
    return made


def first_of_group(channel: Expr, size: int, others: int, groups: int) -> Expr | int:
    """The first of the `others` channels that a channel's group has on the other side; groups have `size` channels."""
    return 0 if groups == 1 else channel // size * others


def biased(images: Images, x: Tensor, b: Tensor | None) -> Tensor:
    """The images x with b[C] added to their channels."""
    if b is None:
        return x
    channels = images.channel(x.shape)
    if b.shape != (channels,):
        raise GraphError(f"a bias of shape {list(b.shape)} does not fit {channels} channels")
    made: Tensor = te.compute(x.shape, lambda *i: x[i] + b[images.channel(i)], name="biased")
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
    channels_last: bool = False,
) -> Tensor:
    """The gradient of a convolution by its image: x[N, CI, ...] and w[CI, CO/groups, taps...] give [N, CO, ...], or
    x[N, ..., CI] gives [N, ..., CO].

    Element i meets tap k at i * stride - pad + k * dilation. It is written with all taps, of which a condition leaves
    those that meet an element; `te.rewrites.phases` makes sums over these alone of it.
    """
    rank, images = len(x.shape) - 2, Images(channels_last)
    if not 1 <= rank <= 3 or len(w.shape) != len(x.shape):
        raise GraphError(f"an image {images} and weights of as many dimensions, not {list(x.shape)}, {list(w.shape)}")
    strides, dilations = strides or (1,) * rank, dilations or (1,) * rank
    pads, more = pads or ((0, 0),) * rank, output_padding or (0,) * rank
    if not len(strides) == len(pads) == len(dilations) == len(more) == rank or min(*strides, *dilations) < 1:
        raise GraphError(f"strides, pads, dilations and output_padding must be {rank} numbers each, at least 1 or 0")
    (n, ci, sizes), (channels, per_group, *taps) = images.parts(x.shape), w.shape
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
        element = x[images.index(n, channel, (m // s for m, s in zip(moved, strides, strict=True)))]
        weight = w[(channel, co if groups == 1 else co % per_group, *k)]
        term = widen(te.select(te.all(*meets), element, te.const(0, x.dtype))) * widen(weight)
        return te.sum(term, axis=images.terms(rc, k))

    made = te.compute(images.index(n, per_group * groups, out), images.by(at), name="conv_transpose")
    return stored(biased(images, made, b), promote(x.dtype, w.dtype))


def _meets(moved: Expr, stride: int, size: int) -> list[Expr]:
    """Whether moved / stride is one of `size` places."""
    exact = [te.equal(moved % stride, 0)] if stride > 1 else []
    return [moved // stride >= 0, *exact, moved // stride < size]
