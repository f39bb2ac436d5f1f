"""Random bottlenecks as programs for the fuzzer: all convolutions of one as one graph of stages."""

from __future__ import annotations

from autosched.graph.fusion.partition import dag_of
from autosched.graph.steps import Group
from autosched.te import ComputeDAG
from tests.graph.random_bottlenecks import random_bottleneck


def bottleneck_dag(seed: str) -> ComputeDAG:
    """The program of `seed`, always the same one; what a network has as constants are weights."""
    graph = random_bottleneck(seed)
    return dag_of(graph, Group(graph.nodes, (*graph.inputs, *graph.constants), graph.outputs))
