"""Small networks of PyTorch in the structures that are in use, and what it takes to compare them with graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from autosched.graph.graph import Graph
from autosched.graph.interpret import interpret
from autosched.graph.torch.load import load_torch


def conv_norm(ci: int, co: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(ci, co, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(co))


class Residual(nn.Module):
    """The beginning of a ResNet, one block of it, and its end."""

    def __init__(self, ci: int = 8, co: int = 16) -> None:
        super().__init__()
        self.stem = conv_norm(3, ci, 7, 2)
        self.a, self.b, self.down = conv_norm(ci, co, 3, 2), conv_norm(co, co), conv_norm(ci, co, 1, 2)
        self.fc = nn.Linear(co, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        x = F.relu(self.b(F.relu(self.a(x))) + self.down(x))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Inverted(nn.Module):
    """MobileNet's inverted residual, and the squeezing of EfficientNet."""

    def __init__(self, c: int = 8, factor: int = 3) -> None:
        super().__init__()
        mid = c * factor
        self.up, self.depthwise, self.down = conv_norm(c, mid, 1), conv_norm(mid, mid, 3, 1, mid), conv_norm(mid, c, 1)
        self.squeeze, self.excite = nn.Conv2d(mid, 4, 1), nn.Conv2d(4, mid, 1)

    def forward(self, x):
        y = F.relu6(self.depthwise(F.hardtanh(self.up(x), 0.0, 6.0)))
        scale = torch.sigmoid(self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(y, 1)))))
        return x + self.down(y * scale)


class BertLayer(nn.Module):
    """Embeddings, one layer and the pooler of a BERT; the mask is an input."""

    def __init__(self, d: int = 32, heads: int = 4, vocabulary: int = 50) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, d), nn.Embedding(16, d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down, self.pool = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.Linear(d, d)
        self.norms, self.heads = nn.ModuleList(nn.LayerNorm(d, 1e-12) for _ in range(3)), heads

    def forward(self, ids, mask):
        batch, length = ids.shape
        x = self.norms[0](self.words(ids) + self.places.weight[:length])
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -10000.0
        q, k, v = (f(x).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = self.norms[1](x + self.o(y.transpose(1, 2).reshape(batch, length, -1)))
        x = self.norms[2](x + self.down(F.gelu(self.up(x))))
        return x, torch.tanh(self.pool(x[:, 0]))


class Generator(nn.Module):
    """DCGAN's transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.ConvTranspose2d(8, 8, 4, 1, 0, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
        layers += [nn.ConvTranspose2d(8, 4, 4, 2, 1, bias=False), nn.BatchNorm2d(4), nn.LeakyReLU(0.2)]
        self.body = nn.Sequential(*layers, nn.ConvTranspose2d(4, 3, 3, 2, 1, output_padding=1), nn.Tanh())

    def forward(self, x):
        return self.body(x)


class UNetPiece(nn.Module):
    """Down and up once, with a skip, as in U-Nets and, with group norm and a larger picture, in diffusion."""

    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.first, self.low = conv_norm(3, c), conv_norm(c, 2 * c)
        self.up, self.norm = nn.ConvTranspose2d(2 * c, c, 2, 2), nn.GroupNorm(4, 2 * c, 1e-6)
        self.last, self.head = nn.Conv2d(2 * c, c, 3, 1, 1), nn.Conv2d(c, 2, 1)

    def forward(self, x):
        skip = F.relu(self.first(x))
        y = self.up(F.relu(self.low(F.max_pool2d(skip, 2))))
        y = self.last(F.silu(self.norm(torch.cat([skip, y], 1))))
        return self.head(F.interpolate(y, scale_factor=2.0, mode="nearest"))


class Rms(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class LlamaLayer(nn.Module):
    """Rotary positions, grouped attention under a causal mask that the module makes, gated products."""

    def __init__(self, d: int = 32, heads: int = 4, kv: int = 2, length: int = 16) -> None:
        super().__init__()
        self.heads, self.kv, self.dim = heads, kv, d // heads
        self.q, self.k, self.v = (nn.Linear(d, n * self.dim, bias=False) for n in (heads, kv, kv))
        self.o, self.n1, self.n2 = nn.Linear(d, d, bias=False), Rms(d), nn.RMSNorm(d, 1e-5)
        self.gate, self.up, self.down = nn.Linear(d, 48), nn.Linear(d, 48), nn.Linear(48, d)
        angles = torch.arange(length)[:, None] / (10000 ** (torch.arange(0, self.dim, 2) / self.dim))[None]
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin(), persistent=False)

    def rotated(self, x):
        a, b = x.chunk(2, -1)
        n = x.shape[2]
        return x * self.cos[:n] + torch.cat([-b, a], -1) * self.sin[:n]

    def forward(self, x):
        b, n, _ = x.shape
        h = self.n1(x)
        q, k, v = (f(h).view(b, n, -1, self.dim).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k, times = self.rotated(q), self.rotated(k), self.heads // self.kv
        k, v = (t[:, :, None].expand(-1, -1, times, -1, -1).reshape(b, self.heads, n, self.dim) for t in (k, v))
        mask = torch.full((n, n), -math.inf).triu(1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).reshape(b, n, -1))
        h = self.n2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


Model = Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]
MODELS: dict[str, Model] = {
    "resnet": lambda: (Residual(), (torch.randn(2, 3, 33, 32),)),
    "mobilenet": lambda: (Inverted(), (torch.randn(1, 8, 7, 9),)),
    "bert": lambda: (BertLayer(), (torch.randint(0, 50, (2, 7)), (torch.arange(7) < 5).long().expand(2, 7).clone())),
    "dcgan": lambda: (Generator(), (torch.randn(1, 8, 1, 1),)),
    "unet": lambda: (UNetPiece(), (torch.randn(1, 3, 8, 12),)),
    "llama": lambda: (LlamaLayer(), (torch.randn(1, 6, 32),)),
}


def model(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """In inference, with statistics of batch norms that are not trivial; the same in each run."""
    torch.manual_seed(7)
    module, inputs = MODELS[name]()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(0, 0.1)
            part.running_var.uniform_(0.5, 1.5)
    return module.eval(), inputs


def loaded(module: Any, inputs: Sequence[torch.Tensor], load: Callable[..., Graph] = load_torch) -> Graph:
    """The graph of a module."""
    return load(module, inputs)


def by_reference(graph: Graph, inputs: Sequence[torch.Tensor]) -> list[np.ndarray[Any, Any]]:
    """The outputs that the reference computes."""
    given = {name: x.detach().contiguous().numpy() for name, x in zip(graph.inputs, inputs, strict=True)}
    found = interpret(graph, given)
    return [found[name] for name in graph.outputs]


def assert_close(found: Sequence[Any], expected: Any) -> None:
    """Equal but for 1e-5 of the largest number; of the same types."""
    wanted = expected if isinstance(expected, tuple | list) else (expected,)
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        theirs = theirs.detach().numpy()
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        finite = np.abs(theirs[np.isfinite(theirs)].astype(np.float64))
        bound = 1e-5 * finite.max(initial=0.0)
        np.testing.assert_allclose(ours.astype(np.float64), theirs.astype(np.float64), rtol=0, atol=bound)
