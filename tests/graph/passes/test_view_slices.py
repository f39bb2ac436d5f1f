"""Parts of a value as operands of their own."""

from __future__ import annotations

from autosched.graph.fusion.partition import partition
from autosched.graph.passes.layout.view_slices import view_slices
from autosched.graph.steps import Group
from tests.graph.drafts import Draft, checked, operators_of


def test_parts_are_operands_of_their_own():
    d = Draft()
    x = d.input(17, 5)
    a, b, c = d.add_node("split", x, outputs=3, sizes=(1, 3, 1), axis=-1)
    after = checked(view_slices, d.graph(d.add(d.mul(b, a), c)))
    assert operators_of(after) == ["reshape", "slice"] * 3 + ["mul", "add"]
    (kernel,) = (step for step in partition(after) if isinstance(step, Group))
    assert len(kernel.inputs) == 3


def test_a_part_that_nobody_reads_goes():
    d = Draft()
    _, b = d.add_node("split", d.input(3, 5), outputs=2, sizes=(4, 1), axis=1)
    assert operators_of(checked(view_slices, d.graph(d.relu(b)))) == ["reshape", "slice", "relu"]


def test_slices_of_one_value_are_of_views():
    d = Draft()
    x = d.input(7)
    first, last = (d.slice(x, starts=(n,), stops=(n + 5,), axes=(0,)) for n in (0, 2))
    after = checked(view_slices, d.graph(d.sub(last, first)))
    assert sorted(operators_of(after)) == ["reshape", "reshape", "slice", "slice", "sub"]


def test_a_single_slice_stays():
    d = Draft()
    graph = d.graph(d.relu(d.slice(d.input(7), starts=(1,), stops=(4,), axes=(0,))))
    assert view_slices(graph) is graph
