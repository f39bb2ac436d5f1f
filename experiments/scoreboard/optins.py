"""What a user may ask for beside the plain kernel: contests of their own, reported apart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OptIn:
    """Contestant `ours`, of a search with `name` (an option of `autosched tune`), against `peer`."""

    name: str
    ours: str
    peer: str
    title: str
    about: str


OPT_INS = (
    OptIn(
        "weights", "autosched.weights", "torch.prepacked",
        "Constant weights, packed ahead of time on both sides; called from Python",
        "also with constant weights, packed ahead of time on both sides",
    ),
    OptIn(
        "winograd", "autosched.winograd", "torch",
        "Winograd's algorithm, whose error is larger, against PyTorch's choice; called from Python",
        "also with Winograd's algorithm, where a convolution can take it",
    ),
)  # fmt: skip
