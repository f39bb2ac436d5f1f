"""The instructions of good candidates, as nvcc sees them: multiply-adds, whole vectors, nothing in local memory."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from autosched.codegen import build_source
from autosched.lower import lower
from autosched.target import parse_target
from autosched.te.operators.registry import build
from autosched.te.rewrites.collapse import collapse
from search_spaces.gpu import sketches
from tests.codegen.nvcc import ptx

OPCODE = re.compile(r"^\s*(?:@!?%p\d+ )?([a-z][\w.:]*)\s", re.MULTILINE)


def instructions(
    workload: str, shape: tuple[int, ...], sketch: str, tmp_path: Path, dtype: str = "float32", **values: int
) -> Counter[str]:
    """PTX opcodes of the candidate of a sketch, by count; parameters that are not named have their smallest value."""
    found = sketches(collapse(build(workload, shape, dtype=dtype)[0]), parse_target("cuda"))
    chosen = next(s for s in found if s.name == sketch)
    assert values.keys() <= {p.name for p in chosen.params}
    whole = {p.name: p.domain[0] for p in chosen.params} | values
    text = ptx(build_source(lower(chosen.state), whole, parse_target("cuda")).text, "sm_80", tmp_path)
    assert ".local" not in text
    return Counter(OPCODE.findall(text))


def test_a_matrix_product_is_multiply_adds_and_vectors(tmp_path: Path) -> None:
    """128 x 128 for a block of 256 threads, 8 x 8 for a thread, 16 steps in shared memory, 8 of them unrolled."""
    tiles = {f"matmul.{axis}.{level}": n for axis in "ij" for level, n in (("v", 2), ("t", 16), ("s", 4))}
    rest = {"matmul.acc.k.c": 2, "matmul.acc.k.u": 8, "X.shared.w": 4, "Y.shared.w": 4}
    found = instructions("gmm", (1, 1024, 1024, 1024), "matmul:X@shared-Y@shared", tmp_path, **tiles, **rest)
    assert found["fma.rn.f32"] == 8 * 64
    assert found["ld.shared.v4.f32"] == 8 * 64 // 16  # 8 + 8 operands for 64 multiply-adds, 4 at a time
    assert found["ld.shared.f32"] == 0
    assert found["ld.global.nc.v4.u32"] == found["st.shared.v4.u32"] == 4  # 2 x 16 x 128 elements by 256 threads
    assert found["st.global.v4.f32"] == 16
    assert found["bar.sync"] == 2
    assert not any(op.startswith(("div", "rem")) for op in found)
    assert all(".v4" in op for op in found if op.startswith(("ld.global", "st.global")))
    assert found["fma.rn.f32"] > 0.7 * sum(n for op, n in found.items() if not op.startswith("mov"))


@pytest.mark.parametrize(("dtype", "lanes"), [("float32", 4), ("bfloat16", 8)])
def test_rows_are_read_and_written_as_vectors(dtype: str, lanes: int, tmp_path: Path) -> None:
    """By all passes over them: the maxima, the sums, the result. The compiler keeps what a thread has read of a row."""
    output = f"softmax{'_bfloat16' * (dtype == 'bfloat16')}"
    values = {f"{output}.i1.t": 32, f"{output}.w": lanes}
    found = instructions("softmax", (64, 1024), f"{output}:block-rows/power:again", tmp_path, dtype, **values)
    for access in ("ld.global", "st.global"):
        counts = {op: n for op, n in found.items() if op.startswith(access)}
        assert sum(counts.values()) == 1024 // (32 * lanes)
        assert all(".v4" in op for op in counts)


def test_elementwise_kernels_move_vectors(tmp_path: Path) -> None:
    found = instructions("gelu", (64, 256), "default", tmp_path, **{"gelu.i_j.t": 128, "gelu.i_j.w": 4})
    assert found["ld.global.nc.v4.f32"] == found["st.global.v4.f32"] == 1
    assert all(".v4" in op for op in found if op.startswith(("ld.global", "st.global")))
