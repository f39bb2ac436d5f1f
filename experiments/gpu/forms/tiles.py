"""The copy engine: tiles of tensors of one to five dimensions, images, tiles back, bytes without a map."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from autosched.codegen.c.source import PixelBox, TensorMap
from experiments.gpu.forms.form import BARRIER, BARRIERS, SHARED, Array, FormOutput, InstructionForm, helper, map_of

TILE = BARRIERS + "".join((
    helper("commit()", "cp.async.bulk.commit_group;", '::: "memory"'),
    helper("wait()", "cp.async.bulk.wait_group 0;", '::: "memory"'),
))  # fmt: skip
MARGIN = 16  # more than boxes lie outside
ARRIVES = "mbarrier::complete_tx::bytes"


def loader(rank: int) -> str:
    inner = ", ".join(f"%{d + 2}" for d in range(rank))
    coordinates = ", ".join(f'"r"(from[{d}])' for d in range(rank))
    return TILE + helper(
        "load(unsigned to, const TensorMap* map, const int* from, unsigned bar)",
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.{ARRIVES} [%0], [%1, {{{inner}}}], [%{rank + 2}];",
        f':: "r"(to), "l"((unsigned long long)map), {coordinates}, "r"(bar) : "memory"',
    )


@dataclass(frozen=True)
class LoadedTile:
    """What is loaded: a map, from where, by a call of `load`."""

    map: TensorMap
    where: tuple[int, ...]
    nbytes: int
    helpers: str
    call: str = f"load(base, &map, from, base + {BARRIER});"


def loaded(name: str, array: Array, tile: LoadedTile, expected: FormOutput) -> InstructionForm:
    """The bytes of shared memory behind a load."""
    body = f"""{SHARED}
  if (threadIdx.x == 0) {{ init(base + {BARRIER}, 1); fence_init(); }}
  __syncthreads();
  const int from[] = {{{", ".join(map(str, tile.where))}}};
  if (threadIdx.x == 0) {{ expect(base + {BARRIER}, {tile.nbytes}); {tile.call} }}
  while (!done(base + {BARRIER}, 0)) {{ }}
  for (int i = threadIdx.x; i < {tile.nbytes}; i += 32) c[i] = s[i];"""
    parameters = "const __grid_constant__ TensorMap map, unsigned char* c"
    return InstructionForm(
        name, body, tile.helpers, parameters, (tile.map, "c"), {"A": array, "c": np.zeros(tile.nbytes, np.uint8)},
        {"c": expected},
    )  # fmt: skip


def inside(array: Array, box: tuple[int, ...], where: tuple[int, ...]) -> Array:
    """A box from `where` on, innermost first; zero beyond the edges."""
    first = tuple(MARGIN + w for w in reversed(where))
    return np.pad(array, MARGIN)[tuple(slice(f, f + b) for f, b in zip(first, reversed(box), strict=True))]


SHAPES = (
    ((40,), (16,), (8,)), ((13, 24), (8, 5), (4, 2)), ((7, 24), (16, 9), (16, -3)), ((5, 6, 8), (8, 3, 2), (-4, 4, 1)),
    ((3, 4, 5, 8), (8, 2, 3, 2), (0, 4, 2, -1)), ((2, 3, 2, 3, 4), (4, 2, 2, 2, 2), (0, 1, 1, 2, 1)),
    ((300, 128), (32, 24), (112, 288)),
)  # fmt: skip


def boxes() -> Iterator[InstructionForm]:
    """Of small tensors, and of one of more than 128 KiB, partly outside."""
    for shape, box, where in SHAPES:
        array = np.arange(1, np.prod(shape) + 1, dtype=np.float32).reshape(shape)
        tile = LoadedTile(map_of("A", array, box), where, int(np.prod(box)) * 4, loader(len(shape)))
        name = f"tile {len(shape)}d {'x'.join(map(str, shape))} from {where}"
        yield loaded(name, array, tile, FormOutput(inside(array, box, where), "float32"))


def swizzled_places(nbytes: int, swizzle: int) -> Array:
    """Of each byte of whole rows: parts of 16 bytes change places as bits 7 and on of their addresses say."""
    at = np.arange(nbytes)
    turn = {0: 0, 32: 1, 64: 3, 128: 7}[swizzle]
    return at ^ ((at >> 7 & turn) << 4)


def swizzles() -> Iterator[InstructionForm]:
    array = np.arange(40 * 128, dtype=np.uint16).view(np.float16).reshape(40, 128)
    for swizzle in (0, 32, 64, 128):
        columns = (swizzle or 128) // 2
        tile = LoadedTile(map_of("A", array, (columns, 24), swizzle), (64, 8), columns * 48, loader(2))
        rows = np.ascontiguousarray(array[8:32, 64 : 64 + columns]).view(np.uint8)
        expected = FormOutput(rows, "uint8", swizzled_places(rows.size, swizzle))
        yield loaded(f"tile 2d swizzle {swizzle}", array, tile, expected)


def steps() -> Iterator[InstructionForm]:
    array = np.arange(40 * 8, dtype=np.float32).reshape(40, 8)
    tile = LoadedTile(map_of("A", array, (4, 9), steps=(1, 2)), (4, 3), 5 * 16, loader(2))
    yield loaded("tile 2d in steps", array, tile, FormOutput(array[3:12:2, 4:8], "float32"))


def pixels(stride: int, pad: int, kernel: int, tap: tuple[int, int], swizzle: int = 0) -> InstructionForm:
    """im2col: pixels go on over rows and images; what is outside is zero."""
    n, h, w, c = 2, 5, 6, 16
    array = np.arange(1, n * h * w * c + 1, dtype=np.float32).reshape(n, h, w, c)
    out_h, out_w = ((e + 2 * pad - kernel) // stride + 1 for e in (h, w))
    first, count, channels = out_w * out_h - 4, 9, 8
    columns = PixelBox((-pad, -pad), (pad - kernel + 1, pad - kernel + 1), channels, count)
    p, q, image_n = first // out_w % out_h, first % out_w, first // (out_w * out_h)
    text = TILE + helper(
        "load(unsigned to, const TensorMap* map, const int* from, unsigned short w, unsigned short h, unsigned bar)",
        f"cp.async.bulk.tensor.4d.shared::cluster.global.im2col.{ARRIVES} "
        "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};",
        ':: "r"(to), "l"((unsigned long long)map), "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3]), "r"(bar), '
        '"h"(w), "h"(h) : "memory"',
    )
    padded = np.pad(array, ((0, 1), (pad, pad + kernel), (pad, pad + kernel), (0, 0)))
    at = first + np.arange(count)
    b, y, x = at // (out_w * out_h), at // out_w % out_h * stride + tap[0], at % out_w * stride + tap[1]
    rows = np.ascontiguousarray(padded[b, y, x, 8:16]).view(np.uint8)
    call = f"load(base, &map, from, {tap[1]}, {tap[0]}, base + {BARRIER});"
    where = (8, q * stride - pad, p * stride - pad, image_n)
    tile = LoadedTile(map_of("A", array, columns, swizzle, (1, stride, stride, 1)), where, rows.size, text, call)
    expected = FormOutput(rows, "uint8", swizzled_places(rows.size, swizzle))
    name = f"im2col stride {stride} pad {pad} kernel {kernel} tap {tap}" + (f" swizzle {swizzle}" if swizzle else "")
    return loaded(name, array, tile, expected)


def images() -> Iterator[InstructionForm]:
    for stride, pad, kernel, tap in ((1, 1, 3, (0, 0)), (1, 1, 3, (2, 1)), (2, 1, 3, (1, 2)), (2, 0, 1, (0, 0))):
        yield pixels(stride, pad, kernel, tap)
    yield pixels(1, 1, 3, (2, 1), swizzle=32)


ADD = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group"
PUT = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"


def storer(ptx: str) -> str:
    return TILE + helper(
        "store(const TensorMap* map, int x, int y, unsigned from)", f"{ptx} [%0, {{%1, %2}}], [%3];",
        ':: "l"((unsigned long long)map), "r"(x), "r"(y), "r"(from) : "memory"',
    )  # fmt: skip


def back() -> Iterator[InstructionForm]:
    """Tiles to the device's memory, partly outside; the tensor's name is `C` where it has a content."""
    body = f"""{SHARED}
  for (int i = threadIdx.x; i < 128; i += 32) ((float*)s)[i] = i;
  fence();
  __syncthreads();
  if (threadIdx.x == 0) {{ store(&map, 8, 2, base); commit(); wait(); }}"""
    numbers = np.arange(128, dtype=np.float32).reshape(8, 16)[:3, :8]
    for ptx, before in ((PUT, -1.0), (ADD, 100.0)):
        out = np.full((5, 16), before, np.float32)
        expected = out.copy()
        expected[2:, 8:] = numbers + (before if ptx is ADD else 0)
        parameters = "const __grid_constant__ TensorMap map"
        yield InstructionForm(
            ptx, body, storer(ptx), parameters, (map_of("C", out, (16, 8)),), {"C": out},
            {"C": FormOutput(expected, "float32")},
        )  # fmt: skip


def parts() -> Iterator[InstructionForm]:
    """Neighbouring bytes, there and back, without a map."""
    text = TILE + helper(
        "load(unsigned to, const void* from, unsigned bytes, unsigned bar)",
        f"cp.async.bulk.shared::cluster.global.{ARRIVES} [%0], [%1], %2, [%3];",
        ':: "r"(to), "l"((unsigned long long)from), "r"(bytes), "r"(bar) : "memory"',
    )
    array = np.arange(64, dtype=np.float32)
    memory = {"A": array, "c": np.zeros(64, np.float32)}
    body = f"""{SHARED}
  if (threadIdx.x == 0) {{ init(base + {BARRIER}, 1); fence_init(); }}
  __syncthreads();
  if (threadIdx.x == 0) {{ expect(base + {BARRIER}, 256); load(base, A, 256, base + {BARRIER}); }}
  while (!done(base + {BARRIER}, 0)) {{ }}
  for (int i = threadIdx.x; i < 64; i += 32) c[i] = ((float*)s)[i];"""
    parameters, given = "const float* A, float* c", ("A", "c")
    yield InstructionForm(
        "cp.async.bulk to shared", body, text, parameters, given, memory, {"c": FormOutput(array, "float32")}
    )
    text = TILE + helper(
        "store(const void* to, unsigned from, unsigned bytes)",
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;",
        ':: "l"((unsigned long long)to), "r"(from), "r"(bytes) : "memory"',
    )
    body = f"""{SHARED}
  for (int i = threadIdx.x; i < 64; i += 32) ((float*)s)[i] = A[i];
  fence();
  __syncthreads();
  if (threadIdx.x == 0) {{ store(c, base, 256); commit(); wait(); }}"""
    yield InstructionForm(
        "cp.async.bulk to global", body, text, parameters, given, memory, {"c": FormOutput(array, "float32")}
    )


def forms() -> Iterator[InstructionForm]:
    for made in (boxes, swizzles, steps, images, back, parts):
        yield from made()
