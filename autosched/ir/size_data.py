"""Closed forms of sizes as JSON data: ["mul", "s0", 4] is s0*4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autosched.ir.expr import INDEX, Binary, Const, Expr, Var
from autosched.ir.size import SymbolicSize, computed, form_of


def form_data(form: Expr, names: Mapping[str, str]) -> Any:
    """Return a closed form, or a guard, as data. `names`: those that the symbols get, by their own."""
    match form:
        case Var(name=name):
            return names[name]
        case Const():
            return form.number
        case Binary(op=op, a=a, b=b):
            return [op, form_data(a, names), form_data(b, names)]
    raise AssertionError(f"{form} is no form of sizes")


def form_of_data(data: Any) -> Expr:
    """Return the closed form, or the guard, of data. Raises ValueError for other data."""
    match data:
        case str():
            return Var(data, INDEX)
        case bool():
            pass
        case int():
            return Const(data, INDEX)
        case [str(op), a, b]:
            return Binary(op, form_of_data(a), form_of_data(b))
    raise ValueError(f"{data} is no form of sizes")


def forms_data(forms: Sequence[Expr], names: Mapping[str, str]) -> Any:
    """Return closed forms, which may have common parts, as data: the parts, of which each names operands by their
    positions, and the positions of the forms."""
    places, parts = dict[Expr, int](), list[Any]()

    def place(form: Expr) -> int:
        if form not in places:
            operands = [place(child) for child in form.children]
            parts.append([form.op, *operands] if isinstance(form, Binary) else form_data(form, names))
            places[form] = len(parts) - 1
        return places[form]

    return [parts, [place(form) for form in forms]]


def forms_of_data(data: Any) -> list[Expr]:
    """Return the closed forms of the result of `forms_data`. Raises ValueError for other data."""
    parts, positions = data
    forms = list[Expr]()
    for part in parts:
        match part:
            case [str(op), int(a), int(b)]:
                forms.append(Binary(op, forms[a], forms[b]))
            case _:
                forms.append(form_of_data(part))
    return [forms[n] for n in positions]


def size_data(size: int, names: Mapping[str, str]) -> Any:
    """Return a number or a size as data."""
    return form_data(form_of(size), names)


def size_of_data(data: Any, symbols: Mapping[str, int]) -> int:
    """Return the size of data over `symbols`, which are sizes by name. Raises ValueError for other data."""
    match data:
        case str() if data in symbols:
            return symbols[data]
        case [str(op), a, b]:
            return computed(op, size_of_data(a, symbols), size_of_data(b, symbols))
        case int() if not isinstance(data, bool):
            return data
    raise ValueError(f"{data} is no form of the sizes {', '.join(symbols)}")


def symbols_in(data: Any) -> dict[str, None]:
    """Return the names of the symbols of sizes in nested tuples, lists and dictionaries, in their order."""
    if isinstance(data, SymbolicSize):
        return _symbols_of(data.form)
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, list | tuple) else ()
    return {name: None for part in parts for name in symbols_in(part)}


def _symbols_of(form: Expr) -> dict[str, None]:
    if isinstance(form, Var):
        return {form.name: None}
    return {name: None for child in form.children for name in _symbols_of(child)}
