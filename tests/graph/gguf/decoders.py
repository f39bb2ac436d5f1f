"""Small decoders with random weights, written as GGUF files, and their results by plain NumPy, without a cache."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.gguf_files import random_blocks, write_model


@dataclass
class Decoder:
    """`formats`: those of weights by a part of their name, of which the first that fits counts; others are F32."""

    architecture: str = "llama"
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    key_size: int = 16
    hidden: int = 96
    layers: int = 2
    vocabulary: int = 41
    formats: dict = field(default_factory=dict)
    biases: bool = False
    head_norms: bool = False
    tied: bool = False
    metadata: dict = field(default_factory=dict)
    frequency_factors: str = ""
    norms_after: bool = False
    joined: bool = False
    experts: int = 0
    turned: int = 0

    def __post_init__(self):
        self.rng = np.random.default_rng(7)
        self.stored, self.weights = {}, {}
        self.turned = self.turned or self.key_size
        w, q, kv = self.width, self.heads * self.key_size, self.kv_heads * self.key_size
        self.matrix("token_embd", self.vocabulary, w)
        self.vector("output_norm.weight", w)
        if not self.tied:
            self.matrix("output", self.vocabulary, w)
        for name in filter(None, self.frequency_factors.split(",")):
            self.vector(f"{name}.weight", self.turned // 2)
        for n in range(self.layers):
            for norm in ("attn_norm", "ffn_norm"):
                self.vector(f"blk.{n}.{norm}.weight", w)
            if self.norms_after:
                self.vector(f"blk.{n}.post_attention_norm.weight", w)
                self.vector(f"blk.{n}.post_ffw_norm.weight", w)
            for name, rows in (("q", q), ("k", kv), ("v", kv)):
                self.matrix(f"blk.{n}.attn_{name}", rows, w)
                if self.biases:
                    self.vector(f"blk.{n}.attn_{name}.bias", rows)
                if self.head_norms and name != "v":
                    self.vector(f"blk.{n}.attn_{name}_norm.weight", self.key_size)
            self.matrix(f"blk.{n}.attn_output", w, q)
            if self.experts:
                self.matrix(f"blk.{n}.ffn_gate_inp", self.experts, w)
            for name, rows, depth in (("gate", self.hidden, w), ("up", self.hidden, w), ("down", w, self.hidden)):
                for e in range(self.experts):
                    self.matrix(f"blk.{n}.ffn_{name}.{e}", rows, depth)
                if self.experts:
                    self.stack(f"blk.{n}.ffn_{name}")
                else:
                    self.matrix(f"blk.{n}.ffn_{name}", rows, depth)
            if self.joined:
                self.join(f"blk.{n}.", "attn_qkv", ("attn_q", "attn_k", "attn_v"))
                self.join(f"blk.{n}.", "ffn_up", ("ffn_gate", "ffn_up"))

    def stack(self, name):
        """Store the weights of experts as one."""
        parts = [self.stored.pop(f"{name}.{e}.weight") for e in range(self.experts)]
        is_packed = isinstance(parts[0], tuple)
        array = np.stack([part[1] if is_packed else part for part in parts])
        self.stored[f"{name}_exps.weight"] = (parts[0][0], array) if is_packed else array

    def join(self, layer, name, parts):
        """Store weights as one."""
        parts = [self.stored.pop(f"{layer}{part}.weight") for part in parts]
        if isinstance(parts[0], tuple):
            self.stored[f"{layer}{name}.weight"] = (parts[0][0], np.concatenate([blocks for _, blocks in parts]))
        else:
            self.stored[f"{layer}{name}.weight"] = np.concatenate(parts)

    def vector(self, name, size):
        self.stored[name] = self.weights[name] = self.rng.uniform(0.5, 1.5, size).astype("float32")

    def matrix(self, stem, rows, depth):
        """The reference has the numbers of the blocks, in the order of the original model."""
        import gguf
        import ml_dtypes

        name = f"{stem}.weight"
        kind = next((kind for part, kind in self.formats.items() if part in name), "F32")
        weight = (self.rng.standard_normal((rows, depth)) / np.sqrt(depth)).astype("float32")
        if kind in ("F32", "F16"):
            stored = weight.astype({"F32": "float32", "F16": "float16"}[kind])
            self.stored[name], numbers = stored, stored.astype("float32")
        elif kind == "BF16":
            rounded = weight.astype(ml_dtypes.bfloat16)
            self.stored[name], numbers = (kind, rounded.view(np.uint8)), rounded.astype("float32")
        else:
            scale = {"Q4_0": 0.2, "Q8_0": 0.015, "Q4_K": 0.004, "Q6_K": 0.0008}[kind] / np.sqrt(depth)
            blocks = random_blocks(self.rng, kind, rows, depth, scale)
            self.stored[name] = (kind, blocks)
            numbers = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
        if self.architecture == "llama" and ("attn_q" in name or "attn_k" in name):
            numbers = halves_apart(numbers, rows // self.key_size)
        self.weights[name] = numbers

    def write(self, path):
        facts = {
            "block_count": self.layers,
            "context_length": 32,
            "embedding_length": self.width,
            "feed_forward_length": self.hidden,
            "attention.head_count": self.heads,
            "attention.head_count_kv": self.kv_heads,
            "attention.key_length": self.key_size,
            "attention.value_length": self.key_size,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 500.0,
            "rope.dimension_count": self.turned,
        }
        write_model(path, self.architecture, {**facts, **self.metadata}, self.stored)
        return path

    # The reference

    def scores(self, tokens):
        """float64 [tokens, vocabulary]."""
        w = {name: a.astype("float64") for name, a in self.weights.items()}
        x = w["token_embd.weight"][tokens]
        if self.architecture.startswith("gemma"):
            x = x * np.sqrt(self.width)
        for n in range(self.layers):
            own = {name.removeprefix(f"blk.{n}."): a for name, a in w.items() if name.startswith(f"blk.{n}.")}
            window = self.metadata.get("attention.sliding_window", 99)
            near = self.architecture == "phi3" or (self.architecture == "gemma2" and n % 2 == 0)
            y = self.attended(normal(x, own["attn_norm.weight"]), own, window if near else 99)
            x = x + (normal(y, own["post_attention_norm.weight"]) if self.norms_after else y)
            y = normal(x, own["ffn_norm.weight"])
            y = self.mixed(y, own) if self.experts else self.gated(y, own)
            x = x + (normal(y, own["post_ffw_norm.weight"]) if self.norms_after else y)
        last = w.get("output.weight", w["token_embd.weight"])
        return capped(normal(x, w["output_norm.weight"]) @ last.T, self.metadata.get("final_logit_softcapping"))

    def gated(self, x, own, expert=""):
        gate, up = (x @ own[f"ffn_{name}{expert}.weight"].T for name in ("gate", "up"))
        return (self.activated(gate) * up) @ own[f"ffn_down{expert}.weight"].T

    def mixed(self, x, own):
        """Of all experts the best ones' share of what each computes."""
        made = np.zeros_like(x)
        for n, row in enumerate(x):
            scores = own["ffn_gate_inp.weight"] @ row
            weights = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            best = np.argsort(-weights)[: self.metadata["expert_used_count"]]
            for e in best:
                made[n] += weights[e] / weights[best].sum() * self.gated(row, own, f".{e}")
        return made

    def activated(self, x):
        if self.architecture.startswith("gemma"):
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return x / (1 + np.exp(-x))

    def attended(self, x, own, window):
        def heads(name, count):
            y = x @ own[f"attn_{name}.weight"].T
            y = y + own.get(f"attn_{name}.bias", 0)
            y = y.reshape(len(x), count, self.key_size)
            norm = own.get(f"attn_{name}_norm.weight")
            return y if norm is None else normal(y, norm)

        q, k, v = heads("q", self.heads), heads("k", self.kv_heads), heads("v", self.kv_heads)
        q, k = self.turn(q), self.turn(k)
        k, v = (np.repeat(t, self.heads // self.kv_heads, axis=1) for t in (k, v))
        made = np.zeros_like(q)
        for i in range(len(x)):
            places = slice(max(0, i + 1 - window), i + 1)
            scores = np.einsum("hd,shd->hs", q[i], k[places]) / np.sqrt(self.key_size)
            scores = capped(scores, self.metadata.get("attn_logit_softcapping"))
            weights = np.exp(scores - scores.max(1, keepdims=True))
            weights /= weights.sum(1, keepdims=True)
            made[i] = np.einsum("hs,shd->hd", weights, v[places])
        return made.reshape(len(x), -1) @ own["attn_output.weight"].T

    def turn(self, x):
        """Pairs half a head apart, as complex numbers."""
        half = self.turned // 2
        factors = self.weights.get(
            f"{self.frequency_factors.split(',')[0]}.weight", 1.0
        )  # the first are those that count
        scale = self.metadata.get("rope.scaling.factor", 1.0)
        frequencies = 500.0 ** (-2.0 * np.arange(half) / self.turned) / factors / scale
        spin = self.metadata.get("rope.scaling.attn_factor", 1.0) * np.exp(
            1j * np.arange(len(x))[:, None, None] * frequencies
        )
        pairs = (x[..., :half] + 1j * x[..., half : 2 * half]) * spin
        return np.concatenate([pairs.real, pairs.imag, x[..., 2 * half :]], axis=-1)


def capped(x, cap):
    return x if cap is None else cap * np.tanh(x / cap)


def normal(x, scale):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale


def halves_apart(weight, heads):
    """Undo the permutation of llama's converter, which puts the numbers of a pair side by side."""
    rows, depth = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, depth).swapaxes(1, 2).reshape(rows, depth)
