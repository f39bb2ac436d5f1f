"""Rules of data movement."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autosched.errors import GraphError
from autosched.graph.graph import Shape
from autosched.graph.onnx.files import type_named
from autosched.graph.onnx.held_types import HELD_IN
from autosched.graph.onnx.site import Results, Site, refuse, rule
from autosched.graph.operators.elementwise import broadcast_shape
from autosched.graph.operators.index_maps import selection
from autosched.ir.size import is_same, whole


@rule("Reshape")
def reshape(site: Site) -> Results:
    x, wanted = site.input(0), site.array(1)
    assert wanted is not None, "its schema asks for two inputs"
    keep = not site.attribute("allowzero", 0)
    own, sizes = site.shape(x), [whole(size) for size in wanted.reshape(-1)]
    for n, size in enumerate(sizes):
        if size == 0 and keep:
            if n >= len(own):
                raise GraphError(f"the new shape {sizes} copies size {n} of a shape of {len(own)}")
            sizes[n] = own[n]
    total, known = _without_common(own, [s for s in sizes if s != -1])
    if sizes.count(-1) > 1 or (-1 in sizes and (known == 0 or total % known)) or (-1 not in sizes and total != known):
        raise GraphError(f"{total} elements of the shape {list(own)} do not fit the new shape {sizes}")
    return site.reshape(x, [total // known if s == -1 else s for s in sizes])


def _without_common(own: Sequence[int], sizes: Sequence[int]) -> tuple[int, int]:
    """Return the products of two shapes without the sizes other than 0 that both have: divisions of sizes are simple
    then."""
    rest, others = list(own), list[int]()
    for size in sizes:
        same = [n for n, each in enumerate(rest) if is_same(each, size)] if size != 0 else []
        if same and rest[same[0]] != 0:
            del rest[same[0]]
        else:
            others.append(size)
    return math.prod(rest), math.prod(others)


@rule("Flatten")
def flatten(site: Site) -> Results:
    x, axis = site.input(0), site.attribute("axis", 1)
    shape = site.shape(x)
    at = axis if axis == len(shape) else site.axis(axis, len(shape))
    return site.reshape(x, (math.prod(shape[:at]), math.prod(shape[at:])))


@rule("Squeeze")
def squeeze(site: Site) -> Results:
    x, axes = site.input(0), site.integers(1, "axes", since=13)
    shape = site.shape(x)
    gone = site.axes(axes, len(shape)) if axes is not None else [n for n, size in enumerate(shape) if size == 1]
    if any(shape[n] != 1 for n in gone):
        raise GraphError(f"the axes {list(gone)} of the shape {list(shape)} are not all of size 1")
    return site.reshape(x, [size for n, size in enumerate(shape) if n not in gone])


@rule("Unsqueeze")
def unsqueeze(site: Site) -> Results:
    x, axes = site.input(0), site.integers(1, "axes", since=13) or ()
    rank = site.rank(x) + len(axes)
    new, old = site.axes(axes, rank), iter(site.shape(x))
    return site.reshape(x, [1 if n in new else next(old) for n in range(rank)])


@rule("Transpose")
def transpose(site: Site) -> Results:
    x = site.input(0)
    rank = site.rank(x)
    perm = tuple(site.attribute("perm", range(rank)[::-1]))
    return x if perm == tuple(range(rank)) else site.emit("transpose", x, perm=perm)


@rule("ConstantOfShape")
def constant_of_shape(site: Site) -> Results:
    """Of sizes that are symbols; others are folded."""
    shape, value = site.array(0), site.attribute("value")
    assert shape is not None, "its schema asks for an input"
    one = site.constant(np.zeros((), np.float32) if value is None else np.reshape(value, ()))
    return site.emit("expand", one, shape=tuple(whole(size) for size in shape))


@rule("Range")
def range_(site: Site) -> Results:
    """Of sizes that are symbols; others are folded."""
    start, stop, step = (whole(site.number(n)) for n in range(3))
    refuse(step == 0, "a step of 0")
    distance, pace = (stop - start, step) if step > 0 else (start - stop, -step)
    count = (distance + pace - 1) // pace if distance > 0 else 0
    return site.emit("arange", start=start, step=step, size=count, dtype=site.dtype(site.input(0)))


@rule("Expand")
def expand(site: Site) -> Results:
    x, wanted = site.input(0), site.array(1)
    assert wanted is not None, "its schema asks for two inputs"
    own = site.shape(x)
    try:
        shape = broadcast_shape(own, tuple(whole(size) for size in wanted))
    except GraphError as error:
        raise GraphError(f"the shape {list(own)} does not expand to {wanted.tolist()}") from error
    return x if shape == own else site.emit("expand", x, shape=shape)


@rule("Slice")
def slice_(site: Site) -> Results:
    x = site.input(0)
    rank = site.rank(x)
    starts, stops, axes = (site.integers(n, name, since=10) for n, name in ((1, "starts"), (2, "ends"), (3, "axes")))
    steps = site.integers(4, "", since=10) if site.opset >= 10 else None
    if starts is None or stops is None:
        raise GraphError("its starts or ends are missing")
    where = site.axes(range(len(starts)) if axes is None else axes, rank)
    return sliced(site, x, where, [slice(*s) for s in zip(starts, stops, steps or [1] * len(starts), strict=True)])


def sliced(site: Site, x: str, axes: Sequence[int], slices: Sequence[slice]) -> str:
    """Elements of `x` by Python's slices of some axes. Backwards is forwards of what is flipped."""
    shape, flipped = site.shape(x), []
    starts, stops, steps, cut = [], [], [], []
    for axis, part in zip(axes, slices, strict=True):
        size = shape[axis]
        if part.step == 0:
            raise GraphError("a slice has the step 0")
        first, step, count = selection(size, part.start, part.stop, 1 if part.step is None else part.step)
        flipped += [axis] if step < 0 else []
        start, step = (size - 1 - first, -step) if step < 0 else (first, step)
        if (start, step, count) != (0, 1, size):
            starts.append(start)
            stops.append(start + (count - 1) * step + 1)
            steps.append(step)
            cut.append(axis)
    if flipped:
        x = site.emit("flip", x, axes=tuple(flipped))
    if not cut:
        return x
    return site.emit("slice", x, starts=tuple(starts), stops=tuple(stops), axes=tuple(cut), steps=tuple(steps))


