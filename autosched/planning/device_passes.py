"""Passes over the graph of a network for the device that it is compiled for, after those for any device."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from autosched.graph.fusion.cost import rates_of
from autosched.graph.fusion.node_properties import NodeKind, properties_of
from autosched.graph.graph import Array, Graph, Node, Value, fresh_name
from autosched.graph.index_checks import required_checks, with_check_nodes
from autosched.graph.loops import FEW_ITERATIONS, loop_of
from autosched.graph.passes import run_passes
from autosched.graph.passes.layout.view_heads import view_heads
from autosched.graph.passes.layout.weight_layout import transform_weight_layouts
from autosched.graph.passes.split_batches import split_batches
from autosched.graph.passes.unroll_loops import unroll_loops
from autosched.graph.verify import verify
from autosched.ir.dtype import DTYPES
from autosched.kernel.device import Device
from autosched.passes import Pass, PassPipeline, Watch


def with_own_outputs(graph: Graph) -> Graph:
    """Copy each output that would share memory: an input, a constant, a view of another output, a part of a value."""
    taken, arrays = {*graph.inputs, *graph.constants}, dict[str, Array]()
    nodes, outputs, values = list(graph.nodes), list[str](), list[Value]()
    for name in graph.outputs:
        if graph.values[name].is_empty:  # a constant of its own
            outputs.append(fresh_name({*graph.values, *arrays}, f"{name}.copy"))
            arrays[outputs[-1]] = np.empty(graph.values[name].shape, DTYPES[graph.values[name].dtype].numpy_dtype)
            continue
        base, maker = name, graph.producers.get(name)
        while maker is not None and properties_of(maker, graph).kind is NodeKind.VIEW:
            (base,) = maker.used
            maker = graph.producers.get(base)
        if base in taken or math.prod(graph.values[base].shape) > math.prod(graph.values[name].shape):
            names = {*graph.values, *arrays, *(copy.name for copy in values)}
            value = replace(graph.values[name], name=fresh_name(names, f"{name}.copy"))
            nodes.append(Node("identity", (name,), (value.name,)))
            values.append(value)
            base = name = value.name
        taken.add(base)
        outputs.append(name)
    return graph.with_nodes(nodes, values, arrays, outputs) if values or arrays else graph


def _split_for_caches(graph: Graph, device: Device) -> Graph:
    """Split the batch so that each core has a share of the images of each part."""
    return split_batches(graph, rates_of(device.target, device.threads), device.threads * device.target.l2_bytes)


def _is_gpu(device: Device) -> bool:
    return device.target.backend.is_gpu


def _is_processor(device: Device) -> bool:
    return not _is_gpu(device)


DevicePass = Pass[Graph, Device]
PASSES: tuple[DevicePass, ...] = (
    DevicePass(
        "view_heads", lambda graph, _: view_heads(graph),
        "GPU products read whole heads of a view, not parts of a value.", _is_gpu,
    ),
    DevicePass(
        "turn_weights", lambda graph, _: transform_weight_layouts(graph),
        "Products of a GPU read weights of convolutions with the channels last.", _is_gpu,
    ),
    DevicePass(
        "with_own_outputs", lambda graph, _: with_own_outputs(graph), "Each output has memory that is the caller's.",
    ),
    DevicePass(
        "split_batches", _split_for_caches,
        "The values between two layers stay in the caches if few images are computed at a time.", _is_processor,
    ),
    DevicePass(
        "with_check_nodes", lambda graph, _: with_check_nodes(graph),
        "On a GPU the bounds check of indices is a kernel.", _is_gpu,
    ),
)  # fmt: skip
PIPELINE = PassPipeline("device", PASSES, lambda graph: str(graph.name), str, verify)


def prepare_graph(graph: Graph, device: Device, watch: Watch | None = None) -> Graph:
    """Run all passes on an imported graph, those of the device last, as `build_program` needs. The passes see no loops
    that are unrolled."""
    unrolled = unroll_loops(graph, partial(_should_unroll, device))
    return PIPELINE.run(run_passes(unrolled, watch)[0], device, watch)


def _should_unroll(device: Device, graph: Graph, node: Node) -> bool:
    """Whether a loop has few iterations, or cannot run as one: on a GPU, with values without elements, with checks of
    indices."""
    body, is_few = loop_of(node).body, loop_of(node).steps <= FEW_ITERATIONS
    values = (*body.values.values(), *(graph.values[name] for name in (*node.used, *node.outputs)))
    return is_few or _is_gpu(device) or _has_checks(body) or any(v.is_empty for v in values)


def _has_checks(body: Graph) -> bool:
    """Whether the nodes of a body, or of loops within it, check indices."""
    return any(
        required_checks(node, body.values) or (node.body is not None and _has_checks(node.body)) for node in body.nodes
    )
