"""Decoders in GGUF files compute what a plain evaluation in float64 does, token by token and many at a time."""

from __future__ import annotations

import numpy as np
import pytest

from autosched import api
from autosched.errors import GraphError, OutOfRangeError, UsageError
from tests.graph.gguf.decoders import Decoder

pytest.importorskip("gguf")

TOKENS = np.array([3, 0, 40, 7, 7, 12, 25, 1, 9, 30, 2])
K_QUANTS = {"ffn_down": "Q6_K", "output": "Q6_K", "attn_v": "Q6_K", "attn_norm": "F32", "": "Q4_K"}
DECODERS = {
    "llama": {},
    "llama: Q4_0": {"formats": {"output": "Q8_0", "": "Q4_0"}},
    "llama: Q4_K and Q6_K": {"formats": K_QUANTS, "width": 256, "hidden": 256, "key_size": 64, "layers": 1},
    "llama: halves, and factors of frequencies": {"formats": {"ffn": "F16", "": "BF16"}, "frequency_factors": "rope_freqs"},
    "llama: scaled places": {"metadata": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}},
    "qwen2": {"architecture": "qwen2", "biases": True, "tied": True, "formats": {"": "Q8_0"}},
    "qwen3": {"architecture": "qwen3", "head_norms": True, "key_size": 24, "hidden": 64, "formats": {"ffn": "Q8_0"}},
    "qwen3: a part turned": {"architecture": "qwen3", "key_size": 24, "turned": 10, "kv_heads": 4},
    "mixtral": {"experts": 5, "metadata": {"expert_count": 5, "expert_used_count": 2}},
    "mixtral: Q8_0 and Q4_0": {
        "experts": 4, "layers": 1, "formats": {"down": "Q4_0", "ffn": "Q8_0"},
        "metadata": {"expert_count": 4, "expert_used_count": 3},
    },
    "phi3": {"architecture": "phi3", "joined": True, "formats": {"": "Q8_0"}, "metadata": {"attention.sliding_window": 4}},
    "phi3: a long context": {
        "architecture": "phi3", "joined": True, "layers": 1, "frequency_factors": "rope_factors_long,rope_factors_short",
        "metadata": {
            "rope.scaling.type": "longrope", "rope.scaling.original_context_length": 8, "rope.scaling.attn_factor": 1.25
        },
    },
    "phi3: a short context": {
        "architecture": "phi3", "joined": True, "layers": 1, "frequency_factors": "rope_factors_short,rope_factors_long",
        "metadata": {"rope.scaling.type": "longrope", "rope.scaling.original_context_length": 12},
    },
    "gemma2": {
        "architecture": "gemma2", "tied": True, "norms_after": True,
        "metadata": {
            "attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0, "attention.sliding_window": 3
        },
    },
    "gemma": {"architecture": "gemma", "tied": True, "kv_heads": 1, "key_size": 32},
}  # fmt: skip


def called(model, tokens, start, caches, in_place):
    arrays = [np.array(tokens), np.array([start]), *caches]
    if not in_place:
        return model(*arrays)
    scores = np.empty(model.outputs[0].shape, "float32")
    model(*arrays, out=(scores, *caches))
    return scores, *caches


@pytest.mark.parametrize(("name", "in_place"), [("llama", False), *((name, True) for name in DECODERS)])
def test_scores(name, in_place, tmp_path):
    decoder = Decoder(**DECODERS[name])
    path = decoder.write(tmp_path / "model.gguf")
    want = decoder.scores(TOKENS)
    first, model = 5, api.load(path, sizes={"context": 12}, threads=1, records=False, specialise="never")
    many = api.load(path, sizes={"context": 12, "tokens": first}, threads=1, records=False, specialise="never")
    caches = [np.full(spec.shape, 7, "float32") for spec in many.inputs[2:]]  # what is not written has no effect
    scores, *caches = called(many, TOKENS[:first], 0, caches, in_place)
    close(scores, want[:first])
    for n in range(first, len(TOKENS)):
        scores, *caches = called(model, TOKENS[n : n + 1], n, caches, in_place)
        close(scores, want[n : n + 1])


def close(got, want):
    assert np.sqrt(((got - want) ** 2).mean()) <= 1e-4 * np.sqrt((want**2).mean())


def test_sizes(tmp_path):
    path = Decoder(layers=1).write(tmp_path / "model.gguf")
    model = api.load(path, threads=1, records=False, specialise="never")
    assert [str(spec.shape) for spec in model.inputs] == ["(1,)", "(1,)", "(1, 2, 32, 16)", "(1, 2, 32, 16)"]
    for sizes, reason in (
        ({"batch": 2}, "has no size batch: the sizes of a GGUF file are tokens and context"),
        ({"tokens": 0}, "at least one token"),
        ({"tokens": 5, "context": 4}, "a context of as many, but got 5 and 4"),
    ):
        with pytest.raises(UsageError, match=reason):
            api.load(path, sizes=sizes)
    caches = [np.zeros(spec.shape, "float32") for spec in model.inputs[2:]]
    with pytest.raises(OutOfRangeError, match="the index 41"):
        model(np.array([41]), np.array([0]), *caches)
    with pytest.raises(OutOfRangeError, match="the index 32"):
        model(np.array([4]), np.array([32]), *caches)


def test_drawn_inputs_are_in_range(tmp_path):
    path = Decoder(layers=1, formats={"": "Q8_0"}).write(tmp_path / "model.gguf")
    sizes = {"tokens": 3, "context": 4}
    model = api.load(path, sizes=sizes, threads=1, records=False, specialise="never")
    assert api.verify(model).passed
    caches = [np.zeros(spec.shape, "float32") for spec in model.inputs[2:]]
    with pytest.raises(OutOfRangeError, match="the index 2 is out of range, which is 0 to 1"):
        model(np.arange(3), np.array([2]), *caches)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"architecture": "mamba"}, "has the architecture mamba, which is not supported; supported are llama, "),
        ({"metadata": {"rope.scaling.type": "yarn"}}, "scales places by the method yarn, which is not supported"),
        ({"metadata": {"attention.head_count_kv": 3}}, "no multiple of 3"),
        ({"metadata": {"rope.dimension_count": 5}}, "turns 5 of 16 numbers of a key"),
        ({"metadata": {"block_count": 3}}, r"has no tensor blk.1.attn_norm.weight"),
        ({"metadata": {"block_count": 0}}, r"llama.block_count = 0, which is no positive number"),
        (
            {"metadata": {"embedding_length": 32}},
            r"token_embd.weight of shape \[41, 64\], where the metadata say \[0, 32",
        ),
        ({"metadata": {"context_length": 2.5}}, "context_length = 2.5, which is no count"),
    ],
)
def test_refusals(change, reason, tmp_path):
    path = Decoder(layers=1, **change).write(tmp_path / "model.gguf")
    with pytest.raises(GraphError, match=reason):
        api.load(path)
