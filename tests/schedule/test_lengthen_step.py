"""The step Lengthen: sums of products that go on over zeros."""

from __future__ import annotations

import pytest

from autosched import te
from autosched.errors import ScheduleError
from autosched.schedule import ComputeInline, Lengthen, Matricize, Split, initial_state
from autosched.te import ComputeDAG
from tests.helpers import exact


def windows(dtype: str = "float16", channels: int = 3) -> ComputeDAG:
    """C[i, j] = sum over r, c of A[i + r, c] * B[r, c, j]."""
    A, B = te.placeholder((9, channels), dtype, "A"), te.placeholder((2, channels, 5), dtype, "B")
    r, c = te.reduce_axis(2, "r"), te.reduce_axis(channels, "c")
    wide = "int32" if dtype == "int8" else "float32"

    def at(i: te.Expr, j: te.Expr) -> te.Expr:
        return te.sum(te.cast(A[i + r, c], wide) * te.cast(B[r, c, j], wide), axis=[r, c])

    return ComputeDAG(te.compute((8, 5), at, "C"))


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize(("channels", "extent"), [(3, 4), (5, 16), (2, 3)])
def test_values_stay(dtype: str, channels: int, extent: int) -> None:
    dag = windows(dtype, channels)
    state = initial_state(dag).apply(Lengthen("C", "c", extent))
    assert [str(a.extent) for a in state.stage("B.long").op.axes] == ["2", str(extent), "5"]
    exact(dag, state)
    exact(dag, state.apply(ComputeInline("A.long"), ComputeInline("B.long")))
    exact(dag, state.apply(Matricize("C")))


def test_refusals() -> None:
    state = initial_state(windows())
    with pytest.raises(ScheduleError, match=r"the extent must be above 3, at most \d+; got 3"):
        state.apply(Lengthen("C", "c", 3))
    with pytest.raises(ScheduleError, match="the axis is not alone in a dimension of A"):
        state.apply(Lengthen("C", "r", 4))
    with pytest.raises(ScheduleError, match="no sum of products over that axis"):
        state.apply(Lengthen("C", "i", 16))
    with pytest.raises(ScheduleError, match="before any other change of its loops"):
        state.apply(Split("C", "j", (2,)), Lengthen("C", "c", 4))
