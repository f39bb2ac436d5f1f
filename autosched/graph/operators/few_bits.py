"""Products with low-bit weights, which are unpacked in registers: for one token, the weights' bytes are all the time.

    words[n, k / p] holds p = 32 / bits codes, the first in the lowest bits; groups of each row share scale and zero:

    y[m, n] = sum over k of x[m, k] * (code[n, k] - zero[n, k / group]) * scale[n, k / group]

The terms of a word are summed first, so that scale and zero are applied once per word.

Blocks are bytes of codes and their own scales, as GGUF files have them (`te.operators.blocks`).
"""

from __future__ import annotations

from functools import reduce

from autosched import te
from autosched.errors import GraphError
from autosched.graph.operators import operator
from autosched.graph.operators.products import added
from autosched.ir.expr import Expr
from autosched.te import Tensor
from autosched.te.operators.blocks import BLOCK_FORMATS, BlockFormat, chosen_product, dequantized, product_of_blocks
from autosched.te.operators.window import stored, widen

WORD = "int32"
WORD_BITS = 32


@operator
def linear_few_bits(
    x: Tensor,
    words: Tensor,
    scales: Tensor,
    zeros: Tensor | None = None,
    b: Tensor | None = None,
    bits: int = 4,
    zero: float = 0.0,
) -> Tensor:
    """x[..., K] @ w[N, K].T + b[N], w made of codes in words[N, K bits / 32] with scales[N, groups] and zeros[N,
    groups]; where these are left out all zeros are `zero`."""
    each = WORD_BITS // bits
    depth, (width, groups) = words.shape[1] * each, scales.shape
    if x.shape[-1] != depth or not groups or depth % (groups * each) or words.shape[0] != width:
        raise GraphError(
            f"x[..., K], words[N, K / {each}] and scales[N, groups] do not fit each other: they are {list(x.shape)}, "
            f"{list(words.shape)} and {list(scales.shape)}"
        )
    in_group = depth // (groups * each)
    g, w = te.reduce_axis(groups, name="g"), te.reduce_axis(in_group, name="w")

    def term(*i: Expr) -> Expr:
        *row, n = i
        word = words[n, g * in_group + w]
        factors = [x[(*row, (g * in_group + w) * each + j)] for j in range(each)]
        codes = [te.cast((word >> bits * j) & ((1 << bits) - 1), x.dtype) for j in range(each)]
        if zeros is None and zero:
            codes = [code - zero for code in codes]
        total = _sum([f * code for f, code in zip(factors, codes, strict=True)])
        if zeros is not None:
            total = total - _sum(factors) * zeros[n, g]
        return total * scales[n, g] if groups > 1 else total

    sums = te.compute((*x.shape[:-1], width), lambda *i: te.sum(term(*i), axis=[g, w]), name="linear")
    if groups == 1:
        sums = te.compute(sums.shape, lambda *i: sums[i] * scales[i[-1], 0], name="scaled")
    return added(sums, b)


def _sum(terms: list[Expr]) -> Expr:
    return reduce(lambda a, b: a + b, terms)


@operator
def dequantize_blocks(blocks: Tensor, block: str) -> Tensor:
    """The numbers [..., K] of blocks[..., bytes] of the format `block`, in float32."""
    if not blocks.shape:
        raise GraphError("blocks are the last dimension of a tensor but got a scalar")
    return dequantized(blocks, _format(blocks, block))


@operator
def linear_blocks(x: Tensor, blocks: Tensor, b: Tensor | None = None, *, block: str) -> Tensor:
    """x[..., K] @ w[N, K].T + b[N] in the type of x, for the numbers w of blocks[N, bytes] of the format `block`."""
    layout = _format(blocks, block)
    if len(blocks.shape) != 2 or not x.shape or x.shape[-1] != blocks.shape[1] // layout.nbytes * layout.elements:
        raise GraphError(
            f"x[..., K] and the {block} blocks[N, K / {layout.elements} * {layout.nbytes}] do not fit each other: "
            f"they are {list(x.shape)} and {list(blocks.shape)}"
        )
    return stored(added(product_of_blocks(x, blocks, layout), b), x.dtype)


@operator
def linear_chosen(x: Tensor, w: Tensor, ids: Tensor, *, block: str | None = None) -> Tensor:
    """x[T, K] or x[T, C, K] times the transposed matrix ids[t, c] of w[E, N, K], in the type of x: [T, C, N]. Only the
    matrices that are chosen are read. With a format `block` w is blocks[E, N, bytes]; `ids` are of 0 to E - 1, others
    the nearest one's."""
    layout = None if block is None else _format(w, block)
    depth = w.shape[-1] if layout is None else w.shape[-1] // layout.nbytes * layout.elements
    if len(w.shape) != 3 or len(ids.shape) != 2 or x.shape not in ((ids.shape[0], depth), (*ids.shape, depth)):
        raise GraphError(
            f"x[T, K] or x[T, C, K], w[E, N, K] and ids[T, C] do not fit each other: they are {list(x.shape)}, "
            f"{list(w.shape)} and {list(ids.shape)}"
        )
    if layout is not None:
        return stored(chosen_product(x, w, ids, layout), x.dtype)
    k, own = te.reduce_axis(depth, name="k"), len(x.shape) - 1

    def term(*i: Expr) -> Expr:
        matrix = te.cast(ids[i[:-1]], "int64")
        return te.sum(widen(x[(*i[:own], k)]) * widen(w[matrix, i[-1], k]), axis=k)

    return stored(te.compute((*ids.shape, w.shape[1]), term, name="linear"), x.dtype)


def _format(blocks: Tensor, name: str) -> BlockFormat:
    """Raises GraphError for an unknown format, and for a tensor that has not whole blocks of bytes."""
    layout = BLOCK_FORMATS.get(name)
    if layout is None:
        raise GraphError(f"the format of blocks is {', '.join(BLOCK_FORMATS)} but got {name!r}")
    if blocks.dtype != "uint8" or (blocks.shape and blocks.shape[-1] % layout.nbytes):
        raise GraphError(
            f"blocks of {name} are {layout.nbytes} bytes of uint8 each but got {blocks.dtype}{list(blocks.shape)}"
        )
    return layout
