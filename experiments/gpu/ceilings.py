"""The step `ceilings`: what the libraries reach on this card, PyTorch's products, convolutions, attention and rows.

Each is timed by events around a CUDA graph that goes round as many copies of random data as exceed the last cache;
the median of some replays counts. The most telling come first. A dry run has none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeAlias

from experiments.gpu.peers import GraphClock, Run, start_torch
from experiments.gpu.steps import Row, StepRequest

RESERVE_S = 3.0  # for the case that is being timed when time is over
CACHES = 150e6  # bytes that the copies have together, at least
MOST_COPIES = 32
REPLAYS = 7
LONG_FLOPS = 2e11  # calls of more operations may be fewer in a graph
Clock: TypeAlias = Callable[[Sequence[Run], bool], float]


@dataclass(frozen=True)
class Ceiling:
    """A call of a library. `kind` names a function of MAKERS, `sizes` are its numbers."""

    kind: str
    sizes: tuple[int, ...]
    dtype: str
    layout: str = ""

    @property
    def label(self) -> str:
        return " ".join(filter(None, (self.kind, "x".join(map(str, self.sizes)), self.dtype, self.layout)))

    @property
    def flops(self) -> float:
        """Arithmetic operations of a call; 0 where memory is what counts."""
        if self.kind == "gemm":
            m, n, k = self.sizes
            return 2.0 * m * n * k
        if self.kind == "conv":
            n, h, w, ci, co, size, stride, pad = self.sizes
            p, q = ((x + 2 * pad - size) // stride + 1 for x in (h, w))
            return 2.0 * n * p * q * co * ci * size * size
        if self.kind == "attention":
            batch, heads, length, width = self.sizes
            return 4.0 * batch * heads * length * length * width
        return 0.0


def _cube(n: int, *dtypes: str) -> tuple[Ceiling, ...]:
    return tuple(Ceiling("gemm", (n, n, n), dtype) for dtype in dtypes)


_IMAGES = ((224, 3, 64, 7, 2, 3), (56, 64, 64, 1, 1, 0), (14, 256, 256, 3, 1, 1), (7, 512, 512, 3, 1, 1))
_CONVOLUTIONS = tuple(
    Ceiling("conv", (n, size, *image), dtype, layout)
    for dtype, layout in (("bfloat16", "channels_last"), ("float32", "channels_last"), ("float32", "nchw"))
    for n in (16, 1)
    for size, *image in ((h, h, *rest) for h, *rest in _IMAGES)
)
SMALL = ("bfloat16", "float32", "int8", "fp8", "tf32", "float16")
CEILINGS: tuple[Ceiling, ...] = (
    *_cube(4096, "bfloat16", "float32"), *_cube(8192, "bfloat16"), *_cube(1024, "bfloat16", "float32"),
    Ceiling("attention", (8, 12, 1024, 64), "bfloat16"),
    *(Ceiling("gemm", (m, 4096, 4096), "bfloat16") for m in (512, 17)),
    *_CONVOLUTIONS[:8],
    *_cube(2048, "bfloat16", "float32"), *_cube(512, "bfloat16", "float32"), *_cube(4096, "int8", "fp8", "tf32"),
    Ceiling("softmax", (4096, 4096), "float32"), Ceiling("layer_norm", (4096, 4096), "float32"),
    Ceiling("copy", (8192, 8192), "float32"),
    *_CONVOLUTIONS[8:],
    Ceiling("softmax", (4096, 4096), "bfloat16"), Ceiling("layer_norm", (4096, 4096), "bfloat16"),
    *_cube(8192, "fp8", "int8", "tf32", "float16"), *_cube(1024, "int8", "fp8", "tf32", "float16"),
    *(Ceiling("gemm", (m, 4096, 4096), dtype) for dtype in ("float32", "int8", "fp8") for m in (512, 17)),
    *_cube(2048, *SMALL[2:]), *_cube(4096, "float16"), *_cube(512, *SMALL[2:]), *_cube(8192, "float32"),
)  # fmt: skip

# One call on random data of its own.
Maker: TypeAlias = Callable[[Any, Ceiling, str], Run]


def _tensor(torch: Any, shape: Sequence[int], dtype: str, device: str) -> Any:
    """Random numbers, of a normal distribution or all bytes."""
    if dtype == "int8":
        return torch.randint(-128, 128, tuple(shape), device=device, dtype=torch.int8)
    made = torch.randn(tuple(shape), device=device)
    kinds = {"fp8": torch.float8_e4m3fn, "tf32": torch.float32}
    return made.to(kinds[dtype] if dtype in kinds else getattr(torch, dtype))


def gemm(torch: Any, of: Ceiling, device: str) -> Run:
    m, n, k = of.sizes
    a = _tensor(torch, (m, k), of.dtype, device)
    if of.dtype in ("int8", "fp8"):  # whose libraries want the second operand along k
        b = _tensor(torch, (n, k), of.dtype, device).t()
        if of.dtype == "int8":
            return lambda: torch._int_mm(a, b)
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    b = _tensor(torch, (k, n), of.dtype, device)
    return lambda: torch.mm(a, b)


def conv(torch: Any, of: Ceiling, device: str) -> Run:
    n, h, w, ci, co, size, stride, pad = of.sizes
    form = torch.channels_last if of.layout == "channels_last" else torch.contiguous_format
    x = _tensor(torch, (n, ci, h, w), of.dtype, device).contiguous(memory_format=form)
    weights = _tensor(torch, (co, ci, size, size), of.dtype, device).contiguous(memory_format=form)
    return lambda: torch.nn.functional.conv2d(x, weights, stride=stride, padding=pad)


def attention(torch: Any, of: Ceiling, device: str) -> Run:
    q, k, v = (_tensor(torch, of.sizes, of.dtype, device) for _ in range(3))
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)


def softmax(torch: Any, of: Ceiling, device: str) -> Run:
    x = _tensor(torch, of.sizes, of.dtype, device)
    return lambda: torch.softmax(x, -1)


def layer_norm(torch: Any, of: Ceiling, device: str) -> Run:
    x = _tensor(torch, of.sizes, of.dtype, device)
    width = of.sizes[-1:]
    return lambda: torch.nn.functional.layer_norm(x, width)


def copy(torch: Any, of: Ceiling, device: str) -> Run:
    x = _tensor(torch, of.sizes, of.dtype, device)
    return lambda: x.clone()


MAKERS: dict[str, Maker] = {
    "gemm": gemm, "conv": conv, "attention": attention, "softmax": softmax, "layer_norm": layer_norm, "copy": copy,
}  # fmt: skip


def timed(torch: Any, of: Ceiling, clock: Clock, device: str = "cuda") -> Row:
    """One result: seconds of a call, the rates that follow, or why there is none."""
    torch.backends.cuda.matmul.allow_tf32 = of.dtype == "tf32"
    found: Row = {"flops": of.flops}
    try:
        first = MAKERS[of.kind](torch, of, device)
        result = first()
        touched = _bytes(first, torch) + result.numel() * result.element_size()
        copies = min(MOST_COPIES, int(CACHES // touched) + 1)
        runs = [first, *(MAKERS[of.kind](torch, of, device) for _ in range(copies - 1))]
        seconds = clock(runs, of.flops > LONG_FLOPS)
    except Exception as error:  # a library's errors are of any class
        return found | {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
    found |= {"seconds": seconds, "bytes": touched, "copies": copies, "bytes_per_s": touched / seconds}
    return found | ({"flops_per_s": of.flops / seconds} if of.flops else {})


def _bytes(run: Run, torch: Any) -> int:
    """Of the tensors that a call reads: they are what its closure holds."""
    held = [cell.cell_contents for cell in run.__closure__ or ()]
    return sum(t.numel() * t.element_size() for t in held if isinstance(t, torch.Tensor))


def graph_seconds(runs: Sequence[Run], is_long: bool) -> float:
    """Median seconds of a call on the device."""
    clock = GraphClock(runs, 1 if is_long else None)
    clock(1)
    return median(clock(1) for _ in range(REPLAYS))


def predict(request: StepRequest) -> str:
    return (
        "bf16 4096: 650-730 TFLOP/s, 8192: 660-800; fp32 46-50; tf32 400; fp8 1200-1500; attention 300-500;"
        " cuDNN at N=16 bf16: 200-500 with 256 channels or more; softmax and layer_norm 2.5-3.0 TB/s (H200: 3.5-4.2)"
    )


def measure(request: StepRequest) -> Iterator[tuple[str, Row]]:
    """Within the request's seconds. Raises NoPeer where PyTorch has no card."""
    if request.is_dry:
        return
    end, torch = time.monotonic() + request.seconds - RESERVE_S, start_torch()
    yield "card", {"name": torch.cuda.get_device_name(), "torch": torch.__version__}
    with torch.inference_mode():
        for case in CEILINGS:
            if time.monotonic() >= end:
                break
            yield case.label, timed(torch, case, graph_seconds)


def summary(rows: Mapping[str, Row]) -> str:
    """A line for each result."""
    return "\n".join(line(label, row) for label, row in rows.items() if label != "card") or "nothing was timed"


def line(label: str, row: Row) -> str:
    """One result in words."""
    if "error" in row:
        return f"{label}: {row['error']}"
    rate = f"{row['flops_per_s'] / 1e12:.1f} TFLOP/s" if row["flops"] else f"{row['bytes_per_s'] / 1e9:.0f} GB/s"
    return f"{label}: {row['seconds'] * 1e6:.1f} us, {rate}"
