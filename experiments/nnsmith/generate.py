"""ONNX models by NNSmith 0.1.0, with two patches for what came out after it.

PyTorch's exporter is now another one, which takes no module that reads values: the former one is still there. Z3 now
finds negative sizes for the test of Reshape as a single operator: they are excluded.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Any

import onnx
from onnx import ModelProto

from autosched.errors import UsageError

MAX_ELEMENTS = 65_536  # of a value
MAX_MS = 10_000  # for the solver

Generator = Callable[[int, int], ModelProto]


def patched() -> Any:
    """The package, patched. Raises UsageError where it is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import nnsmith.materialize.onnx as materialize
            import torch
            from nnsmith.abstract import arith, op
    except ImportError as error:
        raise UsageError(f"this experiment needs {error.name}: pip install nnsmith==0.1.0 torch onnx") from error

    torch.set_num_threads(1)  # a forked process has no other threads of its parent
    torch.onnx.export = functools.partial(torch.onnx.export, dynamo=False)
    requires = op.Reshape.requires

    def positive(self: Any, shapes: Any) -> Any:
        return [*requires(self, shapes), *(arith.nnsmith_gt(size, 0) for size in self.target_shape)]

    op.Reshape.requires = positive
    return materialize


def generator() -> Generator:
    """A function of a seed and a number of operators that returns a model. The first call on a machine tries every
    operator with every type, half a minute, and keeps the result in the user's cache."""
    patched()
    from nnsmith.abstract.extension import activate_ext
    from nnsmith.graph_gen import model_gen
    from nnsmith.materialize import Model
    from nnsmith.narrow_spec import auto_opset
    from nnsmith.util import set_seed

    kind = Model.init("onnx", backend_target="cpu")
    kind.add_seed_setter()
    with redirect_stdout(sys.stderr):
        operators = auto_opset(kind, None)
    activate_ext(opset=operators, factory=None)

    def generate(seed: int, n_nodes: int) -> ModelProto:
        set_seed(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = model_gen(
                opset=operators,
                method="symbolic-cinit",
                seed=seed,
                max_elem_per_tensor=MAX_ELEMENTS,
                max_nodes=n_nodes,
                timeout_ms=MAX_MS,
            )
            model = kind.from_gir(found.make_concrete())
            model.refine_weights()
        result: ModelProto = model.onnx_model
        onnx.checker.check_model(result, full_check=True)
        return result

    return generate
