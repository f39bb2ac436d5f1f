"""What kernels must read and write at least."""

from __future__ import annotations

import math

import pytest

from autosched import te
from autosched.graph.fusion.partition import dag_of, partition
from autosched.graph.graph import Graph
from autosched.graph.steps import Group
from autosched.kernel.roofline import compulsory_bytes
from autosched.te import ComputeDAG
from autosched.te.operators.blocks import BLOCK_FORMATS, product_of_blocks
from tests.graph.networks import Builder, perceptron


def convolution(kernel: int, stride: int, size: int) -> Graph:
    b = Builder(x=(1, 3, size, size))
    weights = b.constant(5, 3, kernel, kernel)
    return b.graph(b.add("conv", "x", weights, None, strides=(stride,) * 2, pads=((0, 0),) * 2, dilations=(1, 1)))


def bytes_of(graph: Graph) -> int:
    (group,) = (step for step in partition(graph) if isinstance(step, Group))
    return compulsory_bytes(dag_of(graph, group))


@pytest.mark.parametrize(
    ("kernel", "stride", "size", "read"),
    [(1, 1, 7, 3 * 49), (1, 2, 7, 3 * 16), (3, 1, 8, 3 * 64), (3, 5, 16, 3 * 81), (1, 3, 1, 3)],
)
def test_of_an_image_what_lies_under_a_strided_window(kernel: int, stride: int, size: int, read: int) -> None:
    made = 5 * ((size - kernel) // stride + 1) ** 2
    assert bytes_of(convolution(kernel, stride, size)) == 4 * (read + 15 * kernel**2 + made)


def test_of_a_table_the_rows_that_are_looked_up() -> None:
    table, rows = te.placeholder((100, 8), "float32", "T"), te.placeholder((3,), "int32", "I")
    dag = ComputeDAG([te.compute((3, 8), lambda i, j: table[rows[i], j])])
    assert compulsory_bytes(dag) == 4 * (24 + 3 + 24)


@pytest.mark.parametrize(
    ("taps", "step", "read"),
    [((0,), 3, 8), ((0, 1), 3, 16), ((0, 1, 2), 1, 10), ((2, 0), 2, 16), ((0, 1, 2, 3), 2, 18)],
)
def test_places_at_constant_distances_count_each_unless_they_overlap(taps, step, read) -> None:
    line = te.placeholder((24,), "float32", "L")
    dag = ComputeDAG(
        [te.compute((8,), lambda i: sum((line[i * step + tap] for tap in taps[1:]), line[i * step + taps[0]]))]
    )
    assert compulsory_bytes(dag) == 4 * (read + 8)


def test_of_blocks_most_bytes_are_read() -> None:
    for name, block in BLOCK_FORMATS.items():
        x, w = (
            te.placeholder((1, 1024), "float32", "X"),
            te.placeholder((64, 1024 // block.elements * block.nbytes), "uint8", "W"),
        )
        made = product_of_blocks(x, w, block)
        whole = 4 * (1024 + 64) + math.prod(w.shape)
        assert 0.6 * whole < compulsory_bytes(ComputeDAG([made])) <= whole, name


def test_what_is_read_often_counts_once() -> None:
    square = te.placeholder((6, 6), "float32", "S")
    assert compulsory_bytes(ComputeDAG([te.compute((6,), lambda i: square[i, i] + square[0, i])])) == 4 * (6 + 6)
    assert bytes_of(perceptron((3, 17))) == 4 * (2 * 3 + 17 * 3 + 17 + 2 * 17)
