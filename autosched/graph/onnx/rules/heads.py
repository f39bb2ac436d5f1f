"""Rules of attention in ONNX Runtime's domain: packed operands, grouped heads, caches and rotary embeddings."""

from __future__ import annotations

import numpy as np

from autosched.errors import GraphError
from autosched.graph.onnx.rules.attention import by_head
from autosched.graph.onnx.rules.caches import written
from autosched.graph.onnx.rules.microsoft import DOMAIN
from autosched.graph.onnx.site import Results, Site, refuse, rule

MASKED = -10000.0  # the default summand of masked scores


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
    if not site.is_output_used(1):
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
    return side_by_side(site, site.emit("attention", q, k, v, bias, scale=scale, causal=causal))


def side_by_side(site: Site, x: str) -> str:
    """[batch, heads, length, depth] as [batch, length, heads * depth]."""
    batch, heads, length, depth = site.sizes(x, 4)
    return site.reshape(site.emit("transpose", x, perm=(0, 2, 1, 3)), (batch, length, heads * depth))


def scores_of(site: Site, mask: str, batch: int, columns: int) -> str:
    """Return the summand of a mask for scores [batch, heads, rows, columns]. A mask has lengths [batch], or for
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
    x, places = site.input(0), site.input(1)
    site.ignore("rotary_embedding_dim")  # as the cosines say
    heads = site.attribute("num_heads", 0)
    packed = site.rank(x) == 3
    if packed:
        x = by_head(site, x, heads or site.shape(x)[2] // (2 * site.shape(site.input(2))[1]))
    batch, _, length, _ = site.sizes(x, 4)
    if site.shape(places) != (batch, length):  # of the first token, from which the others count
        steps = site.constant(np.arange(length)[None], site.dtype(places))
        places = site.emit("add", site.reshape(places, (1, 1)), steps)
    angles = (site.input(2), site.input(3))
    y = at_places(site, x, places, angles, bool(site.attribute("interleaved", 0)))
    return side_by_side(site, y) if packed else y


def at_places(site: Site, x: str, places: str, angles: tuple[str, str], interleaved: bool) -> str:
    """x[batch, heads, length, depth] turned by the rows of the cosines and sines that its places [batch, length] say;
    what is behind twice their width stays."""
    depth, turned = site.shape(x)[3], 2 * site.shape(angles[0])[1]
    shape = (site.shape(places)[0], 1, site.shape(places)[1], turned // 2)
    rows = [site.reshape(site.emit("gather", table, places, axis=0), shape) for table in angles]
    y = rotated(site, site.part(x, 3, 0, turned), (rows[0], rows[1]), interleaved)
    return y if turned == depth else site.emit("concat", y, site.part(x, 3, turned, depth), axis=3)


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


@rule("GroupQueryAttention", domain=DOMAIN)
def grouped(site: Site) -> Results:
    """Attention of queries of many heads and keys and values of few, with caches: a sequence has as many keys as input
    5 says, and one, of which the last are new and stand behind the cached ones. How many the longest one has, input 6,
    must be known, which it is where it follows from a mask's shape."""
    for n, what in ((9, "places of its own"), (10, "an addition to scores"), (11, "a sink")):
        refuse(site.optional(n) is not None, what)
    for name in ("softcap", "smooth_softmax", "kv_cache_bit_width", "qk_output"):
        refuse(bool(site.attribute(name, 0)), name)
    refuse(site.attribute("local_window_size", -1) != -1, "a window of keys")
    heads, few = site.attribute("num_heads"), site.attribute("kv_num_heads")
    q, k, v = (by_head(site, name, n) for name, n in zip(separate(site, heads, few), (heads, few, few), strict=True))
    batch, _, length, _ = site.sizes(q, 4)
    last = site.reshape(site.cast(site.input(5), "int64"), (batch, 1))  # the place of the last new token
    first = site.emit("sub", last, site.constant(length - 1, "int64"))
    places = site.emit("add", first, site.constant(np.arange(length)[None], "int64"))
    if site.attribute("do_rotary", 0):
        angles, interleaved = (site.input(7), site.input(8)), bool(site.attribute("rotary_interleaved", 0))
        q, k = (at_places(site, x, places, angles, interleaved) for x in (q, k))
    k, v = (with_cache(site, x, n, first) for x, n in ((k, 3), (v, 4)))
    columns = np.arange(site.shape(k)[2])[None, None, None]
    kept = site.emit("less_equal", site.constant(columns, "int64"), site.reshape(places, (batch, 1, length, 1)))
    y = site.emit("attention", q, k, v, kept, scale=site.attribute("scale") or None, causal=False)
    return side_by_side(site, y), k, v


def separate(site: Site, heads: int, few: int) -> list[str]:
    """Queries, keys and values, which one operand may hold side by side."""
    x = site.input(0)
    if site.optional(1) is not None:
        return [x, site.input(1), site.input(2)]
    depth = site.shape(x)[2] // (heads + 2 * few)
    ends = [0, heads * depth, (heads + few) * depth, (heads + 2 * few) * depth]
    return [site.part(x, 2, ends[n], ends[n + 1]) for n in range(3)]


def with_cache(site: Site, x: str, n: int, first: str) -> str:
    """x[batch, heads, length, depth] from place `first` [batch, 1] on, what is cached before and behind it."""
    batch = site.shape(x)[0]
    total, past = site.array(6), site.optional(n)
    assert total is not None, "input 6 is not optional"
    if past is None:
        return x
    size = max(int(total.item()), site.shape(past)[2])
    if size > site.shape(past)[2]:
        more = ((0, 0), (0, 0), (0, size - site.shape(past)[2]), (0, 0))
        past = site.emit("pad", past, pads=more, mode="constant", value=0.0)
    return written(site, past, x, 2, site.reshape(first, (batch,)))
