"""Origin of a kernel: the name of its last node in the framework that the network was imported from."""

from __future__ import annotations

from autosched.graph.steps import Group


def kernel_origin(group: Group) -> str:
    """Return the name that the last node of a kernel had when it was imported; empty for nodes that passes have
    made."""
    return next((node.origin for node in reversed(group.nodes) if node.origin), "")
