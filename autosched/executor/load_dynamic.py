"""Networks whose sizes vary, as users load them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from autosched.errors import UsageError
from autosched.executor.compile_options import CompileKeywords, CompileOptions
from autosched.executor.dynamic_model import ANY, Dimension, VaryingModel
from autosched.executor.lookup import compile_varying
from autosched.graph.graph import Graph
from autosched.keywords import spelled_out
from autosched.planning.archive import SUFFIX

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class AnySize:
    """A network before its sizes are known. `places`: the dimensions that vary by name, each with the input that has it
    first and its place there; `graph_of` gives the graph for their sizes."""

    inputs: tuple[str, ...]
    places: Mapping[str, tuple[str, int]]
    graph_of: Callable[[Mapping[str, int]], Graph]


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
    """A network as a function of arrays of any sizes: an ONNX file in its symbolic dimensions, or a torch module in all
    dimensions of its inputs, called by their places, as x[0].

    There is a program for each choice of sizes, made at its first call. `sizes` says what a symbolic dimension of an
    ONNX file always is, {"batch": 1}, or gives sizes whose programs are made at once, {"batch": (1, 4, 16)}; `limits`
    says what some may be, {"batch": range(1, 65)}. Otherwise as `autosched.load`, with `inputs` of ONNX files only.
    Raises UsageError for a network that has no such dimensions, GraphError for one that is not accepted.
    """
    chosen, given = replace(options or CompileOptions(), **keywords), sizes or {}
    fixed = {name: size for name, size in given.items() if isinstance(size, int)}
    ready = {name: size for name, size in given.items() if not isinstance(size, int)}
    if inputs and not isinstance(model, (str, Path)):
        raise UsageError("inputs are fixed of an ONNX file; a torch module has them as constants of its own")
    if isinstance(model, (str, Path)):
        network = _of_file(model, fixed, inputs or {})
    else:
        network = _of_module(model, example_inputs)
    if not network.places:
        raise UsageError(f"{model} has no symbolic dimension whose size could vary")
    if strangers := [name for name in limits or {} if name not in network.places]:
        raise UsageError(f"the network does not vary in {strangers[0]}, but in {', '.join(network.places)}")
    dimensions = tuple(
        Dimension(name, network.inputs.index(x), place, (limits or {}).get(name, ANY))
        for name, (x, place) in network.places.items()
    )

    def graph_of(varying: Mapping[str, int]) -> Graph:
        return replace(network.graph_of(varying), winograd=chosen.winograd)

    varying = VaryingModel(network.inputs, dimensions, graph_of, partial(compile_varying, options=chosen))
    varying.prepare(ready)
    return varying


def _of_file(path: str | Path, fixed: Mapping[str, int], inputs: Mapping[str, npt.ArrayLike]) -> AnySize:
    from autosched.graph.onnx import read_onnx

    if Path(path).suffix.lower() == SUFFIX:
        raise UsageError(f"the sizes of a saved network are fixed: {path} cannot vary, the ONNX file that it was can")
    file = read_onnx(path, inputs)
    places = {name: at for name, at in file.symbolic_dimensions().items() if name not in fixed}
    return AnySize(file.inputs(), places, lambda varying: file.graph({**fixed, **varying}))


def _of_module(module: Any, example_inputs: Sequence[Any] | None) -> AnySize:
    if isinstance(module, Graph) or example_inputs is None or not hasattr(module, "forward"):
        raise UsageError(
            "sizes vary of ONNX files and of torch modules with example_inputs, those of a Graph are fixed"
        )
    from autosched.graph.torch.load import AnyShapes

    known = AnyShapes(module, example_inputs)
    inputs = known.graph([tuple(x.shape) for x in example_inputs]).inputs
    ranks = {x: len(example.shape) for x, example in zip(inputs, example_inputs, strict=True)}

    def graph_of(varying: Mapping[str, int]) -> Graph:
        shapes = [tuple(varying[f"{x}[{n}]"] for n in range(rank)) for x, rank in ranks.items()]
        graph: Graph = known.graph(shapes)
        return graph

    return AnySize(inputs, {f"{x}[{n}]": (x, n) for x, rank in ranks.items() for n in range(rank)}, graph_of)
