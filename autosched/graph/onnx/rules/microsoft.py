"""Operators of ONNX Runtime's own domain, com.microsoft: fused ones, weights of few bits, attention by head."""

from __future__ import annotations

import numpy as np

from autosched.errors import GraphError
from autosched.graph.onnx.rules.attention import by_head
from autosched.graph.onnx.site import Results, Site, refuse, rule

DOMAIN = "com.microsoft"
MASKED = -10000.0  # what is added to a score that is masked, where nothing else is said


# Products


@rule("FusedMatMul", "TransposeMatMul", domain=DOMAIN)
def fused_matmul(site: Site) -> Results:
    operands = []
    for n, side in enumerate("AB"):
        refuse(bool(site.attribute(f"transBatch{side}", 0)), f"transBatch{side}")
        x, rank = site.input(n), site.rank(site.input(n))
        if site.attribute(f"trans{side}", 0) and rank > 1:
            x = site.emit("transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))
        operands.append(x)
    y, alpha = site.emit("matmul", *operands), site.attribute("alpha", 1.0)
    return y if alpha == 1.0 else site.emit("mul", y, site.constant(alpha, site.dtype(y)))


@rule("MatMulNBits", domain=DOMAIN)
def few_bits(site: Site) -> Results:
    """x @ w^T for w of `bits` bits, groups of which share a scale and a zero: w = (q - zero) * scale.

    q is [N, groups, bytes of a group], low bits first. A zero is one of as many bits, packed along a row's groups, or a
    number of the type of x; left out it is half of what the bits can say.
    """
    site.ignore("accuracy_level", "weight_prepacked")
    x, packed, scales = site.input(0), site.input(1), site.input(2)
    depth, width = site.attribute("K"), site.attribute("N")
    bits, group = site.attribute("bits", 4), site.attribute("block_size")
    refuse(site.optional(4) is not None, "an order of its own (g_idx) for the groups")
    refuse(bits not in (2, 4, 8), f"weights of {bits} bits")
    groups, dtype = -(-depth // group), site.dtype(x)
    q = unpacked(site, site.reshape(packed, (width, groups, group * bits // 8)), bits)
    q = site.cast(q, dtype)
    zero = zeros_of(site, (width, groups), bits)
    weight = site.emit("mul", site.emit("sub", q, zero), site.reshape(scales, (width, groups, 1)))
    weight = site.part(site.reshape(weight, (width, groups * group)), 1, 0, depth)
    return site.emit("linear", x, weight, site.optional(5))


def zeros_of(site: Site, shape: tuple[int, int], bits: int) -> str:
    """The zeros of groups in a shape that fits [width, groups, elements]."""
    given, dtype = site.optional(3), site.dtype(site.input(0))
    width, groups = shape
    if given is None:
        return site.constant(1 << (bits - 1), dtype)
    if site.is_float(given):
        return site.reshape(given, (width, groups, 1))
    each = -(-groups * bits // 8)
    wide = site.part(unpacked(site, site.reshape(given, (width, each)), bits), 1, 0, groups)
    return site.cast(site.reshape(wide, (width, groups, 1)), dtype)


def unpacked(site: Site, x: str, bits: int) -> str:
    """Each byte along the last axis as the numbers in it, the lowest bits first."""
    if bits == 8:
        return x
    shape, parts = site.shape(x), []
    for low in range(0, 8, bits):
        part = site.emit("shift_right", x, site.constant(low, "uint8")) if low else x
        if low + bits < 8:
            part = site.emit("bitwise_and", part, site.constant((1 << bits) - 1, "uint8"))
        parts.append(site.reshape(part, (*shape, 1)))
    wide = site.emit("concat", *parts, axis=len(shape))
    return site.reshape(wide, (*shape[:-1], shape[-1] * len(parts)))


# Activations


@rule("Gelu", "BiasGelu", "FastGelu", domain=DOMAIN)
def gelu(site: Site) -> Results:
    x, bias = site.input(0), site.optional(1)
    x = x if bias is None else site.emit("add", x, bias)
    return site.emit("gelu", x, approximate="tanh" if site.operator == "FastGelu" else "none")


@rule("QuickGelu", domain=DOMAIN)
def quick_gelu(site: Site) -> Results:
    x = site.input(0)
    alpha = site.constant(site.attribute("alpha", 1.702), site.dtype(x))
    return site.emit("mul", x, site.emit("sigmoid", site.emit("mul", x, alpha)))


# Norms


@rule("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=DOMAIN)
def skip_norm(site: Site) -> Results:
    """The norm of x + skip + bias; the last result is that sum."""
    refuse(any(site.wanted[1:3]), "the mean as a result")
    simplified = site.operator == "SkipSimplifiedLayerNormalization"
    bias = site.optional(3 if simplified else 4)
    total = site.emit("add", site.input(0), site.input(1))
    total = total if bias is None else site.emit("add", total, bias)
    scale, epsilon = site.input(2), site.attribute("epsilon", 1e-12)
    if simplified:
        return site.emit("rms_norm", total, scale, axes=1, epsilon=epsilon), "", "", total
    return site.emit("layer_norm", total, scale, site.optional(3), axes=1, epsilon=epsilon), "", "", total


@rule("SimplifiedLayerNormalization")
def simplified_norm(site: Site) -> Results:
    """ONNX Runtime's, though it is in the standard's domain: RMSNormalization of the last axis."""
    site.ignore("stash_type")
    refuse(any(site.wanted[1:]), "the mean as a result")
    x = site.input(0)
    axis = site.axis(site.attribute("axis", -1), site.rank(x))
    refuse(axis != site.rank(x) - 1, f"the norm of all axes from {axis} on")
    return site.emit("rms_norm", x, site.input(1), axes=1, epsilon=site.attribute("epsilon", 1e-5))


@rule("EmbedLayerNormalization", domain=DOMAIN)
def embed_norm(site: Site) -> Results:
    """The norm of the embeddings of words, places and segments; how long sequences are; the sum of the embeddings."""
    site.ignore("mask_index_type")
    ids, segments, mask, places = site.input(0), site.optional(1), site.optional(7), site.optional(8)
    batch, length = site.shape(ids)
    total = site.emit("gather", site.input(2), ids, axis=0)
    if places is None:
        added = site.part(site.input(3), 0, 0, length)
    else:
        added = site.emit("gather", site.input(3), places, axis=0)
    total = site.emit("add", total, added)
    if segments is not None:
        total = site.emit("add", total, site.emit("gather", site.input(4), segments, axis=0))
    y = site.emit("layer_norm", total, site.input(5), site.input(6), axes=1, epsilon=site.attribute("epsilon", 1e-12))
    lengths = ""
    if site.is_wanted(1):
        zeros = site.constant(np.zeros(batch, np.int32))
        lengths = zeros if mask is None else site.emit("reduce_sum", mask, axes=(1,), keepdims=False)
    return y, lengths, total


# Attention


@rule("Attention", domain=DOMAIN)
def packed_attention(site: Site) -> Results:
    """x times the weights of queries, keys and values; attention of each head; heads side by side."""
    for n, what in ((4, "a cache"), (6, "the length of a cache")):
        refuse(site.optional(n) is not None, what)
    for name in ("do_rotary", "past_present_share_buffer"):
        refuse(bool(site.attribute(name, 0)), name)
    heads, weights = site.attribute("num_heads"), site.input(1)
    widths = site.attribute("qkv_hidden_sizes") or (site.shape(weights)[1] // 3,) * 3
    wide = site.emit("matmul", site.input(0), weights)
    bias = site.optional(2)
    wide = wide if bias is None else site.emit("add", wide, bias)
    ends = [sum(widths[: n + 1]) for n in range(3)]
    q, k, v = (
        by_head(site, site.part(wide, 2, end - width, end), heads) for end, width in zip(ends, widths, strict=True)
    )
    y = mixed(site, (q, k, v), site.optional(3), site.optional(5))
    if not site.is_wanted(1):
        return y
    rows = [site.reshape(t, (1, *site.shape(t))) for t in (k, v)]
    return y, site.emit("concat", *rows, axis=0)


@rule("MultiHeadAttention", domain=DOMAIN)
def separate_attention(site: Site) -> Results:
    """Attention of queries, keys and values [batch, length, heads * depth], each with a part of the bias; keys and
    values may have their heads apart already. Caches are put before keys and values."""
    refuse(any(site.optional(n) is not None for n in (8, 9)), "a cache whose length is data")
    heads, bias = site.attribute("num_heads"), site.optional(3)
    given = [site.input(n) for n in range(3)]
    ends = [0]
    for name in given:
        refuse(site.rank(name) not in (3, 4), f"an operand of the shape {list(site.shape(name))}")
        shape = site.shape(name)
        ends.append(ends[-1] + (shape[2] if len(shape) == 3 else shape[1] * shape[3]))
    parts = []
    for n, name in enumerate(given):
        if site.rank(name) == 3:
            own_bias = None if bias is None else site.part(bias, 0, ends[n], ends[n + 1])
            name = by_head(site, name if own_bias is None else site.emit("add", name, own_bias), heads)
        parts.append(name)
    q, k, v = parts
    for n, past in enumerate((site.optional(6), site.optional(7))):
        if past is not None:
            k, v = (site.emit("concat", past, t, axis=2) if m == n else t for m, t in enumerate((k, v)))
    return mixed(site, (q, k, v), site.optional(4), site.optional(5)), k, v


def mixed(site: Site, parts: tuple[str, str, str], mask: str | None, added: str | None) -> str:
    """Attention of heads, put side by side again. `mask`: which keys are kept; `added`: to scores."""
    q, k, v = parts
    causal, scale = bool(site.attribute("unidirectional", 0)), site.attribute("scale") or None
    rows, columns = site.shape(q)[2], site.shape(k)[2]
    refuse(causal and rows != columns, "unidirectional attention with a cache")
    bias = added if mask is None else scores_of(site, mask, site.shape(q)[0], columns)
    if mask is not None and added is not None and bias is not None:
        bias = site.emit("add", bias, added)
    site.attribute("mask_filter_value")
    y = site.emit("attention", q, k, v, bias, scale=scale, causal=causal)
    batch, heads, length, depth = site.shape(y)
    return site.reshape(site.emit("transpose", y, perm=(0, 2, 1, 3)), (batch, length, heads * depth))


def scores_of(site: Site, mask: str, batch: int, columns: int) -> str:
    """What a mask adds to scores [batch, heads, rows, columns]. It says how many keys a sequence has [batch], or for
    each key [batch, columns] or score [batch, rows, columns] whether it counts."""
    shape, dtype = site.shape(mask), site.dtype(site.input(0))
    if shape == (batch,):
        places = site.constant(np.arange(columns), site.dtype(mask))
        kept = site.emit("less", places, site.reshape(mask, (batch, 1)))
        shape = (batch, columns)
    else:
        kept = site.emit("greater", mask, site.constant(0, site.dtype(mask)))
    if len(shape) not in (2, 3) or shape[-1] != columns:
        raise GraphError(f"a mask of the shape {list(shape)} is not supported for {columns} keys")
    numbers = [site.constant(x, dtype) for x in (0.0, site.attribute("mask_filter_value", MASKED))]
    bias = site.emit("where", kept, *numbers)
    return site.reshape(bias, (shape[0], 1, 1 if len(shape) == 2 else shape[1], columns))


@rule("RotaryEmbedding", domain=DOMAIN)
def rotate(site: Site) -> Results:
    """x[batch, length, heads * depth] or [batch, heads, length, depth] turned by the angles of its places: pairs lie
    side by side (`interleaved`) or half a head apart. What is behind the first `rotary_embedding_dim` stays."""
    refuse(bool(site.attribute("is_packed_batching", 0)) or site.attribute("scale", 1.0) != 1.0, "packed batching")
    x, cosines = site.input(0), site.input(2)
    turned = 2 * site.shape(cosines)[1]
    site.ignore("rotary_embedding_dim")  # as the cosines say
    heads = site.attribute("num_heads", 0)
    packed = site.rank(x) == 3
    if packed:
        x = by_head(site, x, heads or site.shape(x)[2] // turned)
    batch, _, length, depth = site.shape(x)
    places = site.input(1)
    if site.shape(places) != (batch, length):  # of the first token, from which the others count
        steps = site.constant(np.arange(length)[None], site.dtype(places))
        places = site.emit("add", site.reshape(places, (1, 1)), steps)
    shape = (site.shape(places)[0], 1, length, turned // 2)
    cos, sin = (site.reshape(site.emit("gather", site.input(n), places, axis=0), shape) for n in (2, 3))
    y = rotated(site, site.part(x, 3, 0, turned), (cos, sin), bool(site.attribute("interleaved", 0)))
    if turned < depth:
        y = site.emit("concat", y, site.part(x, 3, turned, depth), axis=3)
    if not packed:
        return y
    heads = site.shape(y)[1]
    return site.reshape(site.emit("transpose", y, perm=(0, 2, 1, 3)), (batch, length, heads * depth))


def rotated(site: Site, x: str, angles: tuple[str, str], interleaved: bool) -> str:
    *lead, depth = site.shape(x)
    half = depth // 2
    pairs = site.reshape(x, (*lead, half, 2) if interleaved else (*lead, 2, half))
    axis = len(lead) + interleaved
    a, b = (site.reshape(site.part(pairs, axis, n, n + 1), (*lead, half)) for n in (0, 1))
    cos, sin = angles
    one = site.emit("sub", site.emit("mul", a, cos), site.emit("mul", b, sin))
    other = site.emit("add", site.emit("mul", a, sin), site.emit("mul", b, cos))
    shape = (*lead, half, 1) if interleaved else (*lead, 1, half)
    return site.reshape(site.emit("concat", *(site.reshape(t, shape) for t in (one, other)), axis=axis), (*lead, depth))
