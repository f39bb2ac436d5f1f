"""Transposed convolution that multiplies no zeros.

The semantics are those of the gradient of a convolution (torch.nn.functional.conv_transpose2d): input
element (ih, iw) adds x * W[kh, kw] to output element (ih s - p + kh, iw s - p + kw). With stride s, an
output row oh = s q + r only meets the taps kh = s t + (r + p) mod s. Tap t meets the input row ih = q + d - t
with d = (r + p) div s. So the output is s * s small dense convolutions, one for each phase r, r':

    P[n, q, r, q', r', co] =
        sum over t, t', ci of X[n, q + d(r) - t, q' + d(r') - t', ci] * W[s t + (r + p) mod s, .., ci, co]
    Y[n, oh, ow, co] = P[n, oh div s, oh mod s, ow div s, ow mod s, co]

When p is no multiple of s, d depends on the phase: phases r >= s - p mod s look one row further down. With s = 2
that is affine, d(r) = r + p div 2 and (r + 1) mod 2 = 1 - r. For longer strides the pad stage holds one shifted
image for each phase, which keeps the convolution's indices affine and its work exact; computing all phases
over the union of their rows instead would waste (1 + 1/H)^2.
When s divides the output extents, P is the output already and only viewed in another shape.
"""

from __future__ import annotations

from autosched import te
from autosched.errors import UsageError
from autosched.ir.expr import Expr
from autosched.te.operators.window import pad, widen
from autosched.te.tensor import Tensor


def t2d(N: int, H: int, W: int, CI: int, CO: int, k: int, stride: int, pad: int, dtype: str = "float32") -> Tensor:
    """X[N,H,W,CI] * W[k,k,CI,CO] -> [N,(H-1)*stride-2*pad+k,(W-1)*stride-2*pad+k,CO]."""
    x = te.placeholder((N, H, W, CI), dtype, name="X")
    w = te.placeholder((k, k, CI, CO), dtype, name="W")
    return transposed_conv2d("t2d", x, w, stride, pad)


def transposed_conv2d(what: str, x: Tensor, w: Tensor, s: int, p: int) -> Tensor:
    """x[N,H,W,CI] and w[k,k,CI,CO]; raises UsageError when padding leaves no output."""
    n, height, width, ci = x.shape
    k, _, _, co = w.shape
    ho, wo = (_output(what, size, k, s, p) for size in (height, width))
    taps = -(-k // s)
    weights = pad(w, [(0, taps * s - k)] * 2 + [(0, 0)] * 2, name="weights")
    rows, columns = -(-ho // s), -(-wo // s)
    image, shifted = _image(x, rows, columns, taps, s, p)
    th, tw, rc = te.reduce_axis(taps, name="th"), te.reduce_axis(taps, name="tw"), te.reduce_axis(ci, name="ci")
    last, extra = taps - 1, p % s

    def moved(q: Expr, r: Expr, t: Expr) -> Expr:
        return q - t + (r + last if s == 2 and extra else last)

    def tap(t: Expr, r: Expr) -> Expr:
        if not extra:
            return t * s + r
        return t * s + (1 - r if s == 2 else (r + extra) % s)

    def phase(n: Expr, qh: Expr, rh: Expr, qw: Expr, rw: Expr, co: Expr) -> Expr:
        position = (moved(qh, rh, th), moved(qw, rw, tw), rc)
        element = image[(n, rh, rw, *position)] if shifted else image[(n, *position)]
        return te.sum(widen(element) * widen(weights[tap(th, rh), tap(tw, rw), rc, co]), axis=[th, tw, rc])

    phases: Tensor = te.compute((n, rows, s, columns, s, co), phase, name="phases")
    if ho % s == 0 and wo % s == 0:
        return te.view(phases, (n, ho, wo, co))
    result: Tensor = te.compute(
        (n, ho, wo, co), lambda n, oh, ow, co: phases[n, oh // s, oh % s, ow // s, ow % s, co], name="transposed"
    )
    return result


def _output(what: str, size: int, k: int, s: int, p: int) -> int:
    extent = (size - 1) * s - 2 * p + k
    if extent < 1:
        raise UsageError(
            f"{what}: the output would be empty because ({size} - 1) * stride {s} - 2 * pad {p} + k {k} = {extent}; "
            "use less padding, a larger input or a larger kernel"
        )
    return extent


def _image(x: Tensor, rows: int, columns: int, taps: int, s: int, p: int) -> tuple[Tensor, bool]:
    """The input with enough zeros around it: image[.., i, j, ..] is x at (i + p div s - (taps - 1), ...).

    Where s > 2 does not divide p there is one image for each phase (the second result is True), those of the
    phases from s - p mod s on moved by one.
    """
    n, height, width, ci = x.shape
    shift, extra = p // s, p % s
    first = shift - (taps - 1)  # the input row that image row 0 holds
    more = taps - 1 + (s == 2 and extra)  # phase 1 looks one row further down
    size = (rows + more, columns + more)

    def at(n: Expr, ih: Expr, iw: Expr, ci: Expr) -> Expr:
        inside = te.all(ih >= 0, ih < height, iw >= 0, iw < width)
        return te.select(inside, x[n, ih, iw, ci], te.const(0, x.dtype))

    if s == 2 or not extra:
        if first == 0 and size == (height, width):
            return x, False
        plain = te.compute((n, *size, ci), lambda n, i, j, ci: at(n, i + first, j + first, ci), name="pad")
        return plain, False

    image = te.compute(
        (n, s, s, *size, ci),
        lambda n, rh, rw, i, j, ci: at(n, i + first + (rh + extra) // s, j + first + (rw + extra) // s, ci),
        name="pad",
    )
    return image, True
