"""Rules of attention."""

from __future__ import annotations

from autosched.errors import GraphError
from autosched.graph.onnx.site import Results, Site, rule


@rule("Attention")
def attention(site: Site) -> Results | None:
    """Plain attention is one node; with a cache, a softcap or scores as a result it is expanded by its definition."""
    q, k, v, mask = site.input(0), site.input(1), site.input(2), site.optional(3)
    causal, precision = bool(site.attribute("is_causal", 0)), site.attribute("softmax_precision", 1)
    windows = [site.attribute(f"{side}_window_size", -1) for side in ("left", "right")]
    site.ignore("qk_matmul_output_mode")
    extras = any(site.optional(n) is not None for n in range(4, 7)) or any(site.is_used[1:])
    if extras or site.attribute("softcap", 0.0) or precision != 1 or windows != [-1, -1]:
        return None
    packed = site.rank(q) == 3
    heads = (site.attribute("q_num_heads"), site.attribute("kv_num_heads"))
    if packed:
        q, k, v = (by_head(site, name, n) for name, n in ((q, heads[0]), (k, heads[1]), (v, heads[1])))
    rows, columns = site.shape(q)[-2], site.shape(k)[-2]
    if (causal and rows != columns) or (mask is not None and (causal or site.shape(mask)[-1] != columns)):
        return None
    y = site.emit("attention", q, k, v, mask, scale=site.attribute("scale"), causal=causal)
    if mask is not None and site.dtype(mask) == "bool" and not keeps_some_of_each_row(site, mask):
        rows_kept = site.emit("reduce_any", mask, axes=(site.rank(mask) - 1,), keepdims=True)
        y = site.emit("where", rows_kept, y, site.constant(0.0, site.dtype(y)))  # not NaN, as a softmax of nothing
    if not packed:
        return y
    batch, n, length, depth = site.sizes(y, 4)
    return site.reshape(site.emit("transpose", y, perm=(0, 2, 1, 3)), (batch, length, n * depth))


def keeps_some_of_each_row(site: Site, mask: str) -> bool:
    """Whether that is known."""
    mask_array = site.builder.constants.get(mask)
    return mask_array is not None and bool(mask_array.any(axis=-1).all())


def by_head(site: Site, name: str, heads: int | None) -> str:
    """[batch, length, heads * depth] as [batch, heads, length, depth]."""
    batch, length, width = site.sizes(name, 3)
    if not heads or heads < 0 or width % heads:
        raise GraphError(f"the shape {list(site.shape(name))} is not one of {heads or 'an unknown number of'} heads")
    return site.emit("transpose", site.reshape(name, (batch, length, heads, width // heads)), perm=(0, 2, 1, 3))
