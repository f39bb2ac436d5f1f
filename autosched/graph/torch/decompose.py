"""Decompositions of composite ATen operators: transformer layers as torch runs them without gradients, products with
4-bit weights, embedding bags, distances.

A function gets all arguments of its ATen operator by name, defaults included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

MAX_COMPARED = 1024  # boundaries up to which each number is compared with all; torch bisects
_MEAN, _MAX = 1, 2  # modes of bags; 0 is their sum
_COLUMNS = {"AVX512": 64, "AVX2": 32}  # of a block, by the instruction set that torch detects
_OF_KEYS = 1  # mask type: one mask per batch; other types have the shape of the scores
Given = SimpleNamespace


def decomposed() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by overload."""
    aten = torch.ops.aten
    table: dict[Any, Callable[[Given], Any]] = {
        aten._transformer_encoder_layer_fwd.default: encoder_layer,
        aten._native_multi_head_attention.default: multi_head_attention,
        aten._embedding_bag_forward_only.default: embedding_bag,
        aten._embedding_bag.default: embedding_bag,
        aten.searchsorted.Tensor: lambda a: search(a, a.sorted_sequence, a.self),
        aten.bucketize.Tensor: lambda a: search(a, a.boundaries, a.self),
        aten._cdist_forward.default: distances,
        aten._trilinear.default: trilinear,
        aten._weight_int4pack_mm_for_cpu.default: product_of_codes,
    }
    return {overload: _with_names(overload, function) for overload, function in table.items()}


def _with_names(overload: Any, function: Callable[[Given], Any]) -> Callable[..., Any]:
    names = [argument.name for argument in overload._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in overload._schema.arguments}

    def apply(*args: Any, **kwargs: Any) -> Any:
        return function(Given(**{**defaults, **dict(zip(names, args, strict=False)), **kwargs}))

    return apply


def encoder_layer(a: Given) -> Tensor:
    def attended(x: Tensor) -> Tensor:
        return _attended(a, (x, x, x), a.num_heads)[0]

    def fed_forward(x: Tensor) -> Tensor:
        inner = F.linear(x, a.ffn_weight_1, a.ffn_bias_1)
        return F.linear(F.gelu(inner) if a.use_gelu else F.relu(inner), a.ffn_weight_2, a.ffn_bias_2)

    def first_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (a.embed_dim,), a.norm_weight_1, a.norm_bias_1, a.eps)

    def second_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (a.embed_dim,), a.norm_weight_2, a.norm_bias_2, a.eps)

    if a.norm_first:
        x = a.src + attended(first_norm(a.src))
        return x + fed_forward(second_norm(x))
    x = first_norm(a.src + attended(a.src))
    return second_norm(x + fed_forward(x))


def multi_head_attention(a: Given) -> tuple[Tensor, Tensor]:
    result, weights = _attended(a, (a.query, a.key, a.value), a.num_head)
    if not a.need_weights:
        return result, result.new_empty(0)
    return result, weights.mean(1) if a.average_attn_weights else weights


def _attended(a: Given, operands: tuple[Tensor, Tensor, Tensor], heads: int) -> tuple[Tensor, Tensor]:
    """Return the result of attention and the weights of each head; operands have the batch first.

    Positions where the mask is not 0 are excluded.
    """
    size = a.embed_dim // heads

    def projected(x: Tensor, part: int) -> Tensor:
        rows = slice(part * a.embed_dim, (part + 1) * a.embed_dim)
        made = F.linear(x, a.qkv_weight[rows], a.qkv_bias[rows])
        return made.reshape(*x.shape[:2], heads, size).transpose(1, 2)

    q, k, v = (projected(x, part) for part, x in enumerate(operands))
    scores = q @ k.transpose(-1, -2) * (1.0 / math.sqrt(size))
    if a.mask is not None:
        mask = a.mask[:, None, None, :] if a.mask_type == _OF_KEYS else a.mask
        scores = scores.masked_fill(mask.to(torch.bool), -math.inf)
    weights = scores.softmax(-1)
    joined = (weights @ v).transpose(1, 2).flatten(2)
    return F.linear(joined, a.proj_weight, a.proj_bias), weights


