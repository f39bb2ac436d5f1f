"""Rules of sequences of tensors and optional values, whose elements are known at import: graphs have tensors alone."""

from __future__ import annotations

import numpy as np

from autosched.errors import GraphError
from autosched.graph.onnx.rules.control import stacked
from autosched.graph.onnx.site import Results, Site, refuse, rule


def _place(site: Site, n: int, size: int) -> int:
    """Return a position among `size` counted from the start; by default the last one."""
    position = site.array(n)
    place = size - 1 if position is None else int(position.item())
    if not -size <= place < size:
        raise GraphError(f"there is no place {place} in a sequence, where {size} are")
    return place % size


@rule("SequenceEmpty")
def empty(site: Site) -> Results:
    site.ignore("dtype")
    return site.sequence(())


@rule("SequenceConstruct")
def construct(site: Site) -> Results:
    return site.sequence(site.all_inputs())


@rule("SequenceInsert")
def insert(site: Site) -> Results:
    parts = site.parts(0)
    place = _place(site, 2, len(parts) + 1)
    return site.sequence((*parts[:place], site.input(1), *parts[place:]))


@rule("SequenceErase")
def erase(site: Site) -> Results:
    parts = site.parts(0)
    place = _place(site, 1, len(parts))
    return site.sequence((*parts[:place], *parts[place + 1 :]))


@rule("SequenceAt")
def at(site: Site) -> Results:
    parts = site.parts(0)
    return parts[_place(site, 1, len(parts))]


@rule("SequenceLength")
def length(site: Site) -> Results:
    return site.constant(len(site.parts(0)), "int64")


@rule("SequenceMap")
def mapped(site: Site) -> Results:
    """The body for each tensor of the first sequence, and those of the others at the same place; tensors stay."""
    body, operands = site.attribute("body"), site.all_inputs()
    sequences = site.builder.sequences
    lengths = {len(sequences[name]) for name in operands if name in sequences}
    if operands[0] not in sequences or len(lengths) != 1:
        raise GraphError(f"it maps sequences of one length, but got {sorted(lengths) or 'none'}")
    rows = [
        site.run(body, [sequences[name][n] if name in sequences else name for name in operands])
        for n in range(len(sequences[operands[0]]))
    ]
    return tuple(site.sequence([row[k] for row in rows]) for k in range(len(body.output)))


@rule("Optional", "OptionalGetElement")
def content(site: Site) -> Results:
    """An optional value is its content: whether it has one is known at import."""
    site.ignore("type")
    refuse(site.optional(0) is None, "an optional value without content")
    return site.input(0)


@rule("OptionalHasElement")
def has_content(site: Site) -> Results:
    return site.constant(np.asarray(site.optional(0) is not None))


@rule("SplitToSequence")
def split(site: Site) -> Results:
    """Split into parts of one size, the last one smaller, or of given sizes; by default into rows."""
    x, sizes = site.input(0), site.array(1)
    shape = site.shape(x)
    axis, keep = site.axis(site.attribute("axis", 0), len(shape)), site.attribute("keepdims", 1)
    whole = shape[axis]
    if sizes is not None and sizes.ndim:
        ends = [int(end) for end in np.cumsum(sizes)]
        if not ends or ends[-1] != whole or (sizes < 0).any():
            raise GraphError(f"parts of the sizes {sizes.tolist()} do not make up {whole} along axis {axis}")
    else:
        step = 1 if sizes is None else int(sizes.item())
        if step < 1:
            raise GraphError(f"parts of the size {step} do not make up {whole} along axis {axis}")
        ends = [*range(step, whole, step), whole]
    parts = [site.part(x, axis, start, end) for start, end in zip((0, *ends), ends, strict=False)]
    if sizes is None and not keep:
        parts = [site.reshape(part, (*shape[:axis], *shape[axis + 1 :])) for part in parts]
    return site.sequence(parts)


@rule("ConcatFromSequence")
def concat(site: Site) -> Results:
    parts, axis = site.parts(0), site.attribute("axis")
    if not parts:
        raise GraphError("it joins a sequence without tensors")
    if site.attribute("new_axis", 0):
        return stacked(site, parts, axis)
    arrays = [site.builder.constants.get(name) for name in parts]
    known = [a for a in arrays if a is not None]
    if len(known) == len(parts):
        return site.constant(np.concatenate(known, axis))
    return parts[0] if len(parts) == 1 else site.emit("concat", *parts, axis=site.axis(axis, site.rank(parts[0])))
