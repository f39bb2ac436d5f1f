"""The architectures of language models in GGUF files, as tables: what their layers have, and the names of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """How the decoders of a family differ.

    `interleaved`: the pairs that are turned by the angle of a place lie side by side, as files of llama have them after
    their rows were permuted, or half a head apart. `activation`: of the gate. `scales_embeddings`: they are multiplied
    by the root of their width.
    """

    interleaved: bool = False
    activation: str = "silu"
    scales_embeddings: bool = False


# By `general.architecture`. Biases and norms of queries and keys are there where the file has their tensors.
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(interleaved=True),  # and Mistral
    "qwen2": Architecture(),
    "qwen3": Architecture(),
    "gemma": Architecture(activation="gelu", scales_embeddings=True),
}
