"""Where the kernels of a network come from."""

from __future__ import annotations

from autosched.executor.model import Model
from autosched.graph.steps import Group


def origin_of(model: Model, number: int) -> str:
    """What the last node of the kernel that step `number` is was called where the network came from; it may be empty,
    as for nodes that passes have made."""
    step = model.program.steps[number]
    assert isinstance(step, Group)
    return next((node.origin for node in reversed(step.nodes) if node.origin), "")
