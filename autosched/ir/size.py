"""Sizes: integers that are known by a closed form over symbols, and by the value that the form has now.

    with Guards() as guards:
        n = guards.symbol("n", 56, low=1, high=4096)
        n * 4 + 1               a size of the form n*4 + 1 and the value 225
        n > 0                   True, as it holds for all values of n
        n < 64                  True, and the guards have n < 64
        range(n)                as of 56, and the guards have n == 56

What a program computes from sizes is closed forms of the symbols; what it decides by them is recorded. So the result
holds for all values of the symbols in their ranges for which the guards hold, as in PyTorch's tracing of symbolic
shapes.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any, cast
from weakref import WeakValueDictionary

from autosched.errors import ExpressionError
from autosched.ir.conditions import NEGATED
from autosched.ir.expr import COMPARISON, INDEX, Binary, Const, Expr, Var
from autosched.ir.simplify import Simplifier
from autosched.ir.symbolic import SymbolicInteger
from autosched.ir.visit import subexpressions

# Sizes from one of these to the next have one schedule: none, a vector or a row, a few, many. It is chosen for the size
# of the first call, but at least for the number beside: with the one for 33 rows, a product of 64 x 768 x 768 took 1.6
# times as long as with the one for 64.
SIZE_CLASSES = {0: 0, 1: 1, 2: 8, 32: 128}
_NUMBERS = itertools.count()
MOST = (1 << 31) - 1  # the default end of a symbol's range
_ROUNDED = {"lt": math.ceil, "ge": math.ceil, "le": math.floor, "gt": math.floor}  # a bound for integers
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod,
    "ceildiv": lambda a, b: -(-a // b), "min": min, "max": max,
}  # fmt: skip
_BOTH = {"and": "and_"}  # the name in `operator` of what is no name there


class Guards:
    """The conditions on symbols by which something was decided. It collects them while it is entered.

    Its symbols are no others': what a cache keeps for their closed forms was decided under these guards.
    """

    def __init__(self) -> None:
        self.conditions: dict[Expr, None] = {}
        self.simplify = Simplifier()
        self.ranges: dict[str, tuple[int, int]] = {}  # of the symbols, by name
        self.present: dict[str, int] = {}  # values, by the names of the symbols themselves
        self._tokens: list[Token[Guards | None]] = []
        self._forms: tuple[int, Forms] | None = None  # of so many conditions
        self._number = next(_NUMBERS)

    def symbol(self, name: str, value: int, low: int = 0, high: int = MOST) -> int:
        """Return a size that has any value from `low` to `high`, and `value` now."""
        symbol = Var(f"{name}.{self._number}", INDEX)
        self.present[symbol.name] = value
        self.simplify.ranges[symbol] = self.ranges[name] = (low, high)
        return _size(symbol, value)

    def symbol_of_class(self, name: str, value: int, low: int, high: int, unit: int = 1) -> int:
        """As `symbol`, for the sizes of the value's class, as conditions say; the value itself where it is the only
        one. The sizes of the class are `unit` times those of the symbol."""
        first = -(-class_of(value * unit) // unit)
        last = min(((n - 1) // unit for n in SIZE_CLASSES if n > value * unit), default=high)
        first, last = max(first, low), min(last, high)
        size = self.symbol(name, value, first, last)
        form = form_of(size)
        self.conditions.update({form >= first: None} if first > low else {})
        self.conditions.update({form <= last: None} if last < high else {})
        return value if first == last else size

    @property
    def names(self) -> dict[str, str]:
        """The names that were given, by those of the symbols themselves."""
        return {symbol: symbol.rpartition(".")[0] for symbol in self.present}

    def range_of(self, symbol: str) -> tuple[int, int]:
        """Return the least and the greatest value of a symbol, by its own name."""
        return self.ranges[symbol.rpartition(".")[0]]

    def values(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return values of sizes by name as values of the symbols, for `evaluate`."""
        return {f"{name}.{self._number}": size for name, size in sizes.items()}

    def hold(self, sizes: Mapping[str, int]) -> bool:
        """Whether all conditions hold for these values of the sizes, which are within their ranges."""
        if any(not self.ranges[name][0] <= size <= self.ranges[name][1] for name, size in sizes.items()):
            return False
        if self._forms is None or self._forms[0] != len(self.conditions):
            self._forms = len(self.conditions), Forms(self.conditions)
        return self._forms[1].hold(self.values(sizes))

    def __repr__(self) -> str:
        return f"Guards({', '.join(map(str, self.conditions))})"

    def __enter__(self) -> Guards:
        self._tokens.append(_ENTERED.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _ENTERED.reset(self._tokens.pop())


_ENTERED: ContextVar[Guards | None] = ContextVar("guards", default=None)


def entered() -> Guards:
    """Return the guards that are collected. There must be some."""
    guards = _ENTERED.get()
    assert guards is not None, "no guards are collected"
    return guards


class SymbolicSize(SymbolicInteger):
    """An integer with a closed form. Wherever Python needs its value, a guard says that the form has this value.

    As text it is its form in brackets, which code generation replaces by the place where the value is at run time.
    """

    __slots__ = ("form", "value")

    form: Expr
    value: int

    def computed(self, op: str, a: Any, b: Any) -> int:
        return computed(op, a, b)

    def is_known(self, op: str, a: Any, b: Any) -> bool:
        return _is_known(op, a, b)

    @property
    def identity(self) -> object:
        return self.form, self.value

    @property
    def constant(self) -> int:
        return _simplify().affine(self.form).constant

    @property
    def divisor(self) -> int:
        affine = _simplify().affine(self.form)
        return math.gcd(affine.constant, *(c for _, c in affine.terms))

    def __hash__(self) -> int:
        return hash(self.form)

    def __index__(self) -> int:
        _ask("eq", self, self.value)
        return self.value

    __int__ = __trunc__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __bool__(self) -> bool:
        return _ask("ne", self, 0)

    def __str__(self) -> str:
        text = str(self.form)
        _PRINTED[text] = self.form
        return f"⟦{text}⟧"

    def __repr__(self) -> str:
        return f"size({str(self.form)!r})"

    def __format__(self, spec: str) -> str:
        return format(self.__index__(), spec) if spec else str(self)

    def __neg__(self) -> int:
        return computed("sub", 0, self)

    def __abs__(self) -> int:
        return -self if _ask("lt", self, 0) else cast(int, self)

    def __divmod__(self, other: Any) -> tuple[int, int]:
        return self // other, self % other

    def __truediv__(self, other: Any) -> Any:
        return self.__index__() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.__index__()

    def __pow__(self, other: Any) -> Any:
        return self.__index__() ** other

    def __rpow__(self, other: Any) -> Any:
        return other ** self.__index__()

    def __and__(self, other: Any) -> Any:
        return self.__index__() & other

    def bit_count(self) -> int:
        return self.__index__().bit_count()

    def bit_length(self) -> int:
        return self.__index__().bit_length()


def whole(number: Any) -> int:
    """Return an integer of Python's from one of another library, and a size as it is. Raises TypeError for others."""
    return cast(int, number) if isinstance(number, SymbolicSize) else operator.index(number)


def has_size(data: Any) -> bool:
    """Whether the data, or a part of a tuple, is a size or a constant with a size."""
    if isinstance(data, tuple):
        return any(map(has_size, data))
    return isinstance(data.value if isinstance(data, Const) else data, SymbolicSize)


def is_sized(expr: Expr) -> bool:
    """Whether a size is in an expression."""
    return any(map(has_size, subexpressions(expr)))


def is_same(a: Any, b: Any) -> bool:
    """Whether two numbers are equal, or two sizes of one form. It decides nothing where they only have equal values."""
    if isinstance(a, SymbolicSize) and isinstance(b, SymbolicSize):
        return a.form is b.form and a.value == b.value
    return bool(not isinstance(a, SymbolicSize) and not isinstance(b, SymbolicSize) and a == b)


def value_of(number: Any) -> int:
    """Return the value that a number has now, for what does not decide anything by it."""
    return cast(int, number.value if isinstance(number, SymbolicSize) else number)


def form_of(number: Any) -> Expr:
    """Return the closed form of an integer."""
    return number.form if isinstance(number, SymbolicSize) else Const(number, INDEX)


def class_of(size: int) -> int:
    """Return the first size of the class of a size."""
    return max(n for n in SIZE_CLASSES if n <= size)


def typical_size(size: int, high: int) -> int:
    """Return the size, at most `high`, that the schedule for the class of a size is chosen for."""
    return max(size, min(SIZE_CLASSES[class_of(size)], high))


class Forms:
    """Closed forms that are evaluated together: each of their parts once."""

    def __init__(self, forms: Iterable[Expr]) -> None:
        self._places: dict[Expr, int] = {}
        self._values: list[Any] = []
        self._symbols: list[tuple[int, str]] = []
        self._steps: list[tuple[int, Callable[[Any, Any], Any], int, int]] = []
        self._results = [self._place(form) for form in forms]

    def _place(self, form: Expr) -> int:
        if (known := self._places.get(form)) is not None:
            return known
        operands = tuple(map(self._place, form.children)) if isinstance(form, Binary) else ()
        place = self._places[form] = len(self._values)
        self._values.append(form.value if isinstance(form, Const) else None)
        match form:
            case Var(name=name):
                self._symbols.append((place, name))
            case Binary(op=op):
                a, b = operands
                self._steps.append((place, _ARITHMETIC.get(op) or getattr(operator, _BOTH.get(op, op)), a, b))
            case _:
                assert isinstance(form, Const), f"{form} is no form of sizes"
        return place

    def at(self, values: Mapping[str, int]) -> list[Any]:
        """Return the numbers, and for guards the truth values, for these values of the symbols.

        Raises ZeroDivisionError where a form has no value.
        """
        numbers = self._values.copy()
        for place, name in self._symbols:
            numbers[place] = values[name]
        for place, compute, a, b in self._steps:
            numbers[place] = compute(numbers[a], numbers[b])
        return [numbers[place] for place in self._results]

    def hold(self, values: Mapping[str, int]) -> bool:
        """Whether all of the guards hold for these values of the symbols."""
        try:
            return all(self.at(values))
        except ZeroDivisionError:  # of sizes that another guard excludes
            return False


def evaluate(form: Expr, values: Mapping[str, int]) -> Any:
    """Return the number, or for a guard the truth value, of one closed form; see `Forms`."""
    return Forms([form]).at(values)[0]


_NO_RANGES = Simplifier()
_PRINTED: WeakValueDictionary[str, Expr] = WeakValueDictionary()


def printed_form(text: str) -> Expr:
    """Return the closed form of a size that was printed as `text`, without the brackets, and still exists."""
    return _PRINTED[text]


def declared(symbol: Var, value: int, low: int, high: int) -> int:
    """Return a size for definitions outside of guards, which must not depend on it. `value`: as in `presumed`."""
    _NO_RANGES.ranges[symbol] = low, high
    return _size(symbol, value)


@contextmanager
def presumed() -> Iterator[None]:
    """Within it, where no guards are collected, the values of declared sizes decide: for checks that are repeated when
    sizes are put in place of them."""
    if _ENTERED.get() is not None or not _NO_RANGES.ranges:
        yield
        return
    with Guards() as guards:
        guards.simplify.ranges.update(_NO_RANGES.ranges)
        yield


def unit_of(allowed: range) -> int:
    """Return the greatest number that is known to divide the sizes of a range."""
    return allowed.step if allowed.start % allowed.step == 0 else 1


def _simplify() -> Simplifier:
    guards = _ENTERED.get()
    return _NO_RANGES if guards is None else guards.simplify


def _size(form: Expr, value: int) -> int:
    if isinstance(form, Const):
        return form.number
    size = object.__new__(SymbolicSize)
    size.form, size.value = form, value
    return cast(int, size)


def computed(op: str, a: Any, b: Any) -> int:
    if op in ("min", "max"):
        if _is_known("le", a, b):
            return cast(int, a if op == "min" else b)
        if _is_known("ge", a, b):
            return cast(int, b if op == "min" else a)
    elif op in ("floordiv", "mod") and isinstance(b, SymbolicSize) and _is_known("ge", a, 0) and _is_known("lt", a, b):
        return 0 if op == "floordiv" else cast(int, a)
    form = _simplify()(Binary(op, form_of(a), form_of(b)))
    return _size(form, _ARITHMETIC[op](value_of(a), value_of(b)))


def _ask(op: str, a: Any, b: Any) -> bool:
    """Whether `a op b` holds for the values; a guard where it does not hold for all of them."""
    answer: bool = getattr(operator, op)(value_of(a), value_of(b))
    x, y = form_of(a), form_of(b)
    if x is y:  # of another trace where the values differ
        return answer
    condition = _condition(op if answer else NEGATED[op], x, y)
    if isinstance(condition, Const):
        assert condition.value, f"{x} {op} {y} is {answer} for the values of sizes that are out of their ranges"
        return answer
    guards = _ENTERED.get()
    if guards is None and _is_declared(condition):
        raise ExpressionError(
            f"the definition depends on whether {condition}, and a size that is declared by te.size is any of its "
            "range: write te.select, or give the size as an argument of a function and compile that with sizes="
        )
    assert guards is not None, f"the size {x} decides something, {op} {y}, where no guards are collected"
    guards.conditions[condition] = None
    return answer


def _is_declared(form: Expr) -> bool:
    return form in _NO_RANGES.ranges or any(map(_is_declared, form.children))


def _is_known(op: str, a: Any, b: Any) -> bool:
    """Whether `a op b` holds for all values."""
    if not getattr(operator, op)(value_of(a), value_of(b)):
        return False
    x, y = form_of(a), form_of(b)
    if x is y:
        return True
    condition = _condition(op, x, y)
    return isinstance(condition, Const) and bool(condition.value)


def _condition(op: str, x: Expr, y: Expr) -> Expr:
    """Return a comparison of forms, constant where it holds for all values or for none."""
    simplify = _simplify()
    condition = simplify(Binary(op, x, y))
    if isinstance(condition, Const):
        return condition
    difference = simplify(x - y)
    holds, fails = (_never(each, difference, simplify) for each in (NEGATED[op], op))
    return Const(holds, "bool") if holds or fails else condition


def _never(op: str, form: Expr, simplify: Simplifier) -> bool:
    """Whether `form op 0` is false for all values."""
    match op:
        case "gt":
            return _never_positive(form, simplify)
        case "ge":
            return _never_positive(simplify(form + 1), simplify)
        case "lt" | "le":
            return _never("gt" if op == "lt" else "ge", simplify(form * -1), simplify)
        case "eq":
            return _never("ge", form, simplify) or _never("le", form, simplify)
    return False


def _never_positive(form: Expr, simplify: Simplifier) -> bool:
    if simplify.bounds(form)[1] <= 0:
        return True
    terms = simplify.affine(form).terms
    for atom, c in terms:
        if isinstance(atom, Binary) and atom.op in ("min", "max"):
            sides = (_never_positive(simplify(form + (side - atom) * c), simplify) for side in (atom.a, atom.b))
            return any(sides) if (atom.op == "min") is (c > 0) else all(sides)
    scale = math.lcm(*(_divisor(atom) or 1 for atom, _ in terms))
    return simplify.bounds(_without_quotients(form * scale, simplify))[1] <= 0


def _without_quotients(form: Expr, simplify: Simplifier) -> Expr:
    """Return a form with `x - x % f` in place of `x // f * f`, whose bounds are closer where it is beside `-x`."""
    affine = simplify.affine(form)
    result: Expr = Const(affine.constant, INDEX)
    for atom, c in affine.terms:
        divisor = _divisor(atom)
        if isinstance(atom, Binary) and divisor and c % divisor == 0:
            result = result + (_without_quotients(atom.a, simplify) - atom.a % divisor) * (c // divisor)
        else:
            result = result + atom * c
    return simplify(result)


def _divisor(atom: Expr) -> int:
    """Return the number that a quotient is rounded down by; 0 for others."""
    match atom:
        case Binary(op="floordiv", b=Const() as divisor):
            return max(0, divisor.number)
    return 0


def _arithmetic(op: str, is_reversed: bool) -> Callable[[SymbolicSize, Any], Any]:
    def compute(size: SymbolicSize, other: Any) -> Any:
        if isinstance(other, float) and other.is_integer() and op != "mod":  # as good as the integer
            other = int(other)
        if isinstance(other, bool) or not isinstance(other, int | SymbolicSize):
            if isinstance(other, Expr):
                return NotImplemented
            pair = (other, size.value) if is_reversed else (size.value, other)
            _ask("eq", size, size.value)
            return getattr(operator, op)(*pair)
        return computed(op, other, size) if is_reversed else computed(op, size, other)

    return compute


def _comparison(op: str) -> Callable[[SymbolicSize, Any], Any]:
    def compare(size: SymbolicSize, other: Any) -> Any:
        if isinstance(other, int | SymbolicSize):
            return _ask(op, size, other)
        if not isinstance(other, float):
            return NotImplemented
        if not math.isfinite(other):
            return getattr(operator, op)(0, other)
        if op not in _ROUNDED and not other.is_integer():
            return op == "ne"
        return _ask(op, size, _ROUNDED.get(op, int)(other))

    return compare


for _op in ("add", "sub", "mul", "floordiv", "mod"):
    setattr(SymbolicSize, f"__{_op}__", _arithmetic(_op, is_reversed=False))
    setattr(SymbolicSize, f"__r{_op}__", _arithmetic(_op, is_reversed=True))
for _op in sorted(COMPARISON):
    setattr(SymbolicSize, f"__{_op}__", _comparison(_op))
