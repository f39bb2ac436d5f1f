"""Loader of networks with dynamic shapes: ONNX files and torch modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from autosched.errors import RefusedNodes, UsageError
from autosched.executor.compile_graph import compile_for_sizes, compile_network
from autosched.executor.compile_options import BACKGROUND, NOW, CompileKeywords, CompileOptions
from autosched.executor.dynamic_model import ANY_SIZE, Dimension, VaryingModel
from autosched.executor.model import Model
from autosched.graph.file_formats import ARCHIVE
from autosched.graph.graph import Graph
from autosched.graph.traces import symbolic_sizes
from autosched.ir.size import Guards
from autosched.kernel.device import find_device
from autosched.kernel.transfer import NearestSchedules
from autosched.keywords import spelled_out
from autosched.planning.extract_tasks import Choices
from autosched.runtime.spec import ArraySpec

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from autosched.executor.sized_network import SizedNetwork


@dataclass(frozen=True)
class DynamicNetwork:
    """A network before its sizes are chosen. `inputs`: with -1 for sizes that vary. `axes`: the dynamic dimensions by
    name, each with the first input that has it and the axis there. `make_graph` returns the graph for their sizes,
    which may be symbols."""

    inputs: tuple[ArraySpec, ...]
    axes: Mapping[str, tuple[str, int]]
    make_graph: Callable[[Mapping[str, int]], Graph]


@spelled_out(CompileOptions)
def load_dynamic(
    model: str | Path | object,
    example_inputs: Sequence[object] | None = None,
    *,
    sizes: Mapping[str, int | Sequence[int]] | None = None,
    limits: Mapping[str, range] | None = None,
    inputs: Mapping[str, npt.ArrayLike] | None = None,
    options: CompileOptions | None = None,
    **keywords: Unpack[CompileKeywords],
) -> VaryingModel:
    """Load a network with dynamic shapes.

    Dynamic are the symbolic dimensions of an ONNX file, of which `autosched.load` returns the same where they have no
    size, or all dimensions of a torch module's inputs, named like x[0].

    Args:
        model: an ONNX file or a torch module. `example_inputs`: tensors with which the module is exported.
        sizes: a size fixes a symbolic dimension of an ONNX file, {"batch": 1}; a list of sizes has the programs for
            them compiled at once, {"batch": (1, 4, 16)}.
        limits: allowed sizes by dimension, {"batch": range(1, 65)}.
        inputs, options, keywords: as in `autosched.load`; `inputs` for ONNX files only.

    Returns a `VaryingModel`, a function of arrays of any sizes. The network is compiled once for all sizes, at its
    first call, and again for sizes that what was decided does not hold for, as 1. With specialise="background" sizes
    that are called often get a program of their own if it is faster; with "now" and with Winograd each
    choice of sizes has one. Raises UsageError for a network without dynamic dimensions, GraphError for an unsupported
    one.
    """
    chosen, sizes = replace(options or CompileOptions(), **keywords), sizes or {}
    fixed = {name: size for name, size in sizes.items() if isinstance(size, int)}
    precompiled = {name: size for name, size in sizes.items() if not isinstance(size, int)}
    if inputs and not isinstance(model, (str, Path)):
        raise UsageError("inputs are fixed of an ONNX file; a torch module has them as constants of its own")
    if isinstance(model, (str, Path)):
        network = _from_file(model, fixed, inputs or {})
    else:
        network = _from_module(model, example_inputs)
    if not network.axes:
        raise UsageError(f"{model} has no symbolic dimension whose size could vary")
    if unknown := [name for name in limits or {} if name not in network.axes]:
        raise UsageError(f"the network does not vary in {unknown[0]}, but in {', '.join(network.axes)}")
    varying = _varying(network, chosen, limits or {})
    varying.prepare(precompiled)
    return varying


def _varying(network: DynamicNetwork, options: CompileOptions, limits: Mapping[str, range]) -> VaryingModel:
    """Return a network as a function of arrays of the sizes of `limits`, by default of any."""
    names = [spec.name for spec in network.inputs]
    dimensions = tuple(
        Dimension(name, names.index(x), axis, limits.get(name, ANY_SIZE)) for name, (x, axis) in network.axes.items()
    )

    lock = Lock()

    def make_graph(sizes: Mapping[str, int]) -> Graph:
        with lock:  # importers are not for several threads, and a background job may need a graph too
            return network.make_graph(sizes)

    def compile_for(sizes: Mapping[str, int], nearest: NearestSchedules) -> Model:
        try:
            graph = replace(make_graph(sizes), winograd=options.winograd)
        except RefusedNodes as error:
            from autosched.executor.partitioned_model import compile_parts

            return compile_parts(error, options)
        return compile_network(graph, options, Choices(nearest=nearest))

    def compile_traced(sizes: Mapping[str, int]) -> SizedNetwork:
        guards, ranges = Guards(), {dimension.name: dimension.sizes for dimension in dimensions}
        return compile_for_sizes(guards, lambda: make_graph(symbolic_sizes(guards, sizes, ranges)), options)

    device = find_device(options.target, options.threads, runs=not options.simulate)
    has_trace = options.specialise != NOW and not options.winograd
    improves = options.specialise == BACKGROUND and not options.simulate  # which tells no times
    return VaryingModel(
        network.inputs, device, dimensions, compile_for, compile_traced if has_trace else None, improves
    )


def _from_file(path: str | Path, fixed: Mapping[str, int], inputs: Mapping[str, npt.ArrayLike]) -> DynamicNetwork:
    from autosched.graph.onnx import read_onnx

    if Path(path).suffix.lower() == ARCHIVE:
        raise UsageError(f"the sizes of a saved network are fixed: {path} cannot vary, the ONNX file that it was can")
    file = read_onnx(path, inputs)
    axes, described = file.symbolic_dimensions(fixed), file.described_inputs()
    specs = list[ArraySpec]()
    for name in file.inputs():
        dtype, shape = described[name]
        specs.append(ArraySpec(name, tuple(fixed.get(n, -1) if isinstance(n, str) else n for n in shape), dtype))
    return DynamicNetwork(tuple(specs), axes, lambda dynamic: file.graph({**fixed, **dynamic}))


def _from_module(module: Any, example_inputs: Sequence[Any] | None) -> DynamicNetwork:
    if isinstance(module, Graph) or example_inputs is None or not hasattr(module, "forward"):
        raise UsageError(
            "sizes vary of ONNX files and of torch modules with example_inputs, those of a Graph are fixed"
        )
    from autosched.graph.torch.load import AnyShapes

    loaded = AnyShapes(module, example_inputs)
    graph = loaded.graph([tuple(x.shape) for x in example_inputs])
    inputs = tuple(ArraySpec(x, (-1,) * len(graph.values[x].shape), graph.values[x].dtype) for x in graph.inputs)
    ranks = {spec.name: len(spec.shape) for spec in inputs}

    def make_graph(dynamic: Mapping[str, int]) -> Graph:
        shapes = [tuple(dynamic[f"{x}[{n}]"] for n in range(rank)) for x, rank in ranks.items()]
        graph: Graph = loaded.graph(shapes)
        return graph

    axes = {f"{x}[{n}]": (x, n) for x, rank in ranks.items() for n in range(rank)}
    return DynamicNetwork(inputs, axes, make_graph)
