"""Rules of ONNX Runtime's domain, com.microsoft: products, low-bit weights, activations and norms."""

from __future__ import annotations

import numpy as np

from autosched.graph.onnx.site import Results, Site, refuse, rule

DOMAIN = "com.microsoft"


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
    refuse(any(site.is_used[1:3]), "the mean as a result")
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
    refuse(any(site.is_used[1:]), "the mean as a result")
    x = site.input(0)
    axis = site.axis(site.attribute("axis", -1), site.rank(x))
    refuse(axis != site.rank(x) - 1, f"the norm of all axes from {axis} on")
    return site.emit("rms_norm", x, site.input(1), axes=1, epsilon=site.attribute("epsilon", 1e-5))


@rule("EmbedLayerNormalization", domain=DOMAIN)
def embed_norm(site: Site) -> Results:
    """The norm of the embeddings of words, places and segments; how long sequences are; the sum of the embeddings."""
    site.ignore("mask_index_type")
    ids, segments, mask, places = site.input(0), site.optional(1), site.optional(7), site.optional(8)
    batch, length = site.sizes(ids, 2)
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
    if site.is_output_used(1):
        zeros = site.constant(np.zeros(batch, np.int32))
        lengths = zeros if mask is None else site.emit("reduce_sum", mask, axes=(1,), keepdims=False)
    return y, lengths, total
