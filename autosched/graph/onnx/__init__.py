"""ONNX files as graphs of our operators; needs the extra `onnx`.

files      the model of a path, arrays of its tensors
importer   one forward pass: shapes, constants, rules
folding    what is known while importing: shapes and arithmetic on small constants
site       what a rule sees of a node, and the table of rules
rules/     ONNX operators as nodes of ours: one function each
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy.typing as npt

from autosched.errors import UsageError
from autosched.graph.graph import Graph

NONE: Mapping[str, Any] = MappingProxyType({})


def load_onnx(path: str | Path, sizes: Mapping[str, int] = NONE, fixed: Mapping[str, npt.ArrayLike] = NONE) -> Graph:
    """The network in an ONNX file. `sizes` says what its symbolic dimensions are, by name: {"batch": 1}; one that has
    no name is called by its place, as in {"x[0]": 1}. `fixed` has values of inputs that are the same in each run, as a
    sampling rate that branches depend on: they are constants then. Raises GraphError for what is not accepted."""
    try:
        from autosched.graph.onnx.files import read_model
        from autosched.graph.onnx.importer import import_model
    except ImportError as error:
        if error.name != "onnx":
            raise
        raise UsageError("reading ONNX files needs the package onnx: pip install 'autosched[onnx]'") from error
    file = Path(path)
    return import_model(read_model(file), sizes, fixed, file.parent)
