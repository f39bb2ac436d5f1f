"""Specialisation of fx graphs with symbolic sizes to numbers, which is much faster than tracing again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import fx

Numbers: TypeAlias = Mapping[Any, int]  # of symbols
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class NoNumber(Exception):
    """A size that depends on data, so that arguments do not determine it."""


def numbers_for(places: Sequence[fx.Node], arguments: Sequence[Any]) -> Numbers | None:
    """Return the numbers of the symbols in the sizes of placeholders, given the arguments.

    None if an argument has another fixed size than in the trace, or if a guard of the trace does not hold.
    """
    pairs = [pair for node, x in zip(places, arguments, strict=True) for pair in _sizes(node.meta.get("val"), x)]
    numbers = {size.node.expr: int(n) for size, n in pairs if _is_symbol(size)}
    environments = {id(s.node.shape_env): s.node.shape_env for s, _ in pairs if isinstance(s, torch.SymInt)}
    try:
        fit = all(_number(size, numbers) == n for size, n in pairs)
    except NoNumber:
        return None
    return numbers if fit and all(_holds(each, numbers) for each in environments.values()) else None


def with_numbers(module: fx.GraphModule, numbers: Numbers) -> fx.GraphModule:
    """Return a copy of the graph with numbers for sizes and for computations on sizes. Raises NoNumber."""
    graph = fx.Graph()
    known: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, _SYMBOLIC):
            known[node] = _number(value, numbers)
            continue
        made = graph.node_copy(node, known.__getitem__)
        made.name = node.name  # which may be one that a new node would not get, as input
        made.meta = {**node.meta, "val": _with_numbers(value, numbers)} if "val" in node.meta else dict(node.meta)
        known[node] = _number(value, numbers) if node.op == "placeholder" and isinstance(value, _SYMBOLIC) else made
    return fx.GraphModule(module, graph)


def _sizes(value: Any, argument: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each size of a placeholder with that of the argument."""
    if isinstance(value, torch.Tensor):
        yield from zip(value.shape, argument.shape, strict=True)
        yield from zip(value.stride(), argument.stride(), strict=True)
    elif isinstance(value, torch.SymInt):
        yield value, argument


def _is_symbol(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and bool(size.node.expr.is_Symbol)


def _holds(environment: Any, numbers: Numbers) -> bool:
    """Whether all guards of the trace hold."""
    for symbol, n in numbers.items():
        known = environment.var_to_range.get(symbol)
        if known is not None and not known.lower <= n <= known.upper:
            return False
    later = (check for checks in environment.deferred_runtime_asserts.values() for check in checks)
    conditions = [each.expr for each in (*environment.guards, *later)]
    return all(environment.replace(condition).subs(numbers) in (True,) for condition in conditions)


def _number(size: Any, numbers: Numbers) -> Any:
    """Return a number for a number that may be symbolic. Raises NoNumber."""
    if not isinstance(size, _SYMBOLIC):
        return size
    number = size.node.expr.subs(numbers)
    if not number.is_number and number not in (True, False):
        raise NoNumber(f"{number} is known at run time only")
    if isinstance(size, torch.SymFloat):
        return float(number)
    return bool(number) if isinstance(size, torch.SymBool) else int(number)


def _with_numbers(value: Any, numbers: Numbers) -> Any:
    """Return the metadata of a node with numbers for sizes; tensors have no memory."""
    if isinstance(value, tuple | list):
        return type(value)(_with_numbers(part, numbers) for part in value)
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.device.type != "cpu":
        return _number(value, numbers)
    shape, strides = ([_number(n, numbers) for n in ends] for ends in (value.shape, value.stride()))
    start = _number(value.storage_offset(), numbers)
    if start == 0:
        return torch.empty_strided(shape, strides, dtype=value.dtype, device="meta")
    n_elements = start + 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    return torch.empty(max(n_elements, 0), dtype=value.dtype, device="meta").as_strided(shape, strides, start)
