"""What the copy engine can gather: pixels of images, boxes of tensors, and what is neither."""

from __future__ import annotations

import pytest

from autosched.ir.expr import INDEX, Const, Expr, Load, Var, select
from autosched.ir.instructions.tiles import as_loops
from autosched.ir.simplify import Simplifier
from autosched.ir.stmt import Buffer, Pixels, Scope, Store, TileCopy, walk
from autosched.ir.visit import loads, substitute
from autosched.schedule import ComputeInline, Matricize, initial_state
from autosched.schedule.gathers import Gather, gather_of
from autosched.schedule.stage import StageAxis, StageOp
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse

M, K = Var("m", INDEX), Var("k", INDEX)


def gathered(name: str, shape: tuple[int, ...], side: str, inline: str = "") -> Gather | None:
    """Of an operand of a convolution; `inline`: the stage of its border."""
    dag = collapse(build(name, shape, dtype="bfloat16")[0])
    state = initial_state(dag)
    (conv,) = [s.name for s in state.stages if s.op.reducer is not None]
    state = state.apply(Matricize(conv), *([ComputeInline(inline)] if inline else []))
    op = state.stage(f"{conv}.{side}").op
    source = op.loads[0].buffer
    extents = [a.extent for a in state.stage(source).op.axes] if source == "pad" else None
    sizes = [int(e.value) for e in extents if isinstance(e, Const)] if extents else list(dag.tensors[source].shape)
    return gather_of(op, sizes)


def copy(index: tuple[Expr, ...], m: int, k: int, value: Expr | None = None) -> StageOp:
    axes = (StageAxis(M, Const(m, INDEX)), StageAxis(K, Const(k, INDEX)))
    load: Load = Load("X", index, "float16")
    return StageOp("T", axes, (), (load if value is None else value,), None, ("T",), ("float16",))


@pytest.mark.parametrize(
    ("name", "shape", "pixels"),
    [
        ("c2d", (2, 7, 9, 32, 16, 3, 1, 1), Pixels((7, 9), (1, 1), (-1, -1))),
        ("c2d", (1, 11, 9, 32, 16, 3, 2, 1), Pixels((6, 5), (2, 2), (-1, -1))),
        ("c1d", (2, 37, 64, 16, 3, 2, 1), Pixels((19,), (2,), (-1,))),
        ("c3d", (2, 4, 5, 6, 32, 16, 3, 1, 1), Pixels((4, 5, 6), (1, 1, 1), (-1, -1, -1))),
        ("dil", (1, 9, 10, 32, 16, 3, 1, 2, 2), Pixels((9, 10), (1, 1), (-2, -2))),
    ],
)
def test_pixels(name: str, shape: tuple[int, ...], pixels: Pixels) -> None:
    found = gathered(name, shape, "left", "pad")
    assert found is not None
    assert found.pixels == pixels
    assert found.grains[1] == (64 if name == "c1d" else 32)
    box = gathered(name, shape, "right")
    assert box is not None
    assert box.pixels is None
    assert box.dims == (len(box.origin) - 2, len(box.origin) - 1)


def test_groups_of_channels() -> None:
    """A batch whose tiles begin at other channels: what is beyond a group is the next one, not zero."""
    found = gathered("grp", (2, 7, 9, 64, 48, 1, 1, 0, 1, 2), "left")
    assert found is not None
    assert found.dims == (-1, 0, 1)
    assert not found.ends[-1]
    box = gathered("grp", (2, 7, 9, 64, 48, 3, 1, 1, 1, 2), "right")
    assert box is not None
    assert box.dims == (-1, 2, 3)
    assert box.grains == (2, 32, 24)
    pixels = gathered("grp", (2, 7, 9, 64, 48, 3, 1, 1, 1, 2), "left", "pad")
    assert pixels is not None
    assert pixels.pixels == Pixels((7, 9), (1, 1), (-1, -1))
    assert pixels.grains == (2, 2 * 7 * 9, 32)


def test_zeros_beyond_the_channels() -> None:
    """They are outside of the tensor, where the engine reads zeros as well; elsewhere they are not."""
    inside = select(K < 24, Load("X", (M, K), "float16"), Const(0.0, "float16"))
    assert gather_of(copy((M, K), 8, 32, inside), (8, 24)) is not None
    both = select(M < 8, inside, Const(0.0, "float16"))
    assert gather_of(copy((M, K), 9, 32, both), (8, 24)) is not None
    assert gather_of(copy((M, K), 8, 32, inside), (8, 32)) is None


def test_a_border_that_is_stored_is_no_border() -> None:
    found = gathered("c2d", (2, 7, 9, 32, 16, 3, 1, 1), "left")
    assert found is not None
    assert found.pixels == Pixels((7, 9), (1, 1), (0, 0))


def test_images_that_are_alone_and_rows_of_one_step() -> None:
    found = gathered("c1d", (1, 70, 32, 16, 3, 1, 1), "left", "pad")
    assert found is not None
    assert found.pixels == Pixels((70,), (1,), (-1,))


def test_pixels_element_by_element() -> None:
    """The p-th pixel from the fifth one, in an image of 4 by 3 pixels that begin a step before it."""
    pixels = Pixels((4, 3), (2, 1), (-1, 0))
    at = [Const(n, INDEX) for n in (0, 1, 1, 8, 2, 1)]  # image, row, column, channel, offsets: row 1, column 1
    sizes = (Const(9, INDEX), Const(16, INDEX))
    load = TileCopy("T", (), "X", tuple(at), sizes, "float16", pixels=pixels)
    source = Buffer("X", tuple(Const(n, INDEX) for n in (2, 8, 5, 32)), "float16", Scope.PARAM)
    nest = as_loops(load, source)
    (store,) = [s for s in walk(nest) if isinstance(s, Store)]
    (element,) = loads(store.values[0])
    p, c = store.indices
    simplify = Simplifier()
    for n in range(9):
        number = 1 * 3 + 1 + n
        seen = [simplify(substitute(i, {p: Const(n, INDEX), c: Const(3, INDEX)})) for i in element.indices]
        image, y, x = number // 12, number // 3 % 4 * 2 - 1 + 2, number % 3 + 1
        assert [int(e.value) for e in seen if isinstance(e, Const)] == [image, y, x, 11]


def test_what_is_no_gather() -> None:
    plain = copy((M // 5, M % 5, K), 20, 16)
    assert gather_of(plain, (4, 5, 16)) is not None
    turned = copy((M % 4, M // 4, K), 20, 16)
    found = gather_of(turned, (4, 5, 16))
    assert found is None or found.grain(turned, 1) is None, "four of its rows at a time"
    assert gather_of(copy((M // 5, M % 5 * 9, K), 20, 16), (4, 45, 16)) is None, "more than 8 elements apart"
    assert gather_of(copy((M // 5, M % 5 * 200, K), 20, 16), (4, 1000, 16)) is None
    assert gather_of(copy((M // 5, M % 5, K * 2), 20, 8), (4, 5, 16)) is None, "every second channel"
    zero: Expr = Const(0.0, "float16")
    load: Load = Load("X", (M // 5, M % 5 + K // 16 - 1, K % 16), "float16")
    inside, elsewhere = M % 5 + K // 16 >= 1, M % 5 + K // 16 >= 2
    assert gather_of(copy((), 20, 32, select(inside, load, zero)), (4, 5, 16)) is not None
    assert gather_of(copy((), 20, 32, select(elsewhere, load, zero)), (4, 5, 16)) is None, "zero inside as well"
    assert gather_of(copy((), 20, 32, select(inside, load, Const(1.0, "float16"))), (4, 5, 16)) is None
