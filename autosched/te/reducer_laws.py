"""Whether a reducer's result depends on the order: the search splits reductions and changes the order of their parts.

The combiner is evaluated on random numbers. It has to be commutative and associative, and the identity has to change
nothing, for numbers of one of the domains below at least: the root of a sum of squares does not return a negative
number, a maximum may begin at 0 where all numbers are above it. Two numbers of a triple are never equal, but for truth
values: of equals a tuple reducer may take either (`te/reference/evaluate.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from itertools import permutations

import numpy as np

from autosched.errors import ExpressionError
from autosched.ir.dtype import DTYPES
from autosched.ir.stmt import Reducer
from autosched.te.reference.blocks import DomainBox
from autosched.te.reference.error_bounds import Array, Bounded

Values = tuple[Array, ...]
_DRAWN = 96  # triples, of which those of different numbers are taken
_TOLERANCE = 1e-6  # of floats, which are evaluated in float64, relative to the largest number in sight
_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, -2.0)
_RNG = np.random.Generator
_FIRST_NUMBERS = np.repeat(np.arange(3)[:, None], _DRAWN, axis=1)
# For each domain, how floats and how integers are drawn.
_DOMAINS: tuple[tuple[Callable[[_RNG], Array], Callable[[_RNG, int, int], Array]], ...] = (
    (lambda r: r.normal(0.0, 2.0, (3, _DRAWN)), lambda r, low, high: _any_integers(r, low, high)),
    (lambda r: np.abs(r.normal(0.0, 2.0, (3, _DRAWN))), lambda r, low, high: r.integers(0, 100, (3, _DRAWN))),
    (lambda r: r.uniform(0.0, 1.0, (3, _DRAWN)), lambda r, low, high: r.permuted(_FIRST_NUMBERS, axis=0)),
    (
        lambda r: -np.abs(r.normal(0.0, 2.0, (3, _DRAWN))),
        lambda r, low, high: r.integers(max(low, -99), 9, (3, _DRAWN)),
    ),
)


def _any_integers(rng: _RNG, low: int, high: int) -> Array:
    return rng.integers(low, high, (3, _DRAWN), np.int64 if high < 1 << 63 else np.uint64, endpoint=True)


def check_laws(reducer: Reducer, stage: str) -> None:
    """Raises ExpressionError with the law that does not hold, and numbers for which it does not."""
    problem = _problem(reducer)
    if problem is not None:
        raise ExpressionError(
            f"stage {stage}: reducer {reducer.name} {problem}; the search splits reductions and changes their order, "
            "so combine of te.reducer must be commutative and associative, and its identity must change nothing; give "
            "te.reducer ordered=True to have it applied in the order of the axes"
        )


@lru_cache(maxsize=256)
def _problem(reducer: Reducer) -> str | None:
    """What is wrong in the first domain, where something is in each."""
    first: str | None = None
    for domain in range(len(_DOMAINS)):
        with np.errstate(all="ignore"):
            problem = _broken(reducer, domain)
        if problem is None:
            return None
        first = first or problem
    return first


def _broken(reducer: Reducer, domain: int) -> str | None:
    """The law that does not hold in the domain; None where all do."""
    a, b, c = _drawn(reducer, domain)
    one = tuple(np.asarray(e.value, x.dtype) for e, x in zip(reducer.identity, a, strict=True))
    ab = _combined(reducer, a, b)
    laws: tuple[tuple[str, Values, Values], ...] = (
        (f"is not commutative: combine({_A}, {_B})", ab, _combined(reducer, b, a)),
        (f"is not associative: combine(combine({_A}, {_B}), {_C})", _combined(reducer, ab, c),
         _combined(reducer, a, _combined(reducer, b, c))),
        (f"has an identity that changes numbers: combine({_A}, identity)", _combined(reducer, a, one), a),
        (f"has an identity that changes numbers: combine(identity, {_A})", _combined(reducer, one, a), a),
    )  # fmt: skip
    scale = reduce(np.maximum, [np.abs(np.nan_to_num(x.astype("float64"))) for v in (a, b, c) for x in v], np.ones(1))
    for law, got, expected in laws:
        apart = reduce(np.logical_or, [_differ(x, y, scale) for x, y in zip(got, expected, strict=True)])
        if apart.any():
            at = int(np.argmax(apart))
            words = {name: _text(values, at) for name, values in zip((_A, _B, _C), (a, b, c), strict=True)}
            return f"{_filled(law, words)} is {_text(got, at)}, not {_text(expected, at)}"
    return None


_A, _B, _C = "<a>", "<b>", "<c>"


def _filled(text: str, words: dict[str, str]) -> str:
    return reduce(lambda done, name: done.replace(name, words[name]), words, text)


def _drawn(reducer: Reducer, domain: int) -> tuple[Values, Values, Values]:
    """Three operands of the reducer, each many times."""
    rng = np.random.default_rng(domain)
    of_floats, of_integers = _DOMAINS[domain]
    parts = []
    for operand in reducer.lhs:
        row = DTYPES[operand.dtype]
        if row.kind == "b":
            drawn = rng.integers(0, 2, (3, _DRAWN))
        else:
            drawn = of_floats(rng) if row.is_float else of_integers(rng, *row.integer_range)
        parts.append(drawn.astype(_working(operand.dtype)))
    numbers = [p for p in parts if p.dtype != bool]
    differs = [(p[0] != p[1]) & (p[1] != p[2]) & (p[0] != p[2]) for p in numbers]
    kept = reduce(np.logical_and, differs, np.ones(_DRAWN, bool))
    a, b, c = (tuple(p[n, kept] for p in parts) for n in range(3))
    return a, b, c


@lru_cache(maxsize=256)
def takes_special_numbers(reducer: Reducer) -> bool:
    """Whether NaN, infinities and zeros of both signs are combined in any order with the same result. Integers, as the
    indices of argmax, are all different."""
    of_floats = np.array([(x, y, z) for x in _SPECIAL for y in _SPECIAL for z in _SPECIAL])
    orders = np.array([*permutations(range(3))])
    floats, integers = np.repeat(of_floats, len(orders), axis=0), np.tile(orders, (len(of_floats), 1))
    a, b, c = (
        tuple((floats if DTYPES[v.dtype].is_float else integers)[:, n].astype(_working(v.dtype)) for v in reducer.lhs)
        for n in range(3)
    )
    with np.errstate(all="ignore"):
        ab = _combined(reducer, a, b)
        pairs = [
            *zip(ab, _combined(reducer, b, a), strict=True),
            *zip(_combined(reducer, ab, c), _combined(reducer, a, _combined(reducer, b, c)), strict=True),
        ]
    return all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in pairs)


def _working(dtype: str) -> str:
    return "float64" if DTYPES[dtype].is_float else dtype


def _combined(reducer: Reducer, x: Values, y: Values) -> Values:
    names = [v.name for v in (*reducer.lhs, *reducer.rhs)]
    box = DomainBox({}, {}, dict(zip(names, map(Bounded, (*x, *y)), strict=True)))
    shape = np.broadcast_shapes(x[0].shape, y[0].shape)
    return tuple(np.broadcast_to(box.eval(result).value, shape) for result in reducer.results)


def _differ(x: Array, y: Array, scale: Array) -> Array:
    """Where two results are not the same; NaN, which says nothing, is as any other."""
    if x.dtype.kind != "f":
        return np.asarray(x != y)
    size = np.maximum(scale, np.maximum(np.abs(x), np.abs(y)))
    return np.asarray((np.abs(x - y) > _TOLERANCE * size) & np.isfinite(size))


def _text(values: Sequence[Array], at: int) -> str:
    words = [f"{v[at]:.4g}" if v.dtype.kind == "f" else str(v[at]) for v in values]
    return words[0] if len(words) == 1 else f"({', '.join(words)})"