def embedding_bag(a: Given) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Reduce the rows of a table per bag: bag i has the indices from offsets[i] to the next offset."""
    n, starts = a.indices.shape[0], a.offsets[: a.offsets.shape[0] - int(a.include_last_offset)]
    count = starts.shape[0]
    begins = a.indices.new_zeros(n + 1).scatter_add(0, starts, torch.ones_like(starts))
    bag = begins.cumsum(0)[:n] - 1
    rows = a.weight[a.indices]
    used = torch.ones_like(a.indices) if a.padding_idx < 0 else (a.indices != a.padding_idx).to(a.indices.dtype)
    sizes = a.indices.new_zeros(count).scatter_add(0, bag, used)
    if a.mode == _MAX:
        least = rows.masked_fill((used == 0)[:, None], -math.inf)
        nothing = rows.new_full((count, rows.shape[1]), -math.inf)
        most = nothing.scatter_reduce(0, bag[:, None].expand(rows.shape), least, "amax")
        return torch.where((sizes == 0)[:, None], 0.0, most), bag, sizes, sizes
    if a.per_sample_weights is not None:
        rows = rows * a.per_sample_weights[:, None]
    if a.padding_idx >= 0:
        rows = rows * used[:, None]
    total = rows.new_zeros(count, rows.shape[1]).index_add(0, bag, rows)
    if a.mode == _MEAN:
        total = total / sizes.clamp(min=1)[:, None]
    return total, bag, sizes, sizes


def search(a: Given, boundaries: Tensor, values: Tensor) -> Tensor:
    """Count the boundaries, along their last axis, before each number."""
    if getattr(a, "sorter", None) is not None or boundaries.shape[-1] > MAX_COMPARED:
        return NotImplemented
    of_each, number = boundaries.unsqueeze(-2) if boundaries.ndim > 1 else boundaries, values.unsqueeze(-1)
    before = of_each <= number if a.right or getattr(a, "side", None) == "right" else of_each < number
    return before.sum(-1, dtype=torch.int32 if a.out_int32 else torch.int64)


def distances(a: Given) -> Tensor:
    """Return the distance of each row to each other one, in the norm of order p."""
    return torch.linalg.vector_norm(a.x1.unsqueeze(-2) - a.x2.unsqueeze(-3), a.p, -1)


def trilinear(a: Given) -> Tensor:
    """Return the product of three unsqueezed tensors, summed over some axes."""
    return (_spread(a.i1, a.expand1) * _spread(a.i2, a.expand2) * _spread(a.i3, a.expand3)).sum(a.sumdim)


def product_of_codes(a: Given) -> Tensor:
    """Return the product with weights (code - 8) * scale + zero; groups of `qGroupSize` share scale and zero."""
    codes = _codes_of(a.mat2)
    groups = codes.reshape(codes.shape[0], -1, a.qGroupSize).to(torch.float32) - 8
    scales, zeros = (a.qScaleAndZeros[:, :, n].to(torch.float32).t().unsqueeze(2) for n in range(2))
    weights = (groups * scales + zeros).flatten(1)
    return F.linear(a.self, weights.to(a.self.dtype))


def _codes_of(packed: Tensor) -> Tensor:
    """Codes [N, K] of 4 bits, as torch's kernels for this processor have packed them in bytes [N, K / 2]: in blocks of
    columns, K rows in each, of which the first half are low bits; the columns of a last, narrower block are neighbours
    in a byte, as all are where there are no kernels for vectors."""
    width, depth = packed.shape[0], 2 * packed.shape[1]
    block = _COLUMNS.get(torch.backends.cpu.get_cpu_capability(), width + 1)
    whole, blocks = width - width % block, []
    if whole:
        bytes_ = packed[:whole].reshape(whole // block, depth, block // 2)
        blocks.append(torch.cat([bytes_ & 15, bytes_ >> 4], 2).transpose(1, 2).reshape(whole, depth))
    if whole < width:
        bytes_ = packed[whole:].reshape(depth, (width - whole) // 2)
        blocks.append(torch.stack([bytes_ & 15, bytes_ >> 4], 2).reshape(depth, width - whole).t())
    return torch.cat(blocks)


def _spread(x: Tensor, dims: list[int]) -> Tensor:
    for dim in dims:
        x = x.unsqueeze(dim)
    return x
