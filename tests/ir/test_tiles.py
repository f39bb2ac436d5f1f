"""Tiles: how they lie in panels, and what a copy of one does."""

from __future__ import annotations

import itertools
import operator
from dataclasses import replace

import numpy as np
import pytest

from autosched.errors import ScheduleError
from autosched.ir.expr import INDEX, Binary, Const, Expr, Var
from autosched.ir.instructions.tiles import Panels, has_maps, place_in_panels, span_of
from autosched.ir.interpreter.interpret import interpret
from autosched.ir.printer import func_text
from autosched.ir.stmt import Allocate, Barrier, ForKind, Func, If, Scope, Seq, TileCopy
from autosched.ir.verify import IRError, verify
from tests.ir.nests import buffer, func, i, j, loop, num

A, C = buffer("A", (5, 6)), buffer("C", (5, 6))
t = Var("t", INDEX)
TILE = buffer("T", (4, 4), scope=Scope.SHARED)


def value_of(expr: Expr) -> int:
    match expr:
        case Const(value=value):
            return int(value)
        case Binary(op=op, a=a, b=b):
            functions = {"add": operator.add, "mul": operator.mul, "mod": operator.mod, "bitxor": operator.xor}
            return int({**functions, "floordiv": operator.floordiv}[op](value_of(a), value_of(b)))
    raise AssertionError(expr)


@pytest.mark.parametrize(
    ("shape", "itemsize"), [((16, 64), 2), ((8, 96), 2), ((2, 8, 16), 2), ((8, 64), 4), ((8, 32), 1)]
)
def test_parts_change_places_as_their_address_says(shape: tuple[int, ...], itemsize: int) -> None:
    """The engine's rule: bits 4 and on of the address, exclusive or with bits 7 and on."""
    panels, rows = Panels(shape, itemsize), int(np.prod(shape[:-1]))
    seen = set()
    for number, point in enumerate(itertools.product(*map(range, shape))):
        row, column = number // shape[-1], number % shape[-1]
        panel, inside = divmod(column * itemsize, panels.span)
        address = panel * rows * panels.span + row * panels.span + inside
        address ^= (address >> 7 & (panels.span // 16 - 1)) << 4
        place = value_of(place_in_panels(shape, itemsize, [num(n) for n in point]))
        assert place == address // itemsize
        seen.add(place)
    assert len(seen) == panels.count * panels.elements == np.prod(shape)


def test_what_the_engine_can_copy() -> None:
    assert (span_of(256), span_of(192), span_of(96), span_of(48)) == (128, 64, 32, None)
    assert has_maps((3, 8), 2)
    assert not has_maps((3, 7), 2)
    assert not has_maps((1, 1, 1, 1, 1, 8), 2)
    with pytest.raises(ScheduleError, match=r"a tile of \(8, 12\) elements of 4 bytes"):
        _ = Panels((8, 12), 4).span
    with pytest.raises(ScheduleError, match=r"more than 256 along a dimension"):
        _ = Panels((264, 64), 2).box


def there_and_back(**changes: object) -> Func:
    """C = A, by tiles of 4 x 4 that reach beyond both: the first of a block's threads loads one and writes it back."""
    tile = TileCopy("T", (), "A", (i * 4, j * 4), (num(4), num(4)), "float32")
    copies = [tile, replace(tile, outside="C", back=True)]
    body = Seq(tuple(s for copy in copies for s in (Barrier(), If(t < 1, replace(copy, **changes)))))
    nest = loop(t, 2, Allocate(TILE, body), kind=ForKind.THREAD_X)
    return func([A], [C], loop(i, 2, loop(j, 2, nest, kind=ForKind.BLOCK_X), kind=ForKind.BLOCK_Y))


def test_what_is_outside_is_zero_and_not_written() -> None:
    a = np.arange(30, dtype=np.float32).reshape(5, 6)
    made = there_and_back()
    verify(made, concrete=True)
    assert "store tile C[i*4, j*4] = T[0, 0]  # 4 x 4" in func_text(made)
    (found,) = interpret(made, {"A": a})
    assert (found == a).all()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"outside": "A"}, "the input A is stored to"),
        ({"buffer": "A"}, "the tile A is not in shared memory"),
        ({"outside": "T"}, "T, which a tile is a part of, is not in global memory"),
        ({"shape": (num(4),)}, "a tile of 1 dimensions begins at 2 indices"),
    ],
)
def test_what_the_verifier_says(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(IRError, match=reason):
        verify(there_and_back(**changes), concrete=True)
