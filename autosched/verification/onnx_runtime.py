"""onnxruntime as a second reference of an ONNX file, without its optimisations: it reveals errors of the importer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from autosched.errors import UsageError
from autosched.graph.graph import Array


def run_onnxruntime(path: Path, arrays: Mapping[str, Array], fixed: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
    """Return the outputs of the model in a file, by name. `fixed`: values of inputs that are not in `arrays`.

    Raises UsageError if onnxruntime is missing or does not accept the model.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError("the package onnxruntime is not installed: pip install 'autosched[peers]'") from error
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, {**arrays, **_typed(session, fixed)})
    except Exception as error:  # the classes of onnxruntime have no common base
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(f"onnxruntime does not run {path}: {reason}") from error
    return dict(zip((output.name for output in session.get_outputs()), outputs, strict=True))


def _typed(session: Any, fixed: Mapping[str, npt.ArrayLike]) -> dict[str, Array]:
    """Return the values as arrays of the types of the session's inputs, which it writes as in tensor(int64)."""
    numpy_names = {"float": "float32", "double": "float64"}
    types = {i.name: i.type.removeprefix("tensor(").rstrip(")") for i in session.get_inputs()}
    return {name: np.asarray(value, numpy_names.get(types[name], types[name])) for name, value in fixed.items()}
