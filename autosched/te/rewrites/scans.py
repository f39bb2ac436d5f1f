"""Blocked prefix scans (`in_blocks`): about as many operations as elements.

    Y[i] = sum over k of (X[k] where k <= i, else 0)              with i = 256 h + 16 j + l, for n = 4096

    Y.s2[h, j] = sum over k < 16 of X[256 h + 16 j + k]              Y.s1[h] = sum over k < 16 of Y.s2[h, k]
    Y.w0[h] = sum over k < h of Y.s1[k]     Y.w1[h, j] = sum over k < j of Y.s2[h, k]
    Y.w2[h, j, l] = sum over k <= l of X[256 h + 16 j + k]             Y[i] = Y.w0[h] + Y.w1[h, j] + Y.w2[h, j, l]

Places are written in digits: what comes before a block in the block of blocks around it, for each level, and what comes
before an element in its block. All of these are sums of a few elements, whose conditions vectors know. Digits are
divisors of n where it has some of their size; otherwise elements are added to its end that leave every sum as it is.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod

from autosched.ir.expr import INDEX, Cast, Expr, Load, Var, binary, const, select
from autosched.ir.simplify import Simplifier
from autosched.ir.visit import substitute
from autosched.te.dag import ComputeDAG
from autosched.te.rewrites.prefix_scan import ScanPattern, combined, elements, find_prefix_scan
from autosched.te.tensor import Axis, ComputeOp, Tensor, fresh_name

VECTOR = 16  # elements of a block of neighbours, a vector or two that are added to themselves, shifted
EVEN = 8  # what numbers of elements are divided by if they can
BLOCK = 16  # elements of other blocks: rows, or blocks
LONGEST = 32  # elements for which a condition is enough


def in_blocks(dag: ComputeDAG) -> ComputeDAG:
    """The DAG with its running reductions in blocks; `dag` itself where there are none."""
    taken = dag.names

    def made(op: ComputeOp) -> tuple[Tensor, ...] | None:
        scan = find_prefix_scan(op)
        if scan is None or op.reduce_axes[scan.k].extent <= LONGEST or op.axes[scan.i].extent <= LONGEST:
            return None
        return (_Blocks(op, scan, taken).result(not dag.consumers(op.name)),)

    changed = dag.remade(made)
    return dag if changed is dag else in_blocks(changed)


def digits_of(n: int, contiguous: bool) -> tuple[int, ...]:
    """Numbers of blocks of each level, the outermost first, whose product is n or a little more."""
    digits = list[int]()
    while n > LONGEST:
        size = VECTOR if contiguous and not digits else BLOCK
        exact = [d for d in range(size // 2, 2 * size + 1) if n % d == 0]
        digits.insert(0, min(exact, key=lambda d: (d % EVEN > 0, abs(d - size))) if exact else size)
        n = -(-n // digits[0])
    return (n, *digits)


class _Blocks:
    """A stage that is a running reduction of one axis, over the digits of its place."""

    def __init__(self, op: ComputeOp, scan: ScanPattern, taken: set[str]) -> None:
        assert op.reducer is not None
        self.op, self.reducer, self.scan, self.taken = op, op.reducer, scan, taken
        self.k, self.i = op.reduce_axes[scan.k], op.axes[scan.i]
        contiguous = all(a.extent == 1 for a in op.axes[scan.i + 1 :])
        digits = digits_of(max(self.k.extent, self.i.extent), contiguous)
        names = {a.name for a in (*op.axes, *op.reduce_axes)}
        self.digits = [Axis(Var(fresh_name(f"{self.i.name}_{n}", names), INDEX), d) for n, d in enumerate(digits)]
        self.size, self.last = prod(digits), len(digits) - 1

    def result(self, alone: bool) -> Tensor:
        """What the stage gives; `alone`: it is an output that nobody reads."""
        parts, (term, blocks) = list[Tensor](), self._elements()
        for level in range(self.last, -1, -1):
            number = self.digits[level].var
            order = self.scan.op if level == self.last else "gt" if self.scan.backwards else "lt"
            element = self._in_block(term) if level == self.last else self._read(blocks[0], level + 1, self.k.var)
            before = select(binary(order, self.k.var, number), element, self.reducer.identity[0])
            parts.insert(0, self._reduced(f"w{level}", level + 1, level, before, blocks))
            if level:
                blocks = (self._reduced(f"s{level}", level, level, element, blocks),)
        whole = alone and self.size == self.i.extent
        name = self.op.name if whole else fresh_name(f"{self.op.name}.digits", self.taken)
        loads: list[Expr] = [self._read(t, n + 1, self.digits[n].var) for n, t in enumerate(parts)]
        body = combined(self.reducer, loads)
        (result,) = ComputeOp(name, self._axes(len(self.digits)), (), (body,), None, tuple(parts)).outputs
        return result.seen_as(self.op.shape) if whole else self._in_place(result)

    def _axes(self, count: int) -> tuple[Axis, ...]:
        """Those of a stage over the first `count` digits."""
        return tuple(x for a in self.op.axes for x in (self.digits[:count] if a is self.i else (a,)))

    def _reduced(self, name: str, count: int, level: int, body: Expr, inputs: tuple[Tensor, ...]) -> Tensor:
        """A stage over the first `count` digits that reduces one of the level's."""
        axes, k = self._axes(count), replace(self.k, extent=self.digits[level].extent)
        body = Simplifier({a.var: (0, a.extent - 1) for a in (*axes, k)})(body)
        name = fresh_name(f"{self.op.name}.{name}", self.taken)
        return ComputeOp(name, axes, (k,), (body,), self.reducer, inputs).outputs[0]

    def _elements(self) -> tuple[Expr, tuple[Tensor, ...]]:
        """What is reduced at place k, and what it reads. It is a stage where it takes arithmetic, or another reduction,
        and where there are places beyond the last element."""
        k, term = self.k, self.scan.term
        plain = isinstance(term.a if isinstance(term, Cast) else term, Load) and len(self.op.reduce_axes) == 1
        if plain and self.size == k.extent:
            return term, self.op.inputs
        stage = elements(self.op, self.scan, fresh_name(f"{self.op.name}.term", self.taken))
        if self.size > k.extent:
            axes = tuple(replace(a, extent=self.size) if a.var is k.var else a for a in stage.axes)
            stage = replace(stage, axes=axes, body=(select(k.var < k.extent, term, self.reducer.identity[0]),))
        load: Load = Load(stage.name, tuple(a.var for a in stage.axes), term.dtype)
        return load, stage.outputs

    def _in_block(self, term: Expr) -> Expr:
        """What is reduced at place k of a block of the innermost level."""
        place: Expr = const(0, INDEX)
        for digit, following in pairwise(self.digits):
            place = (place + digit.var) * following.extent
        return substitute(term, {self.k.var: place + self.k.var})

    def _read(self, tensor: Tensor, count: int, digit: Expr) -> Expr:
        """The element of a stage over `count` digits with this last one."""
        places = (*(a.var for a in self.digits[: count - 1]), digit)
        indices = tuple(x for a in self.op.axes for x in (places if a is self.i else (a.var,)))
        load: Load = Load(tensor.name, indices, tensor.dtype)
        return load

    def _in_place(self, result: Tensor) -> Tensor:
        """The digits' stage, read by each whole place."""
        digits, rest = list[Expr](), self.size
        for n, digit in enumerate(self.digits):
            rest //= digit.extent
            digits.append(self.i.var // rest % digit.extent if n else self.i.var // rest)
        load: Load = Load(
            result.name, tuple(x for a in self.op.axes for x in (digits if a is self.i else (a.var,))), result.dtype
        )
        return ComputeOp(self.op.name, self.op.axes, (), (load,), None, (result,)).outputs[0]
