"""Descriptions of the inputs of networks that are not imported yet, for messages and for values by name.

Networks are ONNX and GGUF files with symbolic sizes, saved graphs, torch modules and programs, and graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autosched.graph.graph import Graph
from autosched.graph.saved import load_saved

SAVED, GGUF = ".asc", ".gguf"


@dataclass(frozen=True)
class DescribedInput:
    """An input by name; symbolic dimensions of its shape are their names."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(map(str, self.shape))}]"


def describe_inputs(model: Any, example_inputs: Sequence[Any] | None = None) -> tuple[DescribedInput, ...]:
    """Return the inputs of a network in the order of a call.

    `model`: the path of an ONNX file, a GGUF file or a saved network, a Graph, a torch program, or a torch module,
    which needs `example_inputs`. Raises GraphError for a file that cannot be read.
    """
    if isinstance(model, Path):
        if model.suffix.lower() == GGUF:
            from autosched.graph.gguf import input_shapes

            return tuple(DescribedInput(name, dtype, shape) for name, (dtype, shape) in input_shapes(model).items())
        if model.suffix.lower() != SAVED:
            from autosched.graph.onnx import read_onnx

            onnx_inputs = read_onnx(model).described_inputs()
            return tuple(DescribedInput(name, dtype, shape) for name, (dtype, shape) in onnx_inputs.items())
        model = load_saved(model)[0]
    if isinstance(model, Graph):
        values = [model.values[name] for name in model.inputs]
        return tuple(DescribedInput(value.name, value.dtype, value.shape) for value in values)
    from autosched.graph.torch.program import described_inputs, is_program, parameter_names

    if is_program(model):
        return tuple(DescribedInput(*described) for described in described_inputs(model))
    inputs = [x for x in example_inputs or () if hasattr(x, "shape")]
    return tuple(
        DescribedInput(name, str(x.dtype).removeprefix("torch."), tuple(map(int, x.shape)))
        for name, x in zip(parameter_names(model, len(inputs)), inputs, strict=False)
    )
