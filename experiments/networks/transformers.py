"""Networks of attention. Sizes are by default those of the publication that a docstring names."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.networks.convolutional import picture


class Attention(nn.Module):
    """Of `x` to itself, or to `context`, whose elements have `width` numbers."""

    def __init__(self, d: int, heads: int, width: int | None = None, bias: bool = True) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(d, d, bias=bias), nn.Linear(d, d)
        self.k, self.v = (nn.Linear(width or d, d, bias=bias) for _ in range(2))
        self.heads = heads

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        source = x if context is None else context
        q, k, v = (
            made.unflatten(-1, (self.heads, -1)).transpose(1, 2) for made in (self.q(x), self.k(source), self.v(source))
        )
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(y.transpose(1, 2).flatten(2))


class BertLayer(nn.Module):
    def __init__(self, d: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention, self.up, self.down = Attention(d, heads), nn.Linear(d, inner), nn.Linear(inner, d)
        self.norms = nn.ModuleList(nn.LayerNorm(d, 1e-12) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norms[0](x + self.attention(x, mask=mask))
        return self.norms[1](x + self.down(functional.gelu(self.up(x))))


class Bert(nn.Module):
    """BERT-base (Devlin et al. 2019): embeddings, encoder and pooler; the mask of padding is an input."""

    def __init__(
        self, layers: int = 12, d: int = 768, heads: int = 12, inner: int = 3072, words: int = 30522, tokens: int = 128
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.words, self.places, self.kinds = nn.Embedding(words, d), nn.Embedding(512, d), nn.Embedding(2, d)
        self.norm, self.layers = (
            nn.LayerNorm(d, 1e-12),
            nn.ModuleList(BertLayer(d, heads, inner) for _ in range(layers)),
        )
        self.pool = nn.Linear(d, d)

    def example(self, batch: int) -> tuple[Tensor, ...]:
        """The last quarter of the tokens is padding."""
        shape = (batch, self.tokens)
        mask = (torch.arange(self.tokens) < self.tokens - self.tokens // 4).long().expand(shape).clone()
        return torch.randint(self.words.num_embeddings, shape), torch.randint(2, shape), mask

    def forward(self, ids: Tensor, kinds: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.words(ids) + self.kinds(kinds) + self.places.weight[: ids.shape[1]])
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * torch.finfo(x.dtype).min
        for layer in self.layers:
            x = layer(x, bias)
        return x, torch.tanh(self.pool(x[:, 0]))


class VitLayer(nn.Module):
    def __init__(self, d: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention, self.up, self.down = Attention(d, heads), nn.Linear(d, inner), nn.Linear(inner, d)
        self.norms = nn.ModuleList(nn.LayerNorm(d, 1e-6) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class VisionTransformer(nn.Module):
    """ViT-S/16 (Dosovitskiy et al. 2021; the sizes of Touvron et al. 2021)."""

    def __init__(
        self, layers: int = 12, d: int = 384, heads: int = 6, size: int = 224, patch: int = 16, classes: int = 1000
    ) -> None:
        super().__init__()
        self.size, self.patches = size, nn.Conv2d(3, d, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, d) * 0.02)
        self.places = nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, d) * 0.02)
        self.layers = nn.Sequential(*(VitLayer(d, heads, 4 * d) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(d, 1e-6), nn.Linear(d, classes)

    def example(self, batch: int) -> tuple[Tensor, ...]:
        return picture(batch, self.size)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


class ResidualBlock(nn.Module):
    """With what a time step adds to each channel."""

    def __init__(self, ci: int, co: int, step: int, groups: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(groups, c, 1e-5) for c in (ci, co))
        self.first, self.second = nn.Conv2d(ci, co, 3, 1, 1), nn.Conv2d(co, co, 3, 1, 1)
        self.step = nn.Linear(step, co)
        self.skip = nn.Identity() if ci == co else nn.Conv2d(ci, co, 1)

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        y = self.first(functional.silu(self.norms[0](x)))
        y = y + self.step(functional.silu(step))[:, :, None, None]
        return self.skip(x) + self.second(functional.silu(self.norms[1](y)))


class SpatialTransformer(nn.Module):
    """Attention of pixels to each other and to a text, and a gated perceptron."""

    def __init__(self, d: int, text: int, heads: int, groups: int) -> None:
        super().__init__()
        self.norm, self.enter, self.leave = nn.GroupNorm(groups, d, 1e-6), nn.Conv2d(d, d, 1), nn.Conv2d(d, d, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))
        self.own, self.cross = Attention(d, heads, bias=False), Attention(d, heads, text, bias=False)
        self.up, self.down = nn.Linear(d, 8 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        y = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        y = y + self.own(self.norms[0](y))
        y = y + self.cross(self.norms[1](y), text)
        value, gate = self.up(self.norms[2](y)).chunk(2, -1)
        y = y + self.down(value * functional.gelu(gate))
        return x + self.leave(y.transpose(1, 2).unflatten(2, x.shape[2:]))


class UNetAttention(nn.Module):
    """One level of the U-Net of Stable Diffusion 1 (Rombach et al. 2022): down, middle, up, with skip and attention."""

    def __init__(
        self, d: int = 320, step: int = 1280, text: tuple[int, int] = (77, 768), heads: int = 8, size: int = 32,
        groups: int = 32,
    ) -> None:  # fmt: skip
        super().__init__()
        self.shape, self.step, self.text = (d, size, size), step, text
        attend = (text[1], heads, groups)
        self.down = ResidualBlock(d, d, step, groups)
        self.middle = ResidualBlock(d, 2 * d, step, groups)
        self.up = ResidualBlock(3 * d, d, step, groups)
        self.attend = nn.ModuleList(SpatialTransformer(c, *attend) for c in (d, 2 * d, d))
        self.shrink, self.grow = nn.Conv2d(d, d, 3, 2, 1), nn.Conv2d(2 * d, 2 * d, 3, 1, 1)

    def example(self, batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, *self.shape), torch.randn(batch, self.step), torch.randn(batch, *self.text)

    def forward(self, x: Tensor, step: Tensor, text: Tensor) -> Tensor:
        skip = self.attend[0](self.down(x, step), text)
        y = self.attend[1](self.middle(self.shrink(skip), step), text)
        y = self.grow(functional.interpolate(y, scale_factor=2.0, mode="nearest"))
        return self.attend[2](self.up(torch.cat([y, skip], 1), step), text)
