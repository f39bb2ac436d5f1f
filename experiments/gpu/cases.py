"""What is tuned and compared, the most telling first, and the small shapes at which every operator is verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autosched.te.operators.registry import WORKLOADS, small_numbers
from experiments.tuning import parse_cases


@dataclass(frozen=True)
class Check:
    """An operator that is verified at a small shape; `settings` beyond the shape, such as a layout."""

    workload: str
    shape: tuple[int, ...]
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        words = [self.workload, "x".join(map(str, self.shape)), *self.settings.values()]
        return " ".join(words)


# The four convolutions of the benchmarks, for 16 images.
_IMAGES = ("16x14x14x256x256x3x1x1", "16x56x56x64x64x1x1x0", "16x7x7x512x512x3x1x1", "16x224x224x3x64x7x2x3")
_FIRST = (
    "gmm:1x8192x8192x8192@bfloat16", "gmm:1x4096x4096x4096@bfloat16", "gmm:1x4096x4096x4096",
    *(f"c2d:{shape}@bfloat16" for shape in _IMAGES[:3]),
    "attention:8x12x1024x64@bfloat16", "gmm:1x1024x1024x1024@bfloat16", "gmm:1x1024x1024x1024",
    "gmm:1x512x4096x4096@bfloat16", "gmm:1x17x4096x4096@bfloat16", *(f"c2d:{shape}" for shape in _IMAGES[:3]),
    "gmm:1x2048x2048x2048@bfloat16", "gmm:1x2048x2048x2048", f"c2d:{_IMAGES[3]}@bfloat16", f"c2d:{_IMAGES[3]}", "c2d",
    "gmm:1x512x512x512", "gmm:1x4096x4096x4096@float16", "sfm:4096x4096", "nrm:1x8192x4096", "elementwise:4096x4096",
    "cbr:1", "dep:0", "tbg:0", "sfm:3", "nrm:3", "grp:2", "dil:2", "t2d:1", "cap:0", "layer_norm:4096x4096",
    "transpose:4096x4096",
)  # fmt: skip
_OPERATORS = ("cbr", "dep", "tbg", "sfm", "nrm", "grp", "dil", "t2d", "cap")
_REST = tuple(f"{name}:{i}" for i in range(4) for name in _OPERATORS)
CASES = tuple(dict.fromkeys(parse_cases(",".join((*_FIRST, *_REST)))))
QUICK = parse_cases("gmm:1x64x64x64,c2d:1x8x8x8x16x3x1x1,sfm:64x64")
MEMORY = ("sfm", "nrm", "elementwise", "layer_norm", "transpose")  # judged by the bandwidth they reach

# None of the extents divides by what tiles like; some are 1.
_CHECKS: tuple[Check, ...] = (
    Check("gmm", (2, 13, 17, 31)),
    Check("c2d", (1, 9, 9, 3, 17, 3, 1, 1)),
    Check("c1d", (1, 12, 6, 20, 3, 2, 1)),
    Check("c3d", (1, 4, 6, 5, 3, 7, 3, 1, 1)),
    Check("grp", (1, 7, 6, 8, 16, 3, 1, 1, 1, 4)),
    Check("dil", (1, 9, 8, 4, 18, 3, 1, 1, 2)),
    Check("dep", (2, 7, 6, 5, 3, 2, 1)),
    Check("t2d", (1, 4, 3, 6, 17, 3, 2, 1)),
    Check("cap", (1, 5, 5, 3, 6, 3, 2, 1)),
    Check("nrm", (3, 64, 128)),
    Check("sfm", (9, 50)),
    Check("cbr", (1, 9, 9, 3, 17, 3, 1, 1)),
    Check("tbg", (1, 17, 3, 5)),
    Check("tbs", (1, 40, 2, 8)),
    Check("attention", (1, 3, 37, 19, 53)),
    Check("matmul", (40, 1, 70)),
    Check("batch_matmul", (3, 19, 33, 21)),
    Check("dense", (5, 33, 7)),
    Check("conv2d", (1, 8, 7, 4, 6, 3, 2, 1)),
    Check("conv2d", (1, 8, 7, 4, 6, 3, 2, 1), {"layout": "NCHW"}),
    Check("depthwise", (1, 8, 7, 5, 3, 1, 1)),
    Check("depthwise", (1, 8, 7, 5, 3, 1, 1), {"layout": "NCHW"}),
    Check("winograd", (1, 6, 6, 4, 16, 1, 2)),
    Check("max_pool2d", (1, 9, 8, 20, 3, 2, 1)),
    Check("max_pool2d", (1, 9, 8, 20, 3, 2, 1), {"layout": "NCHW"}),
    Check("avg_pool2d", (1, 9, 8, 20, 3, 2, 1)),
    Check("global_max_pool2d", (2, 17, 20, 3)),
    Check("global_avg_pool2d", (2, 7, 5, 20)),
    Check("softmax", (7, 33)),
    Check("layer_norm", (5, 33)),
    Check("rms_norm", (5, 40)),
    Check("batch_norm", (2, 5, 6, 17)),
    Check("relu", (5, 33)),
    Check("gelu", (7, 45)),
    Check("add", (3, 70)),
    Check("elementwise", (31, 17)),
    Check("transpose", (33, 47)),
)
# For tensor cores: of every type, with and without whole tiles and whole 16 bytes in a row.
_ON_TENSOR_CORES = (
    *(Check("gmm", shape, {"dtype": dtype})
      for dtype in ("bfloat16", "float16") for shape in ((1, 136, 264, 200), (2, 130, 64, 128), (1, 17, 33, 31))),
    *(Check("gmm", (1, 72, 96, 80), {"dtype": dtype}) for dtype in ("int8", "uint8", "float8_e4m3fn", "float8_e5m2")),
    *(Check("c2d", shape, {"dtype": dtype})
      for dtype in ("bfloat16", "float16") for shape in ((2, 9, 9, 32, 64, 3, 1, 1), (1, 9, 8, 24, 40, 3, 2, 1))),
    Check("dense", (40, 64, 72), {"dtype": "bfloat16"}),
    *(Check("attention", shape, {"dtype": "bfloat16"}) for shape in ((1, 3, 37, 19, 53), (2, 2, 72, 32, 0, 1))),
    *(Check(name, shape, {"dtype": dtype})
      for dtype in ("bfloat16", "float16") for name, shape in (("softmax", (9, 48)), ("layer_norm", (5, 40)))),
)  # fmt: skip
_LISTED = {check.workload for check in _CHECKS}
CHECKS = (
    *_ON_TENSOR_CORES,
    *_CHECKS,
    *(Check(w.name, tuple(small_numbers(w).values())) for w in WORKLOADS.values() if w.name not in _LISTED),
)
QUICK_CHECKS: tuple[Check, ...] = tuple(c for c in CHECKS if c.workload in ("gmm", "sfm", "dep") and not c.settings)
