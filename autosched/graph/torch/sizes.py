"""Specialisation of fx graphs with torch's symbolic sizes to numbers, or to sizes of a trace of ours (`ir.size`).

That is much faster than tracing again. A tensor of sizes is a meta tensor of their present values that knows its sizes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from autosched.ir.size import SymbolicSize, has_size, value_of

Numbers: TypeAlias = Mapping[Any, int]  # of symbols
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_LAYOUT = "autosched_layout"  # the attribute of a tensor with its `TensorLayout`
# torch's functions of sizes, which are classes of SymPy's expressions, by their names.
_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "Add": lambda *terms: sum(terms), "Mul": lambda *factors: reduce(operator.mul, factors),
    "FloorDiv": operator.floordiv, "CleanDiv": operator.floordiv, "CeilDiv": lambda a, b: -(-a // b),
    "PythonMod": operator.mod, "Mod": operator.mod, "ModularIndexing": lambda a, by, size: a // by % size,
    "Max": max, "Min": min, "Identity": lambda a: a,
    "Equality": operator.eq, "Unequality": operator.ne, "StrictLessThan": operator.lt, "LessThan": operator.le,
    "StrictGreaterThan": operator.gt, "GreaterThan": operator.ge,
    "And": lambda *facts: all(facts), "Or": lambda *facts: any(facts), "Not": operator.not_,
}  # fmt: skip


class TensorLayout(NamedTuple):
    """The layout of a tensor, of numbers or of sizes of a trace. `start`: its first element in its storage."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int = 0


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor in row-major order."""
    return tuple(math.prod([max(size, 1) for size in shape[n + 1 :]]) for n in range(len(shape)))


def layout_of(tensor: torch.Tensor) -> TensorLayout:
    known: TensorLayout | None = getattr(tensor, _LAYOUT, None)
    return known or TensorLayout(tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def with_layout(layout: TensorLayout, dtype: torch.dtype, device: str = "meta") -> torch.Tensor:
    """Return a tensor of a layout, for the present values of sizes, of which `layout_of` returns the sizes."""
    shape, strides = ([value_of(n) for n in ends] for ends in (layout.shape, layout.strides))
    start = value_of(layout.start)
    if start == 0:
        tensor = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    else:
        n_elements = start + 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        whole = torch.empty(max(n_elements, 0), dtype=dtype, device=device)
        tensor = whole.as_strided(shape, strides, start)
    if has_size((layout,)):
        setattr(tensor, _LAYOUT, layout)
    return tensor


class NoNumber(Exception):
    """A size that depends on data, so that arguments do not determine it."""


def numbers_for(places: Sequence[fx.Node], arguments: Sequence[Any]) -> Numbers | None:
    """Return the numbers of the symbols in the sizes of placeholders, given the arguments.

    None if an argument has another fixed size than in the trace, or if a guard of the trace does not hold.
    """
    pairs = [pair for node, x in zip(places, arguments, strict=True) for pair in paired_sizes(node.meta.get("val"), x)]
    numbers = {size.node.expr: n if has_size((n,)) else int(n) for size, n in pairs if _is_symbol(size)}
    try:
        fit = all(number_of(size, numbers) == n for size, n in pairs)
    except NoNumber:
        return None
    return numbers if fit and all(holds(each, numbers) for each in environments_of(s for s, _ in pairs)) else None


def environments_of(sizes: Iterable[Any]) -> list[Any]:
    """Return torch's environments of symbolic sizes, which have the guards of its trace."""
    found = (size.node.shape_env for size in sizes if isinstance(size, torch.SymInt))
    return list({id(environment): environment for environment in found}.values())


def with_numbers(module: fx.GraphModule, numbers: Numbers) -> fx.GraphModule:
    """Return a copy of the graph with numbers for sizes and for computations on sizes. Raises NoNumber.

    A graph with sizes of a trace of ours has no code, which Python could not read.
    """
    graph = fx.Graph()
    known: dict[fx.Node, Any] = {}
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, _SYMBOLIC):
            known[node] = number_of(value, numbers)
            continue
        made = graph.node_copy(node, known.__getitem__)
        made.name = node.name  # which may be one that a new node would not get, as input
        made.meta = {**node.meta, "val": _with_numbers(value, numbers)} if "val" in node.meta else dict(node.meta)
        known[node] = number_of(value, numbers) if node.op == "placeholder" and isinstance(value, _SYMBOLIC) else made
    is_traced = has_size(tuple(numbers.values()))
    return _LazyGraphModule(module, graph) if is_traced else fx.GraphModule(module, graph)


def paired_sizes(value: Any, argument: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each size of a placeholder with that of the argument."""
    if isinstance(value, torch.Tensor):
        layout = layout_of(argument)
        yield from zip(value.shape, layout.shape, strict=True)
        yield from zip(value.stride(), layout.strides, strict=True)
    elif isinstance(value, torch.SymInt):
        yield value, argument


def _is_symbol(size: Any) -> bool:
    return isinstance(size, torch.SymInt) and bool(size.node.expr.is_Symbol)


def holds(environment: Any, numbers: Numbers) -> bool:
    """Whether all guards of the trace hold."""
    for symbol, n in numbers.items():
        known = environment.var_to_range.get(symbol)
        if known is not None and not (n >= int(known.lower) and (known.upper >= 1 << 31 or n <= int(known.upper))):
            return False
    later = (check for checks in environment.deferred_runtime_asserts.values() for check in checks)
    conditions = [each.expr for each in (*environment.guards, *later)]
    return all(_evaluated(environment.replace(condition), numbers) in (True,) for condition in conditions)


def number_of(size: Any, numbers: Numbers) -> Any:
    """Return a number for a number that may be symbolic. Raises NoNumber."""
    if not isinstance(size, _SYMBOLIC):
        return size
    number = _evaluated(size.node.expr, numbers)
    if isinstance(number, SymbolicSize):
        return number
    if isinstance(size, torch.SymFloat):
        return float(number)
    return bool(number) if isinstance(size, torch.SymBool) else int(number)


def _evaluated(expression: Any, numbers: Numbers) -> Any:
    """Return the value of an expression on symbols. Raises NoNumber for a symbol without a number."""
    if expression in numbers:
        return numbers[expression]
    if expression.is_Integer:
        return int(expression)
    if expression.is_Pow and expression.exp.is_Integer and expression.exp > 0:
        base = _evaluated(expression.base, numbers)
        return reduce(operator.mul, [base] * int(expression.exp))
    function = _FUNCTIONS.get(expression.func.__name__)
    if function is not None and not any(part.is_Rational and not part.is_Integer for part in expression.args):
        return function(*(_evaluated(part, numbers) for part in expression.args))
    number = expression.subs({symbol: int(n) for symbol, n in numbers.items() if symbol in expression.free_symbols})
    if not number.is_number and number not in (True, False):
        raise NoNumber(f"{number} is known at run time only")
    return number


def _with_numbers(value: Any, numbers: Numbers) -> Any:
    """Return the metadata of a node with numbers for sizes; tensors have no memory."""
    if isinstance(value, tuple | list):
        return type(value)(_with_numbers(part, numbers) for part in value)
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.device.type != "cpu":
        return number_of(value, numbers)
    shape, strides = (tuple([number_of(n, numbers) for n in ends]) for ends in (value.shape, value.stride()))
    return with_layout(TensorLayout(shape, strides, number_of(value.storage_offset(), numbers)), value.dtype)
