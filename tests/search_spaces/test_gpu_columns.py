"""Reductions of columns, which no thread finds in one piece: several threads share a point where points are few."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autosched import te
from autosched.te import Tensor
from autosched.te.rewrites.collapse import collapse
from search_spaces.gpu import sketches
from tests.codegen.gpu import TARGETS
from tests.search_spaces.gpu_candidates import draw
from tests.search_spaces.one_launch import check_one_launch

MARK = ":team"


def columns(
    shape: tuple[int, ...], dtype: str = "float32", reduce: Callable[..., Tensor] = te.sum, keep: bool = True
) -> te.ComputeDAG:
    """Of images [.., C] what each channel comes to, with something after it where `keep`."""
    x = te.placeholder(shape, dtype, name="X")
    axes = tuple(te.reduce_axis(n, name=f"r{d}") for d, n in enumerate(shape[:-1]))
    wide = "float32" if dtype == "float16" else dtype
    made = te.compute(shape[-1:], lambda c: reduce(te.cast(x[(*axes, c)], wide), axis=axes), name="Y")
    return te.ComputeDAG(te.compute(shape[-1:], lambda c: te.cast(made[c] * 2, dtype), name="Z") if keep else made)


CASES = [
    columns((7, 7, 37), "float16"),
    columns((53, 13)),
    columns((131, 16), reduce=te.max, keep=False),
    columns((67, 5), "int32"),
]


@pytest.mark.parametrize("kind", ["cuda", "opencl"])
@pytest.mark.parametrize("dag", CASES, ids=["image", "sums", "maxima", "integers"])
def test_threads_of_a_block_share_a_column(dag: te.ComputeDAG, kind: str) -> None:
    (one,) = draw(collapse(dag), TARGETS[kind], 200, mark=MARK)
    check_one_launch(dag, [one], 2, kind)


def test_where_it_is_offered() -> None:
    def offered(*shape: int) -> bool:
        return any(MARK in s.name for s in sketches(collapse(columns(shape)), TARGETS["cuda"]))

    assert offered(49, 2048)
    assert not offered(9, 2048)  # short
    assert not offered(49, 1 << 17)  # a thread for each keeps a device busy
