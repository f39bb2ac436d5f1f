"""Regions: the part of an axis that a stage computes at its place; a domain has one for each axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from autosched.ir.expr import Expr, Var, binary, imax, imin
from autosched.ir.linear import ONE, ZERO, Interval
from autosched.ir.size import is_sized
from autosched.ir.stmt import ForKind
from autosched.ir.visit import free_vars
from autosched.schedule.stage import Loop, Stage


@dataclass(frozen=True)
class SlidingRows:
    """The rows of a stage along a loop: those that an iteration computes, where they are within the axis, as a linear
    form of the loop's variable; how many are kept; how many iterations run before the first of the loop."""

    new: Interval
    kept: Expr
    ahead: Expr


@dataclass(frozen=True)
class Digit:
    """One loop `var` of a reader of strided points along an axis, with its stride in the axis and in the buffer."""

    var: Var
    bound: Expr
    stride: Expr
    local_stride: Expr


@dataclass(frozen=True)
class Region:
    """The values lo .. lo + limit - 1 along one axis; `extent` is the closed-form upper bound of `limit`.

    Readers access nothing from `end` on, for any `lo`. Loops go through them from the last to the first `backwards`.
    `sliding`: they are the new values of an iteration, and the last ones of earlier iterations are kept. `unclipped`:
    what they are where no part of it is outside of the axis. In blocks of threads, readers access points outside where
    they compute beyond their own axes, if it `is_cut`.
    """

    lo: Expr
    extent: Expr
    limit: Expr
    end: Expr
    digits: tuple[Digit, ...] = ()
    backwards: bool = False
    sliding: SlidingRows | None = None
    is_cut: bool = False
    unclipped: Interval | None = None

    @property
    def kept(self) -> Expr:
        """Values that the buffer has room for."""
        return self.extent if self.sliding is None else self.sliding.kept

    def stored(self, local: Expr) -> Expr:
        """Return the place in the buffer of the value at a local position."""
        return local if self.sliding is None else (self.lo + local) % self.sliding.kept

    @property
    def whole(self) -> tuple[Expr, Region] | None:
        """The region where it is not clipped, and the condition that it is not; None if it never is, or where sizes
        would decide: code for one of them would not be that of others."""
        part = self.unclipped
        is_point = part is not None and part.extent is ONE and self.sliding is None
        if part is None or is_point or any(map(is_sized, (part.extent, self.extent, self.end))):
            return None
        is_inside = binary("and", binary("ge", part.lo, ZERO), binary("le", part.lo + part.extent, self.end))
        is_whole = binary("and", binary("le", part.extent, self.extent), is_inside)  # the axis may be shorter
        return is_whole, replace(self, lo=part.lo, limit=part.extent)

    def visited(self, number: Expr) -> Expr:
        """Return the local position that loops visit as this number."""
        return self.limit - 1 - number if self.backwards else number

    def value(self, local: Expr) -> Expr:
        """Return the axis value at a local position."""
        if not self.digits:
            return self.lo + local
        value = self.lo
        for n, digit in enumerate(self.digits):
            number = local // digit.local_stride
            value = value + (number if n == 0 else number % digit.bound) * digit.stride
        return value

    def local(self, value: Expr) -> Expr:
        """Return the place in the buffer of an axis value, as the loop variables of the reader that the digits name."""
        if self.sliding is not None:
            return value % self.sliding.kept
        if not self.digits and not free_vars(value) and free_vars(self.lo):
            # a border of the axis, which is read only where the region has it
            return imin(imax(value - self.lo, ZERO), self.extent - ONE)
        if not self.digits:
            return value - self.lo
        position: Expr = ZERO
        for digit in self.digits:
            position = position + digit.var * digit.local_stride
        return position


@dataclass(frozen=True)
class BufferVersion:
    """A dimension of a buffer that is no axis of its stage: the `index` among `count` copies of the region."""

    index: Expr
    count: Expr


Threads = Mapping[ForKind, tuple[Var, Expr]]  # their loops' variables and bounds


@dataclass(frozen=True)
class Domain:
    """The iteration domain of a stage: a region and a value for each axis, a variable and a bound for each loop."""

    stage: Stage
    regions: Mapping[str, Region]
    bounds: Mapping[str, Expr]  # loop name -> closed form
    values: Mapping[Expr, Expr]  # axis variable -> its value over the loop variables
    places: tuple[BufferVersion, ...] = ()  # leading dimensions of the buffer, beyond the axes
    threads: Threads = field(default_factory=dict)  # of the kernel around it, where its loops are spread over them
    ahead: Expr = ZERO  # iterations of the loop around it that it runs before the first one, for stages that slide

    def loop_var(self, loop: Loop) -> Var:
        return self.threads[loop.kind][0] if loop.kind in self.threads else Var(f"{self.stage.name}.{loop.name}")
