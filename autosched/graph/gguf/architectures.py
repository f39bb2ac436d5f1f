"""The architectures of language models in GGUF files, as a table of what their layers do differently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Architecture:
    """The properties of a family of decoders that its files do not show by having or lacking a tensor.

    `interleaved`: the pairs that are turned by the angle of a place lie side by side, as files of llama have them after
    their rows were permuted, or half a head apart. `activation`: of the gate. `scales_embeddings`: they are multiplied
    by the root of their width. `window_each`: of so many layers the first attends to the last places alone, those of
    the file's window; 0 for none.
    """

    interleaved: bool = False
    activation: str = "silu"
    scales_embeddings: bool = False
    window_each: int = 0


# By `general.architecture`. Biases, norms beside those before attention and gate, and weights that are stored as one
# are there where the file has their tensors.
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(interleaved=True),  # also Mistral and Mixtral
    "qwen2": Architecture(),
    "qwen3": Architecture(),
    "qwen3moe": Architecture(),
    "phi3": Architecture(window_each=1),
    "gemma": Architecture(activation="gelu", scales_embeddings=True),
    "gemma2": Architecture(activation="gelu", scales_embeddings=True, window_each=2),
}
