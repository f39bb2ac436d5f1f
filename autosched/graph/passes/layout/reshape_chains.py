"""Canonical form of a chain of reshapes and transposes: a reshape, a transpose and a reshape at most.

    [N, C, H, W] -reshape-> [N, C, H W] -transpose-> [N, H W, C]
    [N, C, H, W] -transpose-> [N, H, W, C] -reshape-> [N, H W, C]        the same

The movement is then a permutation, whose indices have no divisions, and the last reshape is a view. Each axis of the
result is written as digits of an element's offset in the source: (step, size) is the digit offset // step % size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import cast

from autosched.graph.graph import Graph, Node, Shape
from autosched.graph.passes.rewrite import Change, made_by, new_name

_Digit = tuple[int, int]
_ATTRIBUTE = {"reshape": "shape", "transpose": "perm"}


def canonicalise_chain(graph: Graph, node: Node) -> Change | None:
    """Replace a chain of reshapes and transposes that ends at a node by its canonical form."""
    steps = [node] if node.operator in _ATTRIBUTE else []
    while steps and (before := made_by(graph, steps[0].inputs[0], *_ATTRIBUTE)) is not None:
        steps.insert(0, before)
    for first in range(len(steps)):  # the longest chain that digits can express
        chain = steps[first:]
        source, shape = graph.values[chain[0].used[0]], graph.values[node.outputs[0]].shape
        digits = _digits(graph, source.shape, chain)
        if digits is not None:
            wanted = _steps(source.shape, shape, digits)
            is_so = [(step.operator, step.attributes[_ATTRIBUTE[step.operator]]) for step in chain] == wanted
            return None if is_so else _made(graph, node, source.name, wanted)
    return None


def _made(graph: Graph, node: Node, name: str, steps: Sequence[tuple[str, Shape]]) -> Change:
    nodes = list[Node]()
    for n, (operator, what) in enumerate(steps):
        made = node.outputs[0] if n == len(steps) - 1 else new_name(graph, node, ("apart", "moved")[n])
        told = {_ATTRIBUTE[operator]: what}
        nodes.append(replace(node, operator=operator, inputs=(name,), outputs=(made,), attributes=told))
        name = made
    return Change(tuple(nodes))


def _digits(graph: Graph, shape: Shape, chain: Sequence[Node]) -> list[list[_Digit]] | None:
    """Return the digits of each axis of the result; None if an axis begins within a digit that does not divide."""
    digits = [[(math.prod(shape[d + 1 :]), size)] if size > 1 else [] for d, size in enumerate(shape)]
    for node, after in zip(chain, (*chain[1:], None), strict=True):
        if node.operator == "transpose":
            digits = [digits[d] for d in cast("Shape", node.attributes["perm"])]
        elif after is None or after.operator == "transpose":  # the last of several reshapes determines the shape
            regrouped = _regrouped([digit for dim in digits for digit in dim], graph.values[node.outputs[0]].shape)
            if regrouped is None:
                return None
            digits = regrouped
    starts = {math.prod(shape[d + 1 :]) for d in range(len(shape))}
    return [_joined(dim, starts) for dim in digits]


def _regrouped(digits: list[_Digit], shape: Shape) -> list[list[_Digit]] | None:
    grouped: list[list[_Digit]] = []
    for size in reversed(shape):
        dim: list[_Digit] = []
        while size > 1:
            step, own = digits.pop()
            if own % size != 0 and size % own != 0:
                return None
            inner = size if own % size == 0 else own
            dim.insert(0, (step, inner))
            size //= inner
            if inner != own:
                digits.append((step * inner, own // inner))
        grouped.insert(0, dim)
    return grouped


def _joined(dim: Sequence[_Digit], starts: AbstractSet[int]) -> list[_Digit]:
    """Merge neighbouring digits that belong to one axis of the source; `starts`: the strides of its axes."""
    joined: list[_Digit] = []
    for step, size in dim:
        if joined and joined[-1][0] == step * size and step * size not in starts:
            size *= joined.pop()[1]
        joined.append((step, size))
    return joined


def _steps(source: Shape, shape: Shape, digits: Sequence[Sequence[_Digit]]) -> list[tuple[str, Shape]]:
    """Return the canonical chain from the shape `source` to `shape`, as operators and their attributes."""
    flat = [digit for dim in digits for digit in dim]
    parts = sorted(flat, reverse=True)
    if parts == flat:
        return [("reshape", shape)]
    apart, slots = _slots(source, digits, flat, parts)
    sizes, moved = (tuple(1 if digit is None else digit[1] for digit in side) for side in (apart, slots))
    free = [d for d, digit in enumerate(apart) if digit is None]
    perm = tuple(free.pop(0) if digit is None else apart.index(digit) for digit in slots)
    steps = [("reshape", sizes)] if sizes != source else []
    steps.append(("transpose", perm))
    return [*steps, ("reshape", shape)] if moved != shape else steps


def _slots(
    source: Shape, digits: Sequence[Sequence[_Digit]], flat: Sequence[_Digit], parts: Sequence[_Digit]
) -> tuple[list[_Digit | None], list[_Digit | None]]:
    """Return the digits of the axes before and after the transpose; None is an axis of size 1."""
    ones = [size == 1 for size in source]
    is_whole = [size for size in source if size > 1] == [size for _, size in parts]
    slots = [digit for dim in digits for digit in (dim or (None,))]
    if is_whole and (len(slots) == len(source) or len(flat) > sum(map(bool, digits))):
        slots = slots if len(slots) == len(source) else [*(None for one in ones if one), *flat]
    else:
        ones = [digit is None for digit in slots]
    left = list(parts)
    return [None if one else left.pop(0) for one in ones], slots
