"""Networks that make one token after the other: a decoder with caches, whose weights may have 4 bits, and an LSTM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


class RootMeanSquareNorm(nn.Module):
    def __init__(self, d: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Int4Linear(nn.Module):
    """Weights of 4 bits, two in a byte, low ones first, each group of them with a scale: (q - 8) * scale."""

    packed: Tensor
    scales: Tensor

    def __init__(self, n_in: int, n_out: int, group: int) -> None:
        super().__init__()
        self.register_buffer("packed", torch.randint(256, (n_out, n_in // group, group // 2), dtype=torch.uint8))
        self.register_buffer("scales", (0.5 + torch.rand(n_out, n_in // group, 1)) / (4.6 * math.sqrt(n_in)))

    def forward(self, x: Tensor) -> Tensor:
        halves = torch.stack([self.packed & 15, self.packed >> 4], -1).flatten(2)
        weight = (halves.to(self.scales.dtype) - 8) * self.scales
        return functional.linear(x, weight.flatten(1))


@dataclass(frozen=True)
class DecoderSizes:
    """Of SmolLM2-135M (Allal et al. 2025), a decoder as Llama; `inner`: of the perceptron; `group`: of weights of 4
    bits, 0 for float32 weights; `room`: tokens that the caches of keys and values have room for."""

    layers: int = 30
    d: int = 576
    heads: int = 9
    kv: int = 3
    inner: int = 1536
    words: int = 49152
    tokens: int = 128
    room: int = 256
    group: int = 0

    def linear(self, n_in: int, n_out: int) -> nn.Module:
        return Int4Linear(n_in, n_out, self.group) if self.group else nn.Linear(n_in, n_out, bias=False)


@dataclass(frozen=True)
class Positions:
    """Rotations of each token that is given, and what it may see."""

    cos: Tensor
    sin: Tensor
    mask: Tensor

    def rotated(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return x * self.cos + torch.cat([-b, a], -1) * self.sin


class DecoderLayer(nn.Module):
    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        d, self.dim = sizes.d, sizes.d // sizes.heads
        self.times, linear = sizes.heads // sizes.kv, sizes.linear
        self.q, self.o = linear(d, d), linear(d, d)
        self.k, self.v = (linear(d, sizes.kv * self.dim) for _ in range(2))
        self.gate, self.up, self.down = linear(d, sizes.inner), linear(d, sizes.inner), linear(sizes.inner, d)
        self.norms = nn.ModuleList(RootMeanSquareNorm(d) for _ in range(2))

    def forward(
        self, x: Tensor, places: Positions, at: Tensor | None = None, caches: Sequence[Tensor] = ()
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(x of the next layer, keys, values). Where there are caches, those of the one token are written at `at`."""
        y = self.norms[0](x)
        q, k, v = (f(y).unflatten(-1, (-1, self.dim)).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = places.rotated(q), places.rotated(k)
        if caches:
            k, v = (cache.index_copy(2, at, new) for cache, new in zip(caches, (k, v), strict=True))
        wide_k, wide_v = (t[:, :, None].expand(-1, -1, self.times, -1, -1).flatten(1, 2) for t in (k, v))
        y = functional.scaled_dot_product_attention(q, wide_k, wide_v, attn_mask=places.mask)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), k, v


class Decoder(nn.Module):
    """What the two uses of a decoder share; the head's weights are the embedding's, unless they have 4 bits."""

    cos: Tensor
    sin: Tensor

    def __init__(self, **sizes: int) -> None:
        super().__init__()
        self.sizes = s = DecoderSizes(**sizes)
        dim = s.d // s.heads
        self.embedding, self.norm, self.head = (
            nn.Embedding(s.words, s.d),
            RootMeanSquareNorm(s.d),
            s.linear(s.d, s.words),
        )
        if not s.group:
            self.head.weight = self.embedding.weight
        self.layers = nn.ModuleList(DecoderLayer(s) for _ in range(s.layers))
        angles = torch.arange(s.room)[:, None] / (1e5 ** (torch.arange(0, dim, 2) / dim))
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin(), persistent=False)

    def tokens(self, batch: int, n: int) -> Tensor:
        return torch.randint(self.sizes.words, (batch, n))


class DecoderPrefill(Decoder):
    """Reads a text: the scores of the next token, and the keys and values of each layer."""

    def example(self, batch: int) -> tuple[Tensor, ...]:
        return (self.tokens(batch, self.sizes.tokens),)

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        n, x = ids.shape[1], self.embedding(ids)
        places = Positions(self.cos[:n], self.sin[:n], torch.full((n, n), -math.inf).triu(1))
        made: list[Tensor] = []
        for layer in self.layers:
            x, k, v = layer(x, places)
            made += [k, v]
        return (self.head(self.norm(x[:, -1:])), *made)


class DecoderStep(Decoder):
    """One token at place `at`, with the caches of those before: its scores, and the caches with it."""

    def example(self, batch: int) -> tuple[Tensor, ...]:
        s = self.sizes
        caches = [torch.randn(batch, s.kv, s.room, s.d // s.heads) for _ in range(2 * s.layers)]
        return self.tokens(batch, 1), torch.tensor([s.tokens]), *caches

    def forward(self, ids: Tensor, at: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        mask = torch.where(torch.arange(self.sizes.room) <= at, 0.0, -math.inf)[None]
        places, x = Positions(self.cos[at], self.sin[at], mask), self.embedding(ids)
        made: list[Tensor] = []
        for n, layer in enumerate(self.layers):
            x, k, v = layer(x, places, at, caches[2 * n : 2 * n + 2])
            made += [k, v]
        return (self.head(self.norm(x)), *made)


class Tagger(nn.Module):
    """Huang et al. 2015: an LSTM in both directions over words, and scores of 45 tags for each."""

    def __init__(self, words: int = 20000, d: int = 100, hidden: int = 300, tokens: int = 32, tags: int = 45) -> None:
        super().__init__()
        self.words, self.tokens = nn.Embedding(words, d), tokens
        self.lstm = nn.LSTM(d, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, tags)

    def example(self, batch: int) -> tuple[Tensor, ...]:
        return (torch.randint(self.words.num_embeddings, (batch, self.tokens)),)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(ids))[0])