@rule("Concat")
def concat(site: Site) -> Results:
    given = site.all_inputs()
    axis = site.axis(site.attribute("axis"), site.rank(given[0]))
    return given[0] if len(given) == 1 else site.emit("concat", *given, axis=axis)


@rule("Split")
def split(site: Site) -> Results:
    x = site.input(0)
    axis = site.axis(site.attribute("axis", 0), site.rank(x))
    size, n = site.shape(x)[axis], len(site.is_used)
    sizes = site.integers(1, "split", since=13)
    count = site.attribute("num_outputs", n)
    if count < 1:
        raise GraphError(f"it splits into {count} parts")
    if sizes is None:
        part = -(-size // count)
        sizes = (*(part for _ in range(count - 1)), size - part * (count - 1))
    if sum(sizes) != size or len(sizes) != n or min(sizes) < 0:
        raise GraphError(f"{size} elements do not split into {n} results of the sizes {list(sizes)}")
    return x if len(sizes) == 1 else site.emit_all(len(sizes), "split", x, sizes=tuple(sizes), axis=axis)


@rule("Pad")
def pad(site: Site) -> Results:
    x = site.input(0)
    rank, mode = site.rank(x), site.attribute("mode", "constant")
    given = site.integers(1, "pads", since=11)
    if given is None:
        raise GraphError("its pads are missing")
    filler = site.optional(2) if site.opset >= 11 else site.constant(site.attribute("value", 0.0), site.dtype(x))
    known = None if filler is None else site.builder.constants.get(filler)
    value = 0 if known is None else known.item()
    axes = site.integers(3, "", since=11) if site.opset >= 11 else None
    where, half = site.axes(range(rank) if axes is None else axes, rank), len(given) // 2
    if len(given) != 2 * len(where):
        raise GraphError(f"{len(given)} pads do not fit {len(where)} axes")
    pads = [(0, 0)] * rank
    for axis, low, high in zip(where, given[:half], given[half:], strict=True):
        pads[axis] = (low, high)
    made = padded(site, x, pads, mode, value)
    return made if mode != "constant" or filler is None or known is not None else filled(site, made, x, pads, filler)


def filled(site: Site, made: str, x: str, pads: Sequence[tuple[int, int]], filler: str) -> str:
    """A padded tensor with a number that is known at run time in place of what is no element of x."""
    for axis, ((low, high), size) in enumerate(zip(pads, site.shape(x), strict=True)):
        if low > 0 or high > 0:
            places = np.arange(size + low + high) - low
            inside = ((places >= 0) & (places < size)).reshape([-1 if n == axis else 1 for n in range(len(pads))])
            made = site.emit("where", site.constant(inside), made, site.reshape(filler, ()))
    return made


def padded(site: Site, x: str, pads: Sequence[tuple[int, int]], mode: str, value: float) -> str:
    """Pads below 0 cut off."""
    for axis, ((low, high), size) in enumerate(zip(pads, site.shape(x), strict=True)):
        if size + low + high < 0:
            raise GraphError(f"axis {axis} of size {size} cannot lose more than that, but its pads are {[low, high]}")
        if min(low, high) < 0 < max(low, high) and max(-low, 0) + max(-high, 0) >= size:  # all that is left is new
            if mode != "constant":
                raise GraphError(
                    f"pads {[low, high]} of axis {axis} leave none of its {size} elements to pad by {mode}"
                )
            return site.emit("pad", x, pads=tuple(pads), mode=mode, value=value)
    cut = [n for n, pair in enumerate(pads) if min(pair) < 0]
    if cut:
        ends = [(max(-pads[n][0], 0), site.shape(x)[n] - max(-pads[n][1], 0)) for n in cut]
        x = sliced(site, x, cut, [slice(start, stop, 1) for start, stop in ends])
    more = tuple((max(low, 0), max(high, 0)) for low, high in pads)
    return site.emit("pad", x, pads=more, mode=mode, value=value) if any(map(any, more)) else x


@rule("Tile")
def tile(site: Site) -> Results:
    repeats = site.integers(1, "", since=0)
    refuse(repeats is None or min(repeats, default=0) < 0, "a repeat below 0")
    return site.emit("tile", site.input(0), repeats=repeats)


@rule("DepthToSpace")
def depth_to_space(site: Site) -> Results:
    mode = site.attribute("mode", "DCR")
    return site.emit("depth_to_space", site.input(0), block=site.attribute("blocksize"), mode=mode)


@rule("SpaceToDepth")
def space_to_depth(site: Site) -> Results | None:
    if site.attribute("mode", "DCR") != "DCR":
        return None
    return site.emit("space_to_depth", site.input(0), block=site.attribute("blocksize"))


@rule("Trilu")
def trilu(site: Site) -> Results:
    k = site.array(1)
    return site.emit("trilu", site.input(0), k=0 if k is None else k.item(), upper=bool(site.attribute("upper", 1)))


@rule("Gather")
def gather(site: Site) -> Results:
    x = site.input(0)
    axis = site.axis(site.attribute("axis", 0), site.rank(x))
    return site.emit("gather", x, site.input(1), axis=axis)


@rule("GatherElements")
def gather_elements(site: Site) -> Results:
    x = site.input(0)
    return site.emit("gather_elements", x, site.input(1), axis=site.axis(site.attribute("axis", 0), site.rank(x)))


@rule("GatherND")
def gather_nd(site: Site) -> Results:
    return site.emit("gather_nd", site.input(0), site.input(1), batch_dims=site.attribute("batch_dims", 0))


@rule("ScatterND")
def scatter_nd(site: Site) -> Results:
    return site.emit("scatter_nd", *site.all_inputs(), reduction=site.attribute("reduction", "none"))


@rule("ScatterElements", "Scatter")
def scatter_elements(site: Site) -> Results:
    axis = site.axis(site.attribute("axis", 0), site.rank(site.input(0)))
    return site.emit("scatter_elements", *site.all_inputs(), axis=axis, reduction=site.attribute("reduction", "none"))


@rule("OneHot")
def one_hot(site: Site) -> Results:
    depth, ids = site.array(1), site.input(0)
    assert depth is not None, "its schema asks for three inputs"
    axis = site.axis(site.attribute("axis", -1), site.rank(ids) + 1)
    return site.emit("one_hot", site.cast(ids, "int64"), site.input(2), depth=int(depth.item()), axis=axis)


@rule("CumSum", "CumProd")
def running(site: Site) -> Results:
    x, axis = site.input(0), site.array(1)
    assert axis is not None, "its schema asks for two inputs"
    flags = {name: bool(site.attribute(name, 0)) for name in ("exclusive", "reverse")}
    return site.emit(site.operator.lower(), x, axis=site.axis(int(axis.item()), site.rank(x)), **flags)


@rule("EyeLike")
def eye_like(site: Site) -> Results:
    x, to = site.input(0), site.attribute("dtype")
    shape = site.shape(x)
    kind = site.dtype(x) if to is None else type_named(to)
    kind = None if kind is None else HELD_IN.get(kind, kind)
    if len(shape) != 2 or kind is None:
        raise GraphError("a matrix of this shape or type is not supported")
    return site.constant(np.eye(shape[0], shape[1], k=site.attribute("k", 0)), kind)


@rule("Compress")
def compress(site: Site) -> Results:
    """A constant condition says which elements stay."""
    x, condition, axis = site.input(0), site.array(1), site.attribute("axis")
    assert condition is not None, "its schema asks for two inputs"
    kept = np.flatnonzero(condition)
    if axis is None:
        x, axis = site.reshape(x, (int(np.prod(site.shape(x))),)), 0
    return site.emit("gather", x, site.constant(kept, "int64"), axis=site.axis(axis, site.rank(x)))


@rule("ReverseSequence")
def reverse_sequence(site: Site) -> Results:
    """Lengths that are no constants make the indices at run time."""
    x, name = site.input(0), site.input(1)
    batch, time = site.attribute("batch_axis", 1), site.attribute("time_axis", 0)
    shape: Shape = site.shape(x)
    own = tuple(-1 if n == batch else 1 for n in range(len(shape)))
    step = np.arange(shape[time]).reshape([-1 if n == time else 1 for n in range(len(shape))])
    lengths = site.builder.constants.get(name)
    if lengths is not None:
        size = lengths.reshape(own)
        ids = site.constant(np.broadcast_to(np.where(step < size, size - 1 - step, step), shape), "int64")
    else:
        steps = site.constant(step, "int64")
        sizes = site.reshape(site.cast(name, "int64"), [shape[batch] if n == -1 else n for n in own])
        last = site.emit("sub", sizes, site.constant(1, "int64"))
        mirrored = site.emit("where", site.emit("less", steps, sizes), site.emit("sub", last, steps), steps)
        ids = site.emit("expand", mirrored, shape=shape)
    return site.emit("gather_elements", x, ids, axis=time)
