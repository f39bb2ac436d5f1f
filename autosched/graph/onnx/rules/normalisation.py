"""Rules of normalisation and softmax."""

from __future__ import annotations

import math

from autosched.graph.onnx.site import Results, Site, refuse, rule


@rule("BatchNormalization")
def batch_norm(site: Site) -> Results:
    momentum, epsilon = site.attribute("momentum", 0.9), site.attribute("epsilon", 1e-5)
    refuse(not site.attribute("spatial", 1), "a statistic for each place (spatial = 0)")
    if site.opset >= 14 and site.attribute("training_mode", 0):
        return by_own_statistics(site, momentum, epsilon)
    refuse(any(site.is_used[1:]), "training mode before opset 14")
    return site.emit("batch_norm", *site.all_inputs(), epsilon=epsilon)


def by_own_statistics(site: Site, momentum: float, epsilon: float) -> Results:
    """Normalise by mean and variance of the batch, and return the means of these and of the given ones."""
    x, scale, bias, *running = site.all_inputs()
    dtype, rank = site.dtype(running[0]), site.rank(x)
    refuse(rank < 2, f"training mode for the shape {list(site.shape(x))}")
    axes = (0, *range(2, rank))
    wide = site.cast(x, dtype)
    mean = site.emit("reduce_mean", wide, axes=axes, keepdims=False)
    centred = site.emit("sub", wide, site.reshape(mean, (1, site.shape(mean)[0], *(1,) * (rank - 2))))
    variance = site.emit("reduce_mean", site.emit("mul", centred, centred), axes=axes, keepdims=False)
    y = site.emit("batch_norm", x, scale, bias, mean, variance, epsilon=epsilon)
    old, new = (site.constant(share, dtype) for share in (momentum, 1 - momentum))
    means = [
        site.emit("add", site.emit("mul", before, old), site.emit("mul", now, new))
        for before, now in zip(running, (mean, variance), strict=True)
    ]
    return y, *means


@rule("LayerNormalization")
def layer_norm(site: Site) -> Results | None:
    site.ignore("stash_type")  # we compute in float32 at least
    if any(site.is_used[1:]):
        return None
    x, epsilon = site.input(0), site.attribute("epsilon", 1e-5)
    axes = site.rank(x) - site.axis(site.attribute("axis", -1), site.rank(x))
    scale, bias = over_last_axes(site, x, axes, 1), over_last_axes(site, x, axes, 2)
    return site.emit("layer_norm", x, scale, bias, axes=axes, epsilon=epsilon)


@rule("RMSNormalization")
def rms_norm(site: Site) -> Results:
    site.ignore("stash_type")
    x, epsilon = site.input(0), site.attribute("epsilon", 1e-5)
    axes = site.rank(x) - site.axis(site.attribute("axis", -1), site.rank(x))
    return site.emit("rms_norm", x, over_last_axes(site, x, axes, 1), axes=axes, epsilon=epsilon)


def over_last_axes(site: Site, x: str, axes: int, n: int) -> str | None:
    """A scale or bias in the shape of the last axes of `x`, which ONNX lets be broadcast."""
    name, shape = site.optional(n), site.shape(x)[site.rank(x) - axes :]
    if name is None or site.shape(name) == shape:
        return name
    refuse(len(site.shape(name)) > axes, f"a scale of the shape {list(site.shape(name))}")
    return site.emit("expand", name, shape=shape)


@rule("GroupNormalization")
def group_norm(site: Site) -> Results:
    """Before opset 21 the scale is of groups, since then of channels."""
    site.ignore("stash_type")
    x, groups, epsilon = site.input(0), site.attribute("num_groups"), site.attribute("epsilon", 1e-5)
    channels = site.shape(x)[1]
    per_channel = []
    for n in (1, 2):
        name = site.input(n)
        if site.shape(name) == (groups,) and groups != channels:
            wide = site.emit("expand", site.reshape(name, (groups, 1)), shape=(groups, channels // groups))
            name = site.reshape(wide, (channels,))
        per_channel.append(name)
    return site.emit("group_norm", x, *per_channel, groups=groups, epsilon=epsilon)


@rule("InstanceNormalization")
def instance_norm(site: Site) -> Results:
    return site.emit("instance_norm", *site.all_inputs(), epsilon=site.attribute("epsilon", 1e-5))


@rule("LRN")
def lrn(site: Site) -> Results:
    defaults = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}
    numbers = {name: site.attribute(name, default) for name, default in defaults.items()}
    return site.emit("lrn", site.input(0), size=site.attribute("size"), **numbers)


@rule("Softmax", "LogSoftmax", "Hardmax")
def softmax(site: Site) -> Results:
    """Before opset 13 it is over all axes from `axis` on."""
    ours = {"Softmax": "softmax", "LogSoftmax": "log_softmax", "Hardmax": "hardmax"}[site.operator]
    x = site.input(0)
    shape = site.shape(x)
    if site.opset >= 13:
        return site.emit(ours, x, axis=site.axis(site.attribute("axis", -1), len(shape)))
    axis = site.axis(site.attribute("axis", 1), len(shape))
    if axis == len(shape) - 1:
        return site.emit(ours, x, axis=axis)
    rows = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    return site.reshape(site.emit(ours, site.reshape(x, rows), axis=1), shape)


@rule("LpNormalization")
def lp_normalize(site: Site) -> Results:
    x = site.input(0)
    return site.emit(
        "lp_normalize", x, axis=site.axis(site.attribute("axis", -1), site.rank(x)), p=site.attribute("p", 2)
    )
