"""Blocks that share tiles: CUDA C of their kernels, executed."""

from __future__ import annotations

import pytest

from autosched.codegen.c.kernel import emit
from autosched.codegen.c.source import GpuSource
from autosched.errors import ScheduleError
from autosched.ir.stmt import Func
from autosched.lower import concretise, lower
from autosched.runtime.gpu.compile import NvccCompiler, NvrtcCompiler, find_nvcc, nvrtc_version
from autosched.schedule import ShareTiles
from autosched.te import ComputeDAG
from autosched.te.reference.evaluate import evaluate, within
from autosched.te.reference.inputs import make_inputs
from tests.codegen import cuda
from tests.matrix_products import ORDERS, group_state, product


def shared(dag: ComputeDAG, sharing: tuple[int, ...], columns: int = 8, **how: int) -> tuple[Func, GpuSource]:
    """The nest and text of a product whose blocks share tiles; `how`: see `group_state`."""
    state = group_state(dag, columns=columns, **{"steps": 4, "multiprocessors": 5, **how})  # type: ignore[arg-type]
    func, simplify = concretise(lower(state.apply(ShareTiles("C", *sharing))), {})
    return func, emit(func, simplify, "cuda")


def check(dag: ComputeDAG, func: Func, source: GpuSource) -> None:
    inputs = make_inputs(dag, 0, "normal")
    outputs = cuda.run(source, func, inputs)
    for tensor, reference in zip(dag.outputs, evaluate(dag, inputs), strict=True):
        assert within(reference, outputs[tensor.name].reshape(tensor.public_shape)).all(), source.text


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sharing", [(2, 1), (1, 2)])
def test_clusters_in_every_order_of_operands(order: str, sharing: tuple[int, int]) -> None:
    """B is loaded by halves where blocks lie along the rows, A where they lie along the columns."""
    dag = product(128, 128, 72, order)
    func, source = shared(dag, sharing)
    assert "__cluster_dims__(2, 1, 1) __launch_bounds__" in source.text
    assert source.text.count(".multicast::cluster") == 1
    check(dag, func, source)


@pytest.mark.parametrize(
    ("m", "n", "k", "columns", "staged", "stages"),
    [(241, 120, 8, 4, 1, 2), (67, 256, 136, 32, 0, 3), (127, 72, 24, 2, 1, 2)],
)
def test_ragged_clusters(m: int, n: int, k: int, columns: int, staged: int, stages: int) -> None:
    dag = product(m, n, k)
    func, source = shared(dag, (2, 1), columns, staged=staged, stages=stages)
    assert source.launches[0].grid[0] % 2 == 0
    check(dag, func, source)


def test_panels_are_shared_where_there_is_an_even_number() -> None:
    """Of 128 columns that lie across k each block loads 64; of 64 it loads them for half of k."""
    wide, narrow = (shared(product(128, 256, 128), (2, 1), columns)[1].text for columns in (16, 8))
    assert "load_tile_2_for_all(&B_tile[place][rank * 4096], &B_map, rank * 64 + C_j_0 * 128, " in wide
    assert "load_tile_2_for_all(&B_tile[place][rank * 2048], &B_map, C_j_0 * 64, C_acc_k_0 * 64 + rank * 32, " in narrow
    assert [text.count("box (64, 32)") for text in (wide, narrow)] == [0, 1]


def test_a_tile_that_has_no_halves_is_loaded_by_each() -> None:
    """A warpgroup has 8 columns, k is not across them: 8 rows of a panel are the least."""
    dag = product(128, 8, 72, "nt")
    func, source = shared(dag, (2, 1), columns=1)
    assert ".multicast" not in source.text
    check(dag, func, source)


@pytest.mark.parametrize("sharing", [(1, 1, 2), (2, 1, 2), (1, 2, 2)])
@pytest.mark.parametrize(
    ("m", "n", "k", "columns", "staged", "stages", "multiprocessors"),
    [(241, 256, 40, 8, 1, 2, 4), (256, 128, 136, 8, 0, 3, 2), (128, 72, 72, 2, 1, 2, 64), (449, 256, 24, 16, 1, 5, 3)],
)
def test_warpgroups_take_turns(
    sharing: tuple[int, ...], m: int, n: int, k: int, columns: int, staged: int, stages: int, multiprocessors: int
) -> None:
    """Of an even and an odd number of tiles, of one for each block, with rings that a tile goes around and not."""
    dag = product(m, n, k)
    how = {"staged": staged, "stages": stages, "multiprocessors": multiprocessors}
    if sharing[1] > 1 and -(-n // (8 * columns)) % 2:
        pytest.skip("there are no clusters of them")
    func, source = shared(dag, sharing, columns, **how)
    assert source.launches[0].block == (4, 8, 12)
    check(dag, func, source)


def test_one_warpgroup_has_a_turn() -> None:
    state = group_state(product(256, 64, 64), (2, 1), 8, 4, 2, 4).apply(ShareTiles("C", 1, 1, 2))
    with pytest.raises(ScheduleError, match="2 warpgroups cannot take turns: turns need persistent blocks"):
        emit(*concretise(lower(state), {}), "cuda")


def test_clusters_divide_the_grid() -> None:
    with pytest.raises(ScheduleError, match=r"clusters of 2 by 1 blocks do not divide the 3 along blockIdx.y"):
        shared(product(130, 128, 64), (2, 1))
    with pytest.raises(ScheduleError, match="clusters need persistent blocks, as many resident"):
        shared(product(128, 128, 64), (2, 1), multiprocessors=1)


@pytest.mark.parametrize("sharing", [(2, 1), (1, 2), (1, 1, 2), (2, 1, 2)])
def test_kernels_that_share_tiles_are_compiled_without_spills(sharing: tuple[int, ...]) -> None:
    version, nvcc = nvrtc_version(), find_nvcc()
    source = shared(product(1024, 1024, 512), sharing, 16, staged=1, stages=4, multiprocessors=132)[1]
    compilers = [NvrtcCompiler("sm_90", version)] if version is not None else []
    for compiler in (*compilers, *([NvccCompiler("sm_90", nvcc, "")] if nvcc is not None else [])):
        made = compiler.compile(source)
        assert (made.spills, made.warnings) == (None, ())
