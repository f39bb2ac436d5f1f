"""Evaluating an expression over a block of its domain, vectorised.

Every axis of the stage is one dimension of the result, of extent 1 where the expression does not depend
on it. A load whose indices are affine and inside the tensor is a strided view, no copy. Any other load
clips its indices: it stands under a `select` that does not use the clipped elements, or the index is data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import as_strided

from autosched.ir.bitcast import Bitcast
from autosched.ir.expr import Binary, Call, Cast, Const, Expr, Load, Select, Var
from autosched.te.reference import error_bounds as rules
from autosched.te.reference.error_bounds import Array, Bounded


@dataclass(frozen=True)
class AffineIndex:
    """sum of coefficients[name] * axis + constant."""

    coefficients: Mapping[str, int]
    constant: int

    def range(self, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """Smallest and largest value while every axis runs over lo <= axis < hi."""
        low = high = self.constant
        for name, c in self.coefficients.items():
            ends = (c * ranges[name][0], c * (ranges[name][1] - 1))
            low, high = low + min(ends), high + max(ends)
        return low, high


def affine(expr: Expr) -> AffineIndex | None:
    """`expr` as a linear form over axes with integer coefficients, None when it is not one."""
    match expr:
        case Const(value=value):
            return AffineIndex({}, int(value))
        case Var(name=name):
            return AffineIndex({name: 1}, 0)
        case Call(fn="neg", args=(a,)):
            return _combined(AffineIndex({}, 0), affine(a), -1)
        case Binary(op="add" | "sub" as op, a=a, b=b):
            return _combined(affine(a), affine(b), 1 if op == "add" else -1)
        case Binary(op="mul", a=a, b=b):
            x, y = affine(a), affine(b)
            if x is None or y is None or (x.coefficients and y.coefficients):
                return None
            form, factor = (x, y.constant) if x.coefficients else (y, x.constant)
            return _combined(AffineIndex({}, 0), form, factor)
    return None


def _combined(a: AffineIndex | None, b: AffineIndex | None, factor: int) -> AffineIndex | None:
    if a is None or b is None:
        return None
    terms = dict(a.coefficients)
    for name, c in b.coefficients.items():
        terms[name] = terms.get(name, 0) + factor * c
    return AffineIndex({n: c for n, c in terms.items() if c}, a.constant + factor * b.constant)


def element_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a C-contiguous array, in elements."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


@dataclass
class DomainBox:
    """A box of a stage's domain: `ranges` maps each axis to lo <= axis < hi, in the order of the dimensions."""

    ranges: Mapping[str, tuple[int, int]]
    tensors: Mapping[str, Bounded]
    bound: Mapping[str, Bounded] = field(default_factory=dict)  # operands of a reducer's combiner, by name
    memo: dict[Expr, Bounded] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(hi - lo for lo, hi in self.ranges.values())

    def eval(self, expr: Expr) -> Bounded:
        """The values of `expr`, each dimension an axis of the block or of extent 1."""
        done = self.memo.get(expr)
        if done is None:
            done = self._eval(expr)
            self.memo[expr] = done
        return done

    def _eval(self, expr: Expr) -> Bounded:
        match expr:
            case Const(value=value, dtype=dtype):
                return rules.constant(value, dtype)
            case Var(name=name):
                return self.bound[name] if name in self.bound else Bounded(self._axis(name))
            case Binary(op="eq" | "ne" as op, a=a, b=b) if a is b:
                return rules.is_nan(self.eval(a), op == "ne")
            case Binary(op=op, a=a, b=b):
                return rules.binary(op, self.eval(a), self.eval(b), a.dtype)
            case Call(fn=fn, args=(a,)):
                return rules.call(fn, self.eval(a), expr.dtype)
            case Select(cond=cond, a=a, b=b):
                return rules.select(self.eval(cond), self.eval(a), self.eval(b))
            case Cast(a=a, dtype=dtype):
                return rules.cast(self.eval(a), a.dtype, dtype)
            case Bitcast(a=a, dtype=dtype):
                return rules.reinterpreted(self.eval(a), a.dtype, dtype)
            case Load():
                return self._load(expr)
        raise AssertionError(f"a {type(expr).__name__} cannot stand in a stage")

    def _axis(self, name: str) -> Array:
        lo, hi = self.ranges[name]
        shape = [1] * len(self.ranges)
        shape[list(self.ranges).index(name)] = hi - lo
        return np.arange(lo, hi, dtype="int64").reshape(shape)

    def _load(self, load: Load) -> Bounded:
        source = self.tensors[load.buffer]
        if not source.value.size:  # the branch of a select that is never taken
            return Bounded(np.zeros((1,) * len(self.ranges), source.value.dtype))
        forms = [affine(i) for i in load.indices]
        known = [f for f in forms if f is not None]
        if len(known) == len(forms) and self._inside(known, source.value.shape):
            err = None if source.err is None else self._view(source.err, known)
            return Bounded(self._view(source.value, known), err)
        if len(known) == len(forms) and _separable(known):
            err = None if source.err is None else self._take(source.err, known)
            return Bounded(self._take(source.value, known), err)
        where = [self.eval(i) for i in load.indices]
        index = tuple(np.clip(x.value, 0, extent - 1) for x, extent in zip(where, source.value.shape, strict=True))
        value, err = source.value[index], None if source.err is None else source.err[index]
        unsure = rules.errors(*(x.err for x in where))  # an index from inexact numbers may be any
        return Bounded(
            value, err if unsure is None else np.where(unsure > 0, np.inf, rules.error_of(Bounded(value, err)))
        )

    def _inside(self, forms: Sequence[AffineIndex], shape: Sequence[int]) -> bool:
        ends = [form.range(self.ranges) for form in forms]
        return all(low >= 0 and high < extent for (low, high), extent in zip(ends, shape, strict=True))

    def _view(self, array: Array, forms: Sequence[AffineIndex]) -> Array:
        """The elements at affine indices, which are known to be inside of the contiguous `array`."""
        steps = element_strides(array.shape)
        start = sum(form.constant * step for form, step in zip(forms, steps, strict=True))
        shape, strides = [], []
        for name, (lo, hi) in self.ranges.items():
            stride = sum(form.coefficients.get(name, 0) * step for form, step in zip(forms, steps, strict=True))
            start += stride * lo
            used = any(name in form.coefficients for form in forms)
            shape.append(hi - lo if used else 1)
            strides.append(stride * array.itemsize)
        return as_strided(array.reshape(-1)[start:], tuple(shape), tuple(strides), writeable=False)

    def _take(self, array: Array, forms: Sequence[AffineIndex]) -> Array:
        """Clipped elements where every index depends on at most one axis of its own: one `take` per dimension."""
        names = []
        for dim, form in enumerate(forms):
            ((name, c),) = form.coefficients.items() if form.coefficients else (("", 0),)
            names.append(name)
            points = np.arange(*self.ranges[name]) * c + form.constant if name else np.array([form.constant])
            points = np.clip(points, 0, array.shape[dim] - 1)
            if len(points) != array.shape[dim] or points[0] != 0 or np.any(np.diff(points) != 1):
                array = np.take(array, points, axis=dim)
        constant = tuple(d for d, name in enumerate(names) if not name)
        array = np.squeeze(array, axis=constant)
        present = [name for name in names if name]
        wanted = [name for name in self.ranges if name in present]
        array = array.transpose([present.index(name) for name in wanted])
        shape = [hi - lo if name in present else 1 for name, (lo, hi) in self.ranges.items()]
        return array.reshape(shape)


def _separable(forms: Sequence[AffineIndex]) -> bool:
    names = [name for form in forms for name in form.coefficients]
    return all(len(form.coefficients) <= 1 for form in forms) and len(set(names)) == len(names)
