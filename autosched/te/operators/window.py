"""What the operators share: window arithmetic, explicit padding, broadcasting and accumulation types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from autosched import te
from autosched.errors import UsageError
from autosched.ir.dtype import DTYPES
from autosched.ir.expr import Expr
from autosched.te.tensor import Tensor

NHWC = "NHWC"
NCHW = "NCHW"


def window_extent(what: str, size: int, k: int, stride: int, pad: int, dilation: int = 1) -> int:
    """How many windows of `k` taps fit: floor((size + 2 pad - dilation (k - 1) - 1) / stride) + 1.

    Raises UsageError when there is none.
    """
    span = dilation * (k - 1) + 1
    padded = size + 2 * pad
    if span > padded:
        raise UsageError(
            f"{what}: the output would be empty because the kernel spans {span} (k={k}, dilation={dilation}) but the "
            f"padded input only {padded} (extent {size} + 2 * pad {pad}); enlarge input or pad, or shrink the kernel"
        )
    return (padded - span) // stride + 1


def check_layout(what: str, layout: str) -> None:
    """Only NHWC and NCHW are known."""
    if layout not in (NHWC, NCHW):
        raise UsageError(f"{what}: layout must be {NHWC} or {NCHW} but is {layout!r}")


def image(layout: str, n: int, h: int, w: int, c: int) -> tuple[int, int, int, int]:
    """The shape of images in `layout`."""
    return (n, h, w, c) if layout == NHWC else (n, c, h, w)


def element_of(x: Tensor, layout: str, n: Expr, h: Expr, w: Expr, c: Expr) -> Expr:
    """What images in `layout` have at one place."""
    return x[n, h, w, c] if layout == NHWC else x[n, c, h, w]


def by_layout(layout: str, at: Callable[[Expr, Expr, Expr, Expr], Expr]) -> Callable[..., Expr]:
    """`at(n, h, w, c)` with its loops in the order of `layout`."""
    if layout == NHWC:
        return lambda n, oh, ow, c: at(n, oh, ow, c)
    return lambda n, c, oh, ow: at(n, oh, ow, c)


def check_divides(what: str, groups: int, **channels: int) -> None:
    """Every count of channels must be a multiple of `groups`."""
    for name, value in channels.items():
        if value % groups:
            raise UsageError(
                f"{what}: {name}={value} is not divisible by groups={groups}; each group needs the same number of "
                f"channels, so choose {name} as a multiple of groups"
            )


def stretched(sizes: Sequence[int], index: Sequence[Any]) -> tuple[Any, ...]:
    """Where dimensions of these sizes are read that broadcasting aligns with the end of `index`."""
    own = index[len(index) - len(sizes) :]
    return tuple(0 if size == 1 else i for i, size in zip(own, sizes, strict=True))


def widen(x: Expr) -> Expr:
    """A factor of a sum of products in the dtype of the sum: that of two bytes does not fit a byte."""
    return x.astype(DTYPES[x.dtype].accumulates_in)


def stored(tensor: Tensor, dtype: str) -> Tensor:
    """The `tensor` rounded once to `dtype`, which is smaller than the one it is computed in."""
    if tensor.dtype == dtype:
        return tensor
    whole = replace(tensor, view=None)
    name = f"{tensor.name}_{dtype}"
    return te.view(te.compute(whole.shape, lambda *i: whole[i].astype(dtype), name=name), tensor.public_shape)


def pad(x: Tensor, amounts: Sequence[tuple[int, int]], value: Any = 0, name: str = "pad") -> Tensor:
    """`x` with amounts[d] = (before, after) elements of `value`, a number or an element of a tensor, around dimension
    d; `x` itself when there are none."""
    if not any(before or after for before, after in amounts):
        return x
    outside = value if isinstance(value, Expr) else te.const(value, x.dtype)

    def body(*i: Expr) -> Expr:
        inside = [i[d] >= before for d, (before, _) in enumerate(amounts) if before]
        inside += [i[d] < x.shape[d] + before for d, (before, after) in enumerate(amounts) if after]
        element = x[tuple(axis - before for axis, (before, _) in zip(i, amounts, strict=True))]
        return te.select(te.all(*inside), element, outside)

    shape = [extent + before + after for extent, (before, after) in zip(x.shape, amounts, strict=True)]
    padded: Tensor = te.compute(shape, body, name=name)
    return padded


def pad_spatial(x: Tensor, amount: int, layout: str = NHWC, value: Any = 0, rank: int | None = None) -> Tensor:
    """`amount` elements of `value` on both sides of the `rank` spatial dimensions (all but two) of images."""
    first = 1 if layout == NHWC else 2
    spatial = range(first, first + (len(x.shape) - 2 if rank is None else rank))
    return pad(x, [(amount, amount) if d in spatial else (0, 0) for d in range(len(x.shape))], value)
