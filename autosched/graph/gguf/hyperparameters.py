"""Sizes and constants of a decoder, from the metadata of its file."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autosched.errors import GraphError
from autosched.graph.gguf.architectures import ARCHITECTURES, Architecture
from autosched.graph.gguf.reader import GgufFile

_NO_SCALING = ("none", "")
_LINEAR, _BY_FACTORS = "linear", "longrope"
_LARGEST_GEMMA2 = 46  # layers, of the model with 27 billion weights


@dataclass(frozen=True)
class Hyperparameters:
    """`heads` of queries, `kv_heads` of keys and values of `key_size` and `value_size` numbers; `turned` of a key's
    numbers depend on its place, by angles of the base `frequency_base` times place / `frequency_scale`; cosines and
    sines are multiplied by `angle_factor`. Factors of frequencies that a file has for long contexts are for those above
    `short_context`. `window`: of the layers that attend to the last places alone. An infinite cap is none.
    """

    architecture: Architecture
    layers: int
    width: int
    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    epsilon: float
    turned: int
    frequency_base: float
    frequency_scale: float
    context: int
    angle_factor: float
    short_context: int
    window: int
    score_scale: float
    score_cap: float
    output_cap: float
    experts_used: int


def hyperparameters(file: GgufFile) -> Hyperparameters:
    """Raises GraphError for an architecture that is not supported, and for metadata that are missing or do not fit."""
    name = file.metadata.get("general.architecture")
    architecture = ARCHITECTURES.get(str(name))
    if architecture is None:
        raise GraphError(
            f"{file.path} has the architecture {name}, which is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    own = _Metadata(file, str(name))
    heads, width = own.count("attention.head_count"), own.count("embedding_length")
    if width % heads and "attention.key_length" not in own:
        raise GraphError(f"{file.path} has {heads} heads, which do not divide the width {width}")
    key_size = own.count("attention.key_length", width // heads)
    turned = own.count("rope.dimension_count", key_size)
    if turned % 2 or turned > key_size:
        raise GraphError(f"{file.path} turns {turned} of {key_size} numbers of a key, which are no pairs of them")
    made = Hyperparameters(
        architecture,
        layers=own.count("block_count"),
        width=width,
        heads=heads,
        kv_heads=own.count("attention.head_count_kv", heads),
        key_size=key_size,
        value_size=own.count("attention.value_length", key_size),
        epsilon=own.number("attention.layer_norm_rms_epsilon"),
        turned=turned,
        frequency_base=own.number("rope.freq_base", 10000.0),
        frequency_scale=_frequency_scale(own),
        context=own.count("context_length"),
        angle_factor=own.number("rope.scaling.attn_factor", 1.0),
        short_context=own.count("rope.scaling.original_context_length", own.count("context_length")),
        window=own.count("attention.sliding_window", own.count("context_length")),
        score_scale=_score_scale(own, key_size, width // heads),
        score_cap=own.number("attn_logit_softcapping", math.inf),
        output_cap=own.number("final_logit_softcapping", math.inf),
        experts_used=own.count("expert_used_count", 1),
    )
    if made.heads % made.kv_heads:
        raise GraphError(f"{file.path} has {heads} heads of queries, which are no multiple of {made.kv_heads} of keys")
    return made


def _score_scale(own: _Metadata, key_size: int, head_width: int) -> float:
    """1 / root of the size of a key; of the largest model of gemma2 that of a head's share of the width, which files
    do not say."""
    is_largest = own.architecture == "gemma2" and own.count("block_count") == _LARGEST_GEMMA2
    return 1.0 / math.sqrt(head_width if is_largest else key_size)


def _frequency_scale(own: _Metadata) -> float:
    kind = own.text("rope.scaling.type", _NO_SCALING[0])
    if kind not in (*_NO_SCALING, _LINEAR, _BY_FACTORS):
        raise GraphError(f"{own.file.path} scales places by the method {kind}, which is not supported")
    return own.number("rope.scaling.factor", 1.0) if kind == _LINEAR else 1.0


@dataclass(frozen=True)
class _Metadata:
    """The metadata of an architecture, whose names begin with its own."""

    file: GgufFile
    architecture: str

    def __contains__(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self.file.metadata

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        name = f"{self.architecture}.{key}"
        value = self.file.metadata.get(name, default)
        if value is None:
            raise GraphError(f"{self.file.path} has no metadata {name}")
        if isinstance(value, tuple) and len(set(value)) == 1:  # the same for each layer
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= math.inf:
            raise GraphError(f"{self.file.path} has the metadata {name} = {_short(value)}, which is no positive number")
        return value

    def count(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if not isinstance(value, int):
            raise GraphError(
                f"{self.file.path} has the metadata {self.architecture}.{key} = {value}, which is no count"
            )
        return value

    def text(self, key: str, default: str) -> str:
        return str(self.file.metadata.get(f"{self.architecture}.{key}", default))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
