"""ONNX importer: files as graphs of our operators; needs the extra `onnx`.

files      the model of a path, arrays of its tensors
importer   one forward pass: shapes, constants, rules
folding    what is known while importing: shapes and arithmetic on small constants
site       what a rule sees of a node, and the table of rules
split      a model with nodes that are refused: the parts before, at and after them
rules/     ONNX operators as nodes of ours: one function each
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy.typing as npt

from autosched.errors import UsageError
from autosched.graph.graph import Array, Graph

NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class OnnxFile:
    """A parsed ONNX file, and the folder of its external data. `elements`: the bytes of large initializers by their
    numbers, which `model` is without. `fixed`: inputs with constant values, which calls do not pass."""

    model: Any
    folder: Path
    elements: Mapping[int, Array]
    fixed: Mapping[str, npt.ArrayLike] = field(default_factory=dict)

    def graph(self, sizes: Mapping[str, int] = NONE) -> Graph:
        """Return the network, see `load_onnx`."""
        from autosched.graph.onnx.importer import import_model

        return import_model(self.model, sizes, self.fixed, self.folder, self.elements)

    def inputs(self) -> tuple[str, ...]:
        """The names of the arrays that a call passes, in order."""
        from autosched.graph.onnx.inputs import call_inputs

        return tuple(info.name for info in call_inputs(self.model.graph, self.fixed))

    def symbolic_dimensions(self, sizes: Mapping[str, int] = NONE) -> dict[str, tuple[str, int]]:
        """The symbolic dimensions without a size by name, each with the first input that has it and its axis there.

        `sizes`: those that are given. Raises GraphError for inputs that are no tensors, and for unknown dimensions.
        """
        from autosched.graph.onnx.inputs import fixed_inputs, known_sizes, symbolic_dimensions

        graph = self.model.graph
        known = known_sizes(graph, sizes, fixed_inputs(graph, self.fixed))
        return symbolic_dimensions(graph, self.fixed, known)

    def described_inputs(self) -> dict[str, tuple[str, tuple[int | str, ...]]]:
        """All inputs, `fixed` ones included, by name: type, and shape with names for symbolic dimensions. Raises
        GraphError for inputs that are no tensors."""
        from autosched.graph.onnx.inputs import described_inputs

        return described_inputs(self.model.graph)


def read_onnx(path: str | Path, fixed: Mapping[str, npt.ArrayLike] = NONE) -> OnnxFile:
    """Parse an ONNX file. Raises GraphError for other files, UsageError without the package onnx."""
    try:
        from autosched.graph.onnx.files import read_model
    except ImportError as error:
        if error.name != "onnx":
            raise
        raise UsageError("reading ONNX files needs the package onnx: pip install 'autosched[onnx]'") from error
    file = Path(path)
    model, elements = read_model(file)
    return OnnxFile(model, file.parent, elements, fixed)


def load_onnx(path: str | Path, sizes: Mapping[str, int] = NONE, fixed: Mapping[str, npt.ArrayLike] = NONE) -> Graph:
    """The network in an ONNX file. `sizes` says what its symbolic dimensions are, by name: {"batch": 1}; one that has
    no name is called by its place, as in {"x[0]": 1}. `fixed` has values of inputs that are the same in each run, as a
    sampling rate that branches depend on: they are constants then. Raises GraphError for what is not accepted."""
    return read_onnx(path, fixed).graph(sizes)
