"""Origin of a kernel: the name of its last node in the framework that the network was imported from."""

from __future__ import annotations

from autosched.executor.model import Model
from autosched.graph.steps import Group


def kernel_origin(model: Model, number: int) -> str:
    """Return the name that the last node of the kernel of step `number` had when it was imported; empty for nodes that
    passes have made."""
    step = model.program.steps[number]
    assert isinstance(step, Group)
    return next((node.origin for node in reversed(step.nodes) if node.origin), "")
